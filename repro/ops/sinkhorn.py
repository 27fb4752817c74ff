"""Sinkhorn normalisation of small matrices, one per token (mHC: H_res = Sinkhorn(exp(logits))).

One iteration divides the columns by their sums and then the rows by theirs. Tokens are the last axis, so
that every half-step is one vectorised pass however small the matrices are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Nearly doubly stochastic matrices from logits [n, n, ...] (row, column, any token axes).

    Rows of the result sum to one up to rounding, columns as far as `iterations` brings them. An entry may be
    -inf, a whole column may not. First order gradients; only the logits are kept for the backward pass.
    """
    if logits.ndim < 2 or logits.shape[0] != logits.shape[1]:
        raise ValueError(f"sinkhorn needs square matrices on the first two axes, got {tuple(logits.shape)}")
    if iterations < 1:
        raise ValueError(f"sinkhorn needs at least one iteration, got {iterations}")
    return _Sinkhorn.apply(logits, iterations)


def _half_steps(logits: Tensor, iterations: int) -> list[Tensor]:
    """The matrix after each of the 2 * iterations normalisations; even entries have unit columns."""
    tiny = torch.finfo(logits.dtype).tiny
    # Dividing exp(logits) by its column sums is a softmax, which cannot overflow.
    steps = [logits.softmax(0)]
    for half_step in range(1, 2 * iterations):
        # A row may underflow to zero as a whole: it stays zero instead of becoming 0/0.
        total = steps[-1].sum(half_step % 2, keepdim=True).clamp_min_(tiny)
        steps.append(steps[-1] / total)
    return steps


class _Sinkhorn(torch.autograd.Function):
    """Carries the gradient with respect to log P: back through a normalisation it is g - P * sum(g)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.iterations = iterations
        return _half_steps(logits, iterations)[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        steps = _half_steps(ctx.saved_tensors[0], ctx.iterations)
        # In the layout of the steps: mixed layouts make every pass below ten times slower.
        grad = steps[-1] * grads[0].contiguous()
        for half_step in range(len(steps) - 1, -1, -1):
            grad.addcmul_(steps[half_step], grad.sum(half_step % 2, keepdim=True), value=-1)
        return grad, None
