"""Every form of the kernels of a read and a merge that a call can ask for compiles for a GPU.

The interpreter is more lenient than the compiler: it lets a variable change its type in a branch. A process
of its own, since kernels are either interpreted or compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CODE = """
import itertools, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from repro.ops.triton import launch, rows
from repro.ops.triton.merge import merge_forward
from repro.ops.triton.merge_backward import merge_backward
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward

def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")

def read(num, lead, width, act="softmax", heads=1, groups=1, dtype=torch.bfloat16, per_token=False,
         crossed=False, scalars=False):
    wide = torch.promote_types(dtype, torch.float32)
    sources = [meta(*lead, width, dtype=dtype) for _ in range(num)]
    if crossed:
        sources[0] = meta(*lead[::-1], width, dtype=dtype).transpose(0, 1)
    query = meta(*(lead if per_token else ()), width, dtype=wide)
    mixed, z, inverse, lse = read_forward(sources, query, act, heads, groups, 1e-8)
    grads = {"grad_z": z, "grad_lse": None if act == "sigmoid" else lse} if scalars else {}
    read_backward(mixed, None, mixed, sources, query, z, inverse, lse, act, heads, groups, **grads)

def merge(width, act="softmax", heads=1, groups=1, partial=True, gain=False, dtype=torch.bfloat16):
    x, query = meta(4, 8, width, dtype=dtype), meta(width)
    norm = {"gain": query, "norm_eps": 1e-6} if gain else {}
    lse = meta(4, 8, heads)
    part = x if partial else None
    _, total, *saved = merge_forward(x, lse, part, x, query, act, heads, groups, 1e-8, **norm)
    merge_backward(x, part, x, x, query, *saved, x, act, heads, groups, **norm)

rows.MAX_SOURCES = 4  # so that six sources are two launches
with launch.recording() as forms:
    read(1, (3,), 5)
    read(1, (3,), 5, scalars=True)
    read(3, (4, 8), 64, act="sigmoid", heads=4, crossed=True, scalars=True)
    read(6, (4, 8), 64, act="sigmoid_normalized", heads=4, groups=4, per_token=True, scalars=True)
    read(6, (4, 8), 60, heads=3, groups=0, crossed=True, per_token=True)
    read(2, (4, 8), 64, dtype=torch.float16)
    read(2, (4, 8), 64, dtype=torch.float64, heads=2, act="sigmoid_normalized")
    merge(64, gain=True)
    merge(60, heads=3, groups=3, partial=False, gain=True)
    merge(64, act="sigmoid", heads=2, dtype=torch.float16, partial=False)
    merge(1, dtype=torch.float64)
for form in forms:
    source = ASTSource(form.function, dict(form.signature), dict(form.constexprs), form.attributes())
    options = {"num_warps": form.num_warps, "num_stages": form.num_stages}
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
print(len(forms))
"""


def test_every_form_compiles() -> None:
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
    assert int(done.stdout) == 21 + 14  # launches of the reads and of the merges, second stages included
