"""SwiGLU: down(silu(gate x) * up x), three bias-free matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from repro.depth.base import tagged
from repro.ops.matmul import linear


class SwiGLU(nn.Module):
    """Gated MLP, [..., D] -> [..., D]; gate and up are joined into one product."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.gate = tagged(torch.empty(mlp_width, width), "matrix")
        self.up = tagged(torch.empty(mlp_width, width), "matrix")
        self.output = tagged(torch.empty(width, mlp_width), "matrix")

    def forward(self, x: Tensor) -> Tensor:
        joined = linear(x, torch.cat([self.gate, self.up]))
        return linear(gated(joined), self.output)


def gated(joined: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2 F]."""
    if torch.compiler.is_compiling():  # fused there, and gradients written into slices are not traced
        gate, up = joined.chunk(2, dim=-1)
        return F.silu(gate) * up
    return _Gated.apply(joined)


class _Gated(torch.autograd.Function):
    """Its gradient is written in one tensor, not joined from two."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, dim=-1)
        activated = F.silu(gate)
        ctx.save_for_backward(joined, activated)
        return activated * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        joined, activated = ctx.saved_tensors
        gate, up = joined.chunk(2, dim=-1)
        back = torch.empty_like(joined)
        to_gate, to_up = back.chunk(2, dim=-1)
        torch.mul(grad, activated, out=to_up)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=to_gate)
        return back
