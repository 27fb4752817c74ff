"""One kernel compiled for one target without a GPU, and what the assembler says of it.

Triton's own register and spill counts exist only after a module is loaded on a device. Here they come from
the assembler: `ptxas -v` (bundled with Triton; another one from Blackwell on) and the instructions of the
cubin, or the notes that LLVM leaves in the AMD assembly text.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from repro.bench.occupancy import occupancy
from repro.ops.triton.specialisation import Specialisation

#: Raised when the figures of the same binary would be read differently.
FORMAT = 1

_NVIDIA_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?!NOP)[A-Z]", re.MULTILINE)
_AMD_INSTRUCTION = re.compile(
    r"^\s+(?!s_nop|s_code_end)(?:s|v|ds|global|flat|buffer|scratch)_\w+", re.MULTILINE
)


@dataclass(frozen=True)
class Figures:
    """Of one compiled kernel. Registers, spills and stack per thread, shared memory per block; bytes.

    scalar_registers, scalar_spills: AMD's registers per wave; those spill into vector registers.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    scalar_registers: int | None = None
    scalar_spills: int | None = None

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes + self.spill_load_bytes > 0

    def occupancy(self, target: str, num_warps: int) -> tuple[float, str]:
        return occupancy(target, self.registers, self.shared_bytes, num_warps, self.scalar_registers or 0)


def gpu_target(name: str) -> GPUTarget:
    """ "sm_90" or "gfx942" as Triton describes a target."""
    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name.removeprefix("sm_")), 32)
    return GPUTarget("hip", name, 64)


def content_key(spec: Specialisation, target: str) -> str:
    """Hash of all that decides the binary, so that equal compilations are done once."""
    parts = [
        FORMAT,
        triton.__version__,
        target,
        spec.function.cache_key,
        [(name, str(kind)) for name, kind in spec.signature.items()],
        sorted((name, str(value)) for name, value in spec.constexprs.items()),
        sorted((list(path), value) for path, value in spec.attributes().items()),
        spec.num_warps,
        spec.num_stages,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cache_path(key: str) -> Path:
    """Where the figures of an earlier run lie: beside Triton's own cache of binaries."""
    return Path(knobs.cache.dir) / "attnres-aot" / f"{key}.json"


def cached(key: str) -> Figures | None:
    try:
        return Figures(**json.loads(cache_path(key).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def compile_figures(spec: Specialisation, target: str) -> Figures:
    """Compile for the target and read the figures; kept for `cached`. Raises what the compiler raises."""
    source = ASTSource(spec.function, dict(spec.signature), dict(spec.constexprs), spec.attributes())
    options = {"num_warps": spec.num_warps, "num_stages": spec.num_stages}
    log = io.StringIO()
    # The log of ptxas goes to stdout and exists only where ptxas runs: not for a binary from the cache.
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True
        kernel = triton.compile(source, target=gpu_target(target), options=options)
    shared = int(kernel.metadata.shared)
    if "amdgcn" in kernel.asm:
        figures = amd_figures(kernel.asm["amdgcn"], shared)
    else:
        figures = nvidia_figures(log.getvalue(), kernel.asm["cubin"], shared)
    path = cache_path(content_key(spec, target))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(figures)))
    return figures


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the assembler's report has no {pattern!r}:\n{text[-2000:]}")
    return int(found.group(1))


def nvidia_figures(log: str, cubin: bytes, shared_bytes: int) -> Figures:
    """From the log of `ptxas -v` and the binary; padding (NOP) is no instruction."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-sass", file.name]
        sass = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Figures(
        registers=_number(r"Used (\d+) registers", log),
        spill_store_bytes=_number(r"(\d+) bytes spill stores", log),
        spill_load_bytes=_number(r"(\d+) bytes spill loads", log),
        stack_bytes=_number(r"(\d+) bytes stack frame", log),
        shared_bytes=shared_bytes,
        instructions=len(_NVIDIA_INSTRUCTION.findall(sass)),
    )


def amd_figures(assembly: str, shared_bytes: int) -> Figures:
    """From the kernel's notes; a spilled vector register is four bytes per lane, stored and loaded once."""
    notes = assembly[assembly.index(".amdgpu_metadata") :]
    spilled = 4 * _number(r"\.vgpr_spill_count:\s+(\d+)", notes)
    return Figures(
        registers=_number(r"\.vgpr_count:\s+(\d+)", notes),
        spill_store_bytes=spilled,
        spill_load_bytes=spilled,
        stack_bytes=_number(r"\.private_segment_fixed_size:\s+(\d+)", notes),
        shared_bytes=max(shared_bytes, _number(r"\.group_segment_fixed_size:\s+(\d+)", notes)),
        instructions=len(_AMD_INSTRUCTION.findall(assembly)),
        scalar_registers=_number(r"\.sgpr_count:\s+(\d+)", notes),
        scalar_spills=_number(r"\.sgpr_spill_count:\s+(\d+)", notes),
    )
