"""Matrix products of activations with weights, by the faster of the libraries that torch brings for CPUs.

torch multiplies float32 matrices with MKL, whose fast paths are for Intel processors: on an AMD processor
with AVX-512 it reached 100 GFLOP/s a core where oneDNN, which torch uses for its fused modules, reached 235.
Which of the two is fixed by the processor, not measured, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@functools.cache
def matmul_library() -> str:
    """What multiplies float32 matrices on this CPU: onednn, or torch's own choice."""
    try:
        vendor = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "torch"
    fast = "AuthenticAMD" in vendor and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "onednn" if fast and torch.backends.mkldnn.is_available() else "torch"


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T: [..., K] and [N, K] -> [..., N], differentiable once or as often as torch's own."""
    return _Linear.apply(x, weight) if _by_onednn(x, weight) else F.linear(x, weight)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b^T of matrices [M, K] and [N, K], without a gradient of its own."""
    return _onednn(a, b) if _by_onednn(a, b) else torch.mm(a, b.T)


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return False
    return (
        a.device.type == "cpu"
        and a.dtype == b.dtype == torch.float32
        and matmul_library() == "onednn"
        and a.numel() > 0
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        flat, rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = _onednn(flat, weight.T).view(x.shape)
        if ctx.needs_input_grad[1]:
            grad_weight = transposed_product(flat, rows)
        return grad_x, grad_weight


def transposed_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b of [T, M] and [T, N] -> [M, N], summed over T; no gradient of its own."""
    if not _by_onednn(a, b):
        return a.T @ b
    # The first factor is copied to be contiguous: let it be the smaller one.
    return _onednn(a.T, b.T) if a.shape[1] <= b.shape[1] else _onednn(b.T, a.T).T
