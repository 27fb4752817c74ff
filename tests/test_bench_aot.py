"""Kernels compiled without a GPU: figures from the assemblers, and occupancy against hand-computed values."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro.bench.occupancy import occupancy

ROOT = Path(__file__).resolve().parents[1]

# A row held in registers: 32,768 fp32 values on one warp of 32 lanes are 1,024 registers per thread, four
# times what a thread may have, and on 16 warps 64 per thread.
SCRIPT = """
import json
import triton
import triton.language as tl
from repro.bench.compiled import cached, compile_figures, content_key
from repro.ops.triton.specialisation import Specialisation

@triton.jit
def row(p_sources, p_out, p_absent, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    kept = tl.load(p_sources[0] + tl.program_id(0) * stride + o, mask=o < D, other=0.0)
    value = tl.load(p_sources[1] + tl.program_id(0) * stride + o, mask=o < D, other=0.0)
    if p_absent is not None:
        value += tl.load(p_absent + o, mask=o < D, other=0.0)
    total = tl.sum(value, 0) + tl.sum(kept, 0)
    tl.store(p_out + tl.program_id(0) * stride + o, kept * total + value, mask=o < D)

def form(width, block, num_warps, kind="*fp32"):
    signature = {"p_sources": (kind, kind), "p_out": kind, "p_absent": "constexpr", "stride": "i32"}
    signature |= {"D": "constexpr", "BLOCK": "constexpr"}
    constants = {"p_absent": None, "D": width, "BLOCK": block}
    return Specialisation("row", row, signature, constants, num_warps, aligned=("stride",))

found = {}
small, large = form(1168, 2048, 4), form(32768, 32768, 1)
assert cached(content_key(small, "sm_90")) is None
cases = [("small", small, target) for target in ("sm_90", "sm_100", "gfx942")]
for name, spec, target in [*cases, ("large", large, "sm_90")]:
    figures = compile_figures(spec, target)
    assert cached(content_key(spec, target)) == figures
    found[f"{name} {target}"] = figures.__dict__
keys = {content_key(s, t) for s in (small, large, form(1168, 2048, 8)) for t in ("sm_90", "sm_80")}
assert len(keys) == 6 and content_key(form(1168, 2048, 4), "sm_90") in keys
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """In a process of its own: the other tests interpret their kernels."""
    place = tmp_path_factory.mktemp("aot")
    script = place / "kernels.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "TRITON_CACHE_DIR": str(place / "cache"), "PYTHONPATH": str(ROOT)}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "gfx942"])
def test_a_small_row_stays_in_registers(figures: dict[str, dict[str, int]], target: str) -> None:
    small = figures[f"small {target}"]
    assert small["spill_store_bytes"] == small["spill_load_bytes"] == small["stack_bytes"] == 0
    # Two tiles of 2,048 fp32 values on four warps: 2 x 16 registers on 32 lanes, 2 x 8 on 64.
    assert (16 if target == "gfx942" else 32) <= small["registers"] <= 128
    assert small["instructions"] > 50
    # The sum crosses four warps: one fp32 each, at least.
    assert 16 <= small["shared_bytes"] <= 1024


def test_a_row_beyond_the_registers_spills(figures: dict[str, dict[str, int]]) -> None:
    large = figures["large sm_90"]
    assert large["registers"] <= 255
    # 2 x 1,024 values per thread are kept while the sums are formed, 4 bytes each, and no more than 255 fit.
    assert large["spill_store_bytes"] > 4 * (1024 - 255)
    assert large["spill_load_bytes"] > 4 * (1024 - 255)
    assert large["stack_bytes"] >= 4 * (1024 - 255)


@pytest.mark.parametrize(
    ("target", "registers", "shared", "num_warps", "share", "limit"),
    [
        ("sm_90", 32, 0, 4, 1.0, "warps"),  # 1,024 registers a warp: 16 on each of 4 schedulers
        ("sm_90", 33, 0, 4, 0.75, "registers"),  # rounded to 1,280: 12 on each
        ("sm_90", 62, 0, 4, 0.5, "registers"),
        ("sm_90", 255, 0, 8, 0.125, "registers"),  # 8,192: 2 on each, one block of 8
        ("sm_90", 255, 0, 16, 0.0, "registers"),  # 8 warps fit and the block has 16
        ("sm_90", 32, 0, 1, 0.5, "blocks"),  # 32 blocks of one warp
        ("sm_90", 32, 113 * 1024, 4, 0.125, "shared"),  # 2 x (113 + 1) KB = 228 KB
        ("sm_80", 32, 113 * 1024, 4, 0.0625, "shared"),  # one of them in 164 KB
        ("sm_80", 32, 164 * 1024, 4, 0.0, "shared"),
        ("sm_100", 40, 0, 4, 0.75, "registers"),
        ("gfx942", 64, 0, 4, 1.0, "warps"),  # 512 / 64 = 8 waves on each SIMD
        ("gfx942", 65, 0, 4, 0.875, "registers"),  # 512 // 72 = 7
        ("gfx942", 512, 0, 4, 0.125, "registers"),
        ("gfx942", 64, 40 * 1024, 4, 0.125, "shared"),
        ("gfx942", 64, 0, 1, 0.5, "blocks"),
    ],
)
def test_occupancy(
    target: str, registers: int, shared: int, num_warps: int, share: float, limit: str
) -> None:
    assert occupancy(target, registers, shared, num_warps) == (share, limit)


def test_scalar_registers_limit_waves() -> None:
    assert occupancy("gfx942", 32, 0, 4, 100) == (1.0, "warps")
    assert occupancy("gfx942", 32, 0, 4, 101) == (0.875, "registers")
