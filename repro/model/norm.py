"""RMSNorm (Zhang and Sennrich): x / sqrt(mean(x^2) + eps) times a learned gain."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from repro.depth.base import tagged


class RMSNorm(nn.Module):
    """Normalises the last axis, [..., D] -> [..., D], in fp32 or wider.

    eps is added to the mean square. It is a confound of this paper, since averaging over depth shrinks
    the stream by the number of sources: keep it small (default: 1e-8).
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = tagged(torch.ones(width), "norm")
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16):
            return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)
        if x.device.type == "cpu" and x.dtype == self.weight.dtype and not torch.compiler.is_compiling():
            return _RMSNorm.apply(x, self.weight, self.eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """torch has no fused kernel for CPUs: its composite makes and keeps twice the temporaries."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        products = grad * x
        grad_weight = inverse.reshape(-1) @ products.reshape(-1, width)
        # d inverse / dx = - inverse^3 x / D; sums of products and not products with a vector, which run on
        # one thread.
        shrink = products.mul_(weight).sum(-1, keepdim=True).mul_(inverse).mul_(inverse).mul_(inverse)
        grad_x = torch.mul(grad, weight, out=products).mul_(inverse).addcmul_(x, shrink, value=-1.0 / width)
        return grad_x, grad_weight, None
