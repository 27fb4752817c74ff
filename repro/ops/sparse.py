"""Sparse alternatives to the softmax over few entries: sparsemax and 1.5-entmax, exactly, by sorting.

Both are alpha-entmax, p = argmax over distributions of p . z + H_alpha(p) (arXiv:1602.02068, 1905.05702):
p_i = [(alpha - 1) z_i - tau]_+^(1 / (alpha - 1)), with the threshold tau at which they sum to one; alpha -> 1
is the softmax. Entries at or below the threshold are exactly zero. With s_i = p_i^(2 - alpha) on the support
and 0 elsewhere, the Jacobian is diag(s) - s s^T / sum(s). tau follows from the support, which is a prefix of
the sorted entries. Entries are the first axis, as depth attention has its sources.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def sparsemax(logits: Tensor) -> Tensor:
    """alpha = 2, the Euclidean projection onto the simplex: [S, ...] -> [S, ...], sums to one over axis 0.

    In the logits' dtype. Differentiable once; ValueError where there is no entry or no float.
    """
    _check(logits)
    return _Sparsemax.apply(logits)


def entmax15(logits: Tensor) -> Tensor:
    """alpha = 1.5: [S, ...] -> [S, ...], between softmax and sparsemax; otherwise as `sparsemax`."""
    _check(logits)
    return _Entmax15.apply(logits)


def _check(logits: Tensor) -> None:
    if logits.ndim == 0 or logits.shape[0] == 0:
        raise ValueError(f"logits must be [S, ...] with S >= 1, got shape {tuple(logits.shape)}")
    if not logits.dtype.is_floating_point:
        raise ValueError(f"logits must be floating point, got {logits.dtype}")


def _sorted(z: Tensor) -> tuple[Tensor, Tensor]:
    """Entries in descending order, and 1, 2, ..., S to go with them; along the first axis."""
    # Sorted along the last axis in memory: along the first, each of few entries would be a stride apart.
    down = z.movedim(0, -1).contiguous().sort(-1, descending=True).values.movedim(-1, 0)
    counts = torch.arange(1, len(z) + 1, dtype=z.dtype, device=z.device)
    return down, counts.view(-1, *(1 for _ in z.shape[1:]))


def _at(values: Tensor, support: Tensor) -> Tensor:
    """The value of the largest prefix in the support, [1, ...]; support [S, ...] is true on a prefix."""
    return values.gather(0, support.sum(0, keepdim=True) - 1)


class _Sparsemax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        # Shifted by the largest: a common shift changes nothing, and sums of a support stay near one.
        z = logits - logits.amax(0, keepdim=True)
        down, counts = _sorted(z)
        thresholds = (down.cumsum(0) - 1) / counts
        p = (z - _at(thresholds, down > thresholds)).clamp_(min=0)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (p,) = ctx.saved_tensors
        return _pullback(grads[0], (p > 0).to(p.dtype))


class _Entmax15(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        z = (logits - logits.amax(0, keepdim=True)) / 2
        down, counts = _sorted(z)
        # sum over k entries of (z - tau)^2 = 1: tau is their mean less the root of what variance leaves.
        mean = down.cumsum(0) / counts
        variance = down.square().cumsum(0) / counts - mean.square()
        rest = (1 / counts - variance).clamp_(min=0)
        thresholds = mean - rest.sqrt_()
        root = (z - _at(thresholds, down > thresholds)).clamp_(min=0)
        ctx.save_for_backward(root)
        return root.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        return _pullback(grads[0], root)


def _pullback(grad: Tensor, s: Tensor) -> Tensor:
    """s (g - s . g / sum(s)), the Jacobian times a vector."""
    scaled = s * grad
    return scaled.addcmul_(s, scaled.sum(0, keepdim=True) / s.sum(0, keepdim=True), value=-1)
