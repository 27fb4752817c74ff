"""A query per token against a list of keys, head by head, and sums of a list of values by such weights.

For reads over depth whose query depends on the token and whose keys are not the values. Heads are groups of
neighbouring channels. Both functions go through the list in place: on CPUs, stacking the list for one batched
product moves more memory than the product itself, and small products per token do not pay.

Both return the list with their result. Where the next read goes on with what was returned, the gradients of a
key or value that many reads use are added up in one buffer, each read adding its own in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def head_scores(query: Tensor, keys: Sequence[Tensor], heads: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """<query, key_i> over the channels of each head, [S, ..., H], of tensors [..., D]; and the keys."""
    if torch.compiler.is_compiling():
        return torch.stack([_split(query * key, heads).sum(-1) for key in keys]), tuple(keys)
    scores, *passed = _HeadScores.apply(heads, query, *keys)
    return scores, tuple(passed)


def head_sum(weights: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """sum_i weights_i value_i, [..., D], of weights [S, ..., H] and values [..., D]; and the values."""
    if torch.compiler.is_compiling():
        parts = [_split(v, weights.shape[-1]) * w.unsqueeze(-1) for w, v in zip(weights, values, strict=True)]
        return sum(parts[1:], parts[0]).flatten(-2), tuple(values)
    total, *passed = _HeadSum.apply(weights, *values)
    return total, tuple(passed)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1))


def _added(later: Tensor | None, row: Tensor, x: Tensor) -> Tensor:
    """later + row * x, flat; row [..., H, 1], x [..., H, D / H], later [..., D]: ours alone, so in place."""
    if later is None:
        return (row * x).flatten(-2)
    later = later.contiguous()
    _split(later, x.shape[-2]).addcmul_(row, x)
    return later


class _HeadScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: int, query: Tensor, *keys: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(query, *keys)
        ctx.set_materialize_grads(False)
        ctx.heads = heads
        scores, product = query.new_empty(len(keys), *query.shape[:-1], heads), torch.empty_like(query)
        for row, key in zip(scores, keys, strict=True):
            torch.sum(_split(torch.mul(query, key, out=product), heads), -1, out=row)
        return (scores, *keys)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *later: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, None, *later
        query, *keys = (_split(x, ctx.heads) for x in ctx.saved_tensors)
        rows = grad.unsqueeze(-1).unbind(0)
        of_query = rows[0] * keys[0]
        for row, key in zip(rows[1:], keys[1:], strict=True):
            of_query.addcmul_(row, key)
        of_keys = [_added(sum_, row, query) for sum_, row in zip(later, rows, strict=True)]
        return None, of_query.flatten(-2), *of_keys


class _HeadSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(weights, *values)
        ctx.set_materialize_grads(False)
        rows, heads = weights.unsqueeze(-1).unbind(0), weights.shape[-1]
        total = rows[0] * _split(values[0], heads)
        for row, value in zip(rows[1:], values[1:], strict=True):
            total.addcmul_(row, _split(value, heads))
        return (total.flatten(-2), *values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *later: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return None, *later
        weights, *values = ctx.saved_tensors
        heads = weights.shape[-1]
        grad = _split(grad.contiguous(), heads)
        rows = weights.unsqueeze(-1).unbind(0)
        of_values = [_added(sum_, row, grad) for sum_, row in zip(later, rows, strict=True)]
        of_weights = None
        if ctx.needs_input_grad[0]:
            of_weights, product = torch.empty_like(weights), torch.empty_like(grad)
            for row, value in zip(of_weights, values, strict=True):
                torch.sum(torch.mul(grad, _split(value, heads), out=product), -1, out=row)
        return of_weights, *of_values
