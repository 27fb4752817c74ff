"""Every form of the score and mix kernels that a call can ask for is accepted by the compiler for a GPU.

As in test_triton_forms.py, but of the compiler only the front end, which checks types and branches: the rest
takes four times as long, and `make kernels` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CODE = """
import torch, triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from repro.ops.triton import launch, rows
from repro.ops.triton.mix import mix_forward
from repro.ops.triton.mix_backward import mix_backward
from repro.ops.triton.score import score_forward
from repro.ops.triton.score_backward import score_backward

def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")

def mix(num, reads, lead, width, act="softmax", heads=1, dtype=torch.bfloat16, on_prior=False, added=False,
        continued=None, crossed=False):
    wide = torch.promote_types(dtype, torch.float32)
    sources = [meta(*lead, width, dtype=dtype) for _ in range(num)]
    if crossed:
        sources[0] = meta(*lead[::-1], width, dtype=dtype).transpose(0, 1)
    z = meta(num, *lead, reads, heads, dtype=wide)
    priors, prior_lse = (sources[:1] * reads, z[0]) if on_prior else ([], None)
    mix_forward(sources, z, priors, prior_lse, act, None)
    continued = continued or [False] * reads
    before = [None if goes_on or not on_prior else sources[0] for goes_on in continued]
    grads_in = [None, *sources[1:]] if added else [None] * num
    whole = (z[0], z[0], continued, before, prior_lse)
    mix_backward(sources[:1] * reads, *whole, z[0] if added else None, sources, z, act, grads_in)

def score(num, lead, width, heads=1, groups=1, dtype=torch.bfloat16, added=False):
    wide = torch.promote_types(dtype, torch.float32)
    source, queries = meta(*lead, width, dtype=dtype), meta(num, width, dtype=wide)
    addend = source if added else None
    z, inverse, _ = score_forward(source, addend, queries, heads, groups, 1e-8)
    score_backward(z, addend, source, queries, z, inverse, heads, groups)

rows.MAX_SOURCES = 4  # so that six sources are two launches
with launch.recording() as forms:
    mix(1, 1, (1,), 5)
    mix(1, 1, (), 16, on_prior=True, added=True)
    mix(6, 3, (4, 8), 48, heads=3, on_prior=True, added=True, continued=[True, False, True])
    mix(2, 5, (3,), 8, act="sigmoid", on_prior=True)
    mix(3, 2, (4, 8), 64, act="linear", crossed=True, dtype=torch.float32)
    mix(2, 3, (4, 8), 64, dtype=torch.float64, heads=2, on_prior=True)
    mix(2, 2, (4, 8), 64, dtype=torch.float16, continued=[True, True])
    score(1, (1,), 5)
    score(1, (3,), 64, groups=0, added=True)
    score(20, (4, 8), 64, heads=4, added=True)
    score(20, (4, 8), 64, heads=4, groups=4, dtype=torch.float16)
    score(20, (4, 8), 64, heads=2, groups=0, dtype=torch.float32)
    score(20, (4, 8), 32, heads=2, dtype=torch.float64)
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
for form in forms:
    source = ASTSource(form.function, dict(form.signature), dict(form.constexprs), form.attributes())
    options = backend.parse_options({"num_warps": form.num_warps, "num_stages": form.num_stages})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(options), backend.get_module_map()
    source.make_ir(target, options, functions, modules, context).verify()
print(len(forms), len({form.kernel for form in forms}))
"""


def test_every_form_is_accepted() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).resolve().parents[1],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(29 + 28), "9"]  # launches of mixes and of scores, of so many kernels
