"""The merge as an operator of torch, and the raw operations through it; see library.py for the rules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from repro.ops.reference import compute_dtype
from repro.ops.triton.merge import merge_forward as run
from repro.ops.triton.merge_backward import merge_backward as gradients


@torch.library.custom_op(
    "attnres::merge",
    mutates_args=(),
    schema="(Tensor prior, Tensor prior_lse, Tensor? partial, Tensor output, Tensor query, Tensor? gain,"
    " str act, int heads, int groups, float eps, float norm_eps)"
    " -> (Tensor mixed, Tensor total, Tensor z, Tensor inverse, Tensor lse)",
)
def merge_operator(
    prior: Tensor,
    prior_lse: Tensor,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    gain: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`merge_forward` of merge.py."""
    norm = (act, heads, groups, eps)
    return run(prior, prior_lse, partial, output, query, *norm, gain=gain, norm_eps=norm_eps)


@merge_operator.register_fake
def _(
    prior: Tensor,
    prior_lse: Tensor,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    gain: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    lead, wide = output.shape[:-1], compute_dtype(prior, output, query)
    return (
        output.new_empty(output.shape),
        output.new_empty((0,) if partial is None else output.shape),
        output.new_empty((*lead, heads), dtype=wide),
        output.new_empty((*lead, groups), dtype=wide),
        output.new_empty((*lead, heads), dtype=wide),
    )


@torch.library.custom_op(
    "attnres::merge_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor? grad_total, Tensor prior, Tensor p, Tensor query, Tensor z,"
    " Tensor inverse, Tensor lse, Tensor? mixed, Tensor? gain, str act, int heads, int groups,"
    " float norm_eps) -> Tensor[]",
)
def merge_backward_operator(
    grad: Tensor,
    grad_total: Tensor | None,
    prior: Tensor,
    p: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    mixed: Tensor | None,
    gain: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    norm_eps: float,
) -> list[Tensor]:
    """`merge_backward` of merge_backward.py: three tensors, or five where there is a gain."""
    saved = (prior, p, query, z, inverse, lse, mixed, act, heads, groups)
    return list(gradients(grad, grad_total, *saved, gain=gain, norm_eps=norm_eps))


@merge_backward_operator.register_fake
def _(
    grad: Tensor,
    grad_total: Tensor | None,
    prior: Tensor,
    p: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    mixed: Tensor | None,
    gain: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    norm_eps: float,
) -> list[Tensor]:
    found = [p.new_empty(p.shape), z.new_empty(z.shape), query.new_empty(query.shape, dtype=z.dtype)]
    if gain is not None:
        found += [query.new_empty(query.shape, dtype=z.dtype), p.new_empty(p.shape)]
    return found


def merge_forward(
    prior: Tensor,
    prior_lse: Tensor,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    act: str,
    heads: int,
    groups: int,
    eps: float,
    *,
    gain: Tensor | None = None,
    norm_eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As `merge_forward` of merge.py, through the operator."""
    return merge_operator(prior, prior_lse, partial, output, query, gain, act, heads, groups, eps, norm_eps)


def merge_backward(
    grad_h: Tensor,
    grad_total: Tensor | None,
    prior: Tensor,
    p: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    h: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    *,
    gain: Tensor | None = None,
    norm_eps: float = 0.0,
) -> tuple[Tensor, ...]:
    """As `merge_backward` of merge_backward.py, through the operator."""
    saved = (prior, p, query, z, inverse, lse, h)
    return tuple(merge_backward_operator(grad_h, grad_total, *saved, gain, act, heads, groups, norm_eps))


@register_flop_formula(torch.ops.attnres.merge)
def _(
    prior: Any, prior_lse: Any, partial: Any, output: Any, query: Any, gain: Any, *rest: Any, **_: Any
) -> int:
    groups = rest[2]
    # The running sum, score and square, two weighted sums; square and scaling of the next norm.
    each = (0 if partial is None else 1) + (4 if groups else 2) + 4 + (0 if gain is None else 4)
    return each * math.prod(output)


@register_flop_formula(torch.ops.attnres.merge_backward)
def _(
    grad: Any,
    grad_total: Any,
    prior: Any,
    p: Any,
    query: Any,
    z: Any,
    inverse: Any,
    lse: Any,
    mixed: Any,
    gain: Any,
    act: str,
    heads: int,
    groups: int,
    *rest: Any,
    **_: Any,
) -> int:
    each = (10 if groups else 8) + (0 if act == "sigmoid" else 2) + (0 if grad_total is None else 1)
    return (each + (0 if gain is None else 14)) * math.prod(p)
