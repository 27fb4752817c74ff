"""RMSNorm (Zhang and Sennrich) as a function: x / sqrt(mean(x^2) + eps) times a gain.

What the decoder's sublayers and the norms of a residual scheme's own share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Normalises the last axis of x [..., D] in fp32 or wider, times gain [D]; in the type of x."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return F.rms_norm(x.float(), gain.shape, gain.float(), eps).to(x.dtype)
    if x.device.type == "cpu" and x.dtype == gain.dtype and not torch.compiler.is_compiling():
        return _RMSNorm.apply(x, gain, eps)
    return F.rms_norm(x, gain.shape, gain, eps)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of x [..., D]: [..., 1], in fp32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


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
