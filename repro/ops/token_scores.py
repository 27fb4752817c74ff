"""Logits of several sources against queries that differ from token to token; backward written out.

Where a query is learned, `score` takes one source and all its readers; here a query is an activation, so the
reads of a group bring theirs, [..., R, D], to the history that they share. Letters as in the package;
gradients are of first order. Saved are references to sources and queries and scalars per source and token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.ops.eager import head_sums, inverse_rms, norm_pullback, spread
from repro.ops.history import Norm
from repro.ops.precision import full_precision
from repro.ops.reference import compute_dtype, split_heads


def token_scores(sources: Sequence[Tensor], queries: Tensor, norm: Norm) -> tuple[Tensor, ...]:
    """Logits [..., R, H] of each source [..., D] against queries [..., R, D], in float32 or wider.

    Queries have their key gains folded in.
    """
    with full_precision(queries.device):
        return _TokenScores.apply(queries, *norm, *sources)


def _raw(values: Sequence[Tensor], queries: Tensor, heads: int) -> list[Tensor]:
    """Products [..., R, H] of queries and each source, no norm."""
    if queries.shape[-2] == 1:  # a chain over few sources beats a batched product of vectors
        query = queries.squeeze(-2)
        return [head_sums(value * query, heads).unsqueeze(-2) for value in values]
    stack = torch.stack(list(values), -2)
    if heads == 1:
        return [*torch.matmul(queries, stack.mT).unsqueeze(-1).unbind(-2)]
    by_head = split_heads(queries, heads), split_heads(stack, heads)
    return [*torch.einsum("...rhd,...shd->...srh", *by_head).unbind(-3)]


class _TokenScores(torch.autograd.Function):
    """queries, heads, groups, eps, *sources -> a logit [..., R, H] per source."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        queries, heads, groups, eps, *sources = arguments
        wide = compute_dtype(queries, *sources)
        values = [source.to(wide) for source in sources]
        logits = _raw(values, queries.to(wide), heads)
        inverses: list[Tensor] = []
        if groups:
            inverses = [inverse_rms(value, groups, eps) for value in values]
            logits = [z * inverse.unsqueeze(-2) for z, inverse in zip(logits, inverses, strict=True)]
        ctx.heads, ctx.num_sources = heads, len(sources)
        ctx.save_for_backward(queries, *sources, *inverses, *logits)
        return tuple(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, *rest = ctx.saved_tensors
        n, heads = ctx.num_sources, ctx.heads
        sources, inverses, logits = rest[:n], rest[n:-n], rest[-n:]
        with full_precision(queries.device):
            wide = logits[0].dtype
            values, folded = [source.to(wide) for source in sources], queries.to(wide)
            raw = [g * i.unsqueeze(-2) for g, i in zip(grads, inverses, strict=True)] if inverses else grads
            grad_queries, back = _products(raw, values, folded, heads)
            for i, inverse in enumerate(inverses):
                norm_pullback(back[i], values[i], inverse, (grads[i] * logits[i]).sum(-2))
        found = [b.to(source.dtype) for b, source in zip(back, sources, strict=True)]
        return grad_queries.to(queries.dtype), None, None, None, *found


def _products(
    raw: Sequence[Tensor], values: Sequence[Tensor], queries: Tensor, heads: int
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the queries and of each source, of raw logits' gradients [..., R, H] per source."""
    width = queries.shape[-1]
    if queries.shape[-2] == 1:
        query = queries.squeeze(-2)
        weights = [spread(r.squeeze(-2), width) for r in raw]
        grad_query = values[0] * weights[0]
        for value, weight in zip(values[1:], weights[1:], strict=True):
            grad_query.addcmul_(value, weight)
        return grad_query.unsqueeze(-2), [query * weight for weight in weights]
    stack = torch.stack(list(values), -2)
    if heads == 1:
        joined = torch.cat([*raw], -1)  # [..., R, S]
        back = torch.matmul(joined.mT, queries)
        return torch.matmul(joined, stack), [part.contiguous() for part in back.unbind(-2)]
    joined = torch.stack([*raw], -3)  # [..., S, R, H]
    back = torch.einsum("...srh,...rhd->...shd", joined, split_heads(queries, heads)).flatten(-2)
    grad_queries = torch.einsum("...srh,...shd->...rhd", joined, split_heads(stack, heads)).flatten(-2)
    return grad_queries, [part.contiguous() for part in back.unbind(-2)]
