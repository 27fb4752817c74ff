"""Scores and mixes, forward and backward, as operators of torch; see library.py for the rules.

They carry the raw operations' names and arguments; derivatives are those of `repro.ops.phases`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from repro.ops.reference import compute_dtype
from repro.ops.triton.mix import mix_forward as run_mix
from repro.ops.triton.mix_backward import mix_backward as mix_gradients
from repro.ops.triton.score import score_forward as run_score
from repro.ops.triton.score_backward import score_backward as score_gradients


@torch.library.custom_op(
    "attnres::score",
    mutates_args=(),
    schema="(Tensor source, Tensor? addend, Tensor queries, int heads, int groups, float eps)"
    " -> (Tensor z, Tensor inverse, Tensor total)",
)
def score_forward(
    source: Tensor, addend: Tensor | None, queries: Tensor, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`score_forward` of score.py."""
    return run_score(source, addend, queries, heads, groups, eps)


@score_forward.register_fake
def _(
    source: Tensor, addend: Tensor | None, queries: Tensor, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    lead, wide = source.shape[:-1], compute_dtype(source, queries, addend)
    return (
        source.new_empty((*lead, queries.shape[0], heads), dtype=wide),
        source.new_empty((*lead, groups), dtype=wide),
        source.new_empty((0,) if addend is None else source.shape),
    )


@torch.library.custom_op(
    "attnres::score_backward",
    mutates_args=(),
    schema="(Tensor grad_z, Tensor? grad_in, Tensor source, Tensor queries, Tensor z, Tensor inverse,"
    " int heads, int groups) -> (Tensor grad_source, Tensor grad_queries)",
)
def score_backward(
    grad_z: Tensor,
    grad_in: Tensor | None,
    source: Tensor,
    queries: Tensor,
    z: Tensor,
    inverse: Tensor,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """`score_backward` of score_backward.py."""
    return score_gradients(grad_z, grad_in, source, queries, z, inverse, heads, groups)


@score_backward.register_fake
def _(
    grad_z: Tensor,
    grad_in: Tensor | None,
    source: Tensor,
    queries: Tensor,
    z: Tensor,
    inverse: Tensor,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor]:
    return source.new_empty(source.shape), queries.new_empty(queries.shape, dtype=z.dtype)


@torch.library.custom_op(
    "attnres::mix",
    mutates_args=(),
    schema="(Tensor[] sources, Tensor z, Tensor[] priors, Tensor? prior_lse, str act, ScalarType? dtype)"
    " -> (Tensor[] outputs, Tensor lse)",
)
def mix_forward(
    sources: Sequence[Tensor],
    z: Tensor,
    priors: Sequence[Tensor],
    prior_lse: Tensor | None,
    act: str,
    dtype: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    """`mix_forward` of mix.py."""
    return run_mix(sources, z, priors, prior_lse, act, dtype)


@mix_forward.register_fake
def _(
    sources: Sequence[Tensor],
    z: Tensor,
    priors: Sequence[Tensor],
    prior_lse: Tensor | None,
    act: str,
    dtype: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    first = sources[0]
    outputs = [first.new_empty(first.shape, dtype=dtype or first.dtype) for _ in range(z.shape[-2])]
    return outputs, z.new_empty(z.shape[1:], dtype=compute_dtype(*sources, z, *priors))


@torch.library.custom_op(
    "attnres::mix_backward",
    mutates_args=(),
    schema="(Tensor[] grads, Tensor lse, Tensor delta, bool[] continued, Tensor?[] priors, Tensor? prior_lse,"
    " Tensor? grad_lse, Tensor[] sources, Tensor z, str act, Tensor?[] grads_in)"
    " -> (Tensor[] grad_sources, Tensor grad_z, Tensor new_delta)",
)
def mix_backward(
    grads: Sequence[Tensor],
    lse: Tensor,
    delta: Tensor,
    continued: Sequence[bool],
    priors: Sequence[Tensor | None],
    prior_lse: Tensor | None,
    grad_lse: Tensor | None,
    sources: Sequence[Tensor],
    z: Tensor,
    act: str,
    grads_in: Sequence[Tensor | None],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """`mix_backward` of mix_backward.py."""
    whole = (lse, delta, continued, priors, prior_lse)
    return mix_gradients(grads, *whole, grad_lse, sources, z, act, grads_in)


@mix_backward.register_fake
def _(
    grads: Sequence[Tensor],
    lse: Tensor,
    delta: Tensor,
    continued: Sequence[bool],
    priors: Sequence[Tensor | None],
    prior_lse: Tensor | None,
    grad_lse: Tensor | None,
    sources: Sequence[Tensor],
    z: Tensor,
    act: str,
    grads_in: Sequence[Tensor | None],
) -> tuple[list[Tensor], Tensor, Tensor]:
    wide = compute_dtype(*sources, z, *grads)
    found = [source.new_empty(source.shape) for source in sources]
    return found, z.new_empty(z.shape, dtype=wide), z.new_empty(z.shape[1:], dtype=wide)


@register_flop_formula(torch.ops.attnres.score)
def _(source: Any, addend: Any, queries: Any, heads: int, groups: int, eps: float, **_: Any) -> int:
    # A query has R heads' channels in all, so heads change nothing. Squares, and the sum with the addend.
    each = 2 * queries[0] + (2 if groups else 0) + (0 if addend is None else 1)
    return each * math.prod(source)


@register_flop_formula(torch.ops.attnres.score_backward)
def _(
    grad_z: Any,
    grad_in: Any,
    source: Any,
    queries: Any,
    z: Any,
    inverse: Any,
    heads: int,
    groups: int,
    **_: Any,
) -> int:
    each = 4 * queries[0] + (2 if groups else 0) + (0 if grad_in is None else 1)
    return each * math.prod(source)


@register_flop_formula(torch.ops.attnres.mix)
def _(sources: Sequence[Any], z: Any, priors: Sequence[Any], *rest: Any, **_: Any) -> int:
    return 2 * (len(sources) * z[-2] + len(priors)) * math.prod(sources[0])


@register_flop_formula(torch.ops.attnres.mix_backward)
def _(
    grads: Sequence[Any],
    lse: Any,
    delta: Any,
    continued: Sequence[bool],
    priors: Sequence[Any],
    prior_lse: Any,
    grad_lse: Any,
    sources: Sequence[Any],
    z: Any,
    act: str,
    grads_in: Sequence[Any],
    **_: Any,
) -> int:
    # Per source and query: g . v and a g. Once per read that ends: g . prior; once per source: what is added.
    once = 2 * sum(x is not None for x in priors) if act == "softmax" else 0
    added = sum(x is not None for x in grads_in)
    return (4 * len(sources) * len(grads) + once + added) * math.prod(sources[0])
