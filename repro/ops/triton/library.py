"""One read as an operator of torch (`torch.ops.attnres`): shapes for tracing, derivative, operation counts.

Operators are opaque to `torch.compile`, which sees shapes only, so a graph stays whole around them.
`read` is differentiable, in `mixed`, `z` and `lse`; the parts of longer reads are differentiated where
their phases meet (`repro.ops.phases`). Autocast leaves operators alone: inputs enter as they are, the
arithmetic is in float32 or wider, and a mixed stream has the dtype of its sources.

Operation counts are 2 D for each multiply-add of a source (score, square, weighted sum) and leave out
scalars, rescaling and exponentials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from repro.ops.history import key_groups
from repro.ops.reference import compute_dtype, fold, log_sigmoid
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward as gradients


@torch.library.custom_op(
    "attnres::read",
    mutates_args=(),
    schema="(Tensor[] sources, Tensor query, str act, int heads, int groups, float eps)"
    " -> (Tensor mixed, Tensor z, Tensor inverse, Tensor lse)",
)
def read(
    sources: Sequence[Tensor], query: Tensor, act: str, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`read_forward` of read.py."""
    return read_forward(sources, query, act, heads, groups, eps)


@read.register_fake
def _(
    sources: Sequence[Tensor], query: Tensor, act: str, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, num, wide = sources[0], len(sources), compute_dtype(sources[0], query)
    lead = first.shape[:-1]
    return (
        first.new_empty(first.shape),
        first.new_empty((num, *lead, heads), dtype=wide),
        first.new_empty((num, *lead, groups), dtype=wide),
        first.new_empty((*lead, heads), dtype=wide),
    )


@torch.library.custom_op(
    "attnres::read_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor? grad_z, Tensor? grad_lse, Tensor mixed, Tensor[] sources, Tensor query,"
    " Tensor z, Tensor inverse, Tensor lse, str act, int heads, int groups) -> (Tensor[], Tensor)",
)
def read_backward(
    grad: Tensor,
    grad_z: Tensor | None,
    grad_lse: Tensor | None,
    mixed: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    act: str,
    heads: int,
    groups: int,
) -> tuple[list[Tensor], Tensor]:
    """`read_backward` of read_backward.py, by gradients of logits and log-sum-exp."""
    saved = (mixed, sources, query, z, inverse, lse)
    return gradients(grad, None, *saved, act, heads, groups, grad_z=grad_z, grad_lse=grad_lse)


@read_backward.register_fake
def _(
    grad: Tensor,
    grad_z: Tensor | None,
    grad_lse: Tensor | None,
    mixed: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    act: str,
    heads: int,
    groups: int,
) -> tuple[list[Tensor], Tensor]:
    grads = [source.new_empty(source.shape) for source in sources]
    return grads, query.new_empty(query.shape, dtype=z.dtype)


def _save_read(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    sources, query, ctx.act, ctx.heads, ctx.groups, _ = inputs
    mixed, z, inverse, lse = output
    ctx.mark_non_differentiable(inverse)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(query, mixed, z, inverse, lse, *sources)


def _differentiate_read(
    ctx: Any, grad: Tensor | None, grad_z: Tensor | None, grad_inverse: None, grad_lse: Tensor | None
) -> tuple[Any, ...]:
    query, mixed, z, inverse, lse, *sources = ctx.saved_tensors
    if ctx.act == "sigmoid":
        grad_lse = None  # a constant
    if grad is None:
        grad = torch.zeros_like(mixed)
    options = (ctx.act, ctx.heads, ctx.groups)
    grads, grad_query = read_backward(
        grad, grad_z, grad_lse, mixed, sources, query, z, inverse, lse, *options
    )
    return grads, grad_query.to(query.dtype), None, None, None, None


read.register_autograd(_differentiate_read, setup_context=_save_read)


def depth_mix(
    sources: Sequence[Tensor],
    query: Tensor,
    *,
    key_weight: Tensor | None = None,
    key_norm: bool = True,
    act: str = "softmax",
    heads: int = 1,
    head_norm: bool = False,
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    """As `reference.depth_mix`, in one kernel."""
    groups = key_groups(key_norm, heads, head_norm)
    mixed, z, _, _ = read(list(sources), fold(query, key_weight), act, heads, groups, eps)
    if act == "sigmoid":
        weights = torch.sigmoid(z)
    else:
        weights = torch.softmax(z if act == "softmax" else log_sigmoid(z), 0)
    return mixed, weights.movedim(-1, 1)


@register_flop_formula(torch.ops.attnres.read)
def _(sources: Sequence[Any], query: Any, act: str, heads: int, groups: int, eps: float, **_: Any) -> int:
    return (6 if groups else 4) * len(sources) * math.prod(sources[0])


@register_flop_formula(torch.ops.attnres.read_backward)
def _(
    grad: Any,
    grad_z: Any,
    grad_lse: Any,
    mixed: Any,
    sources: Sequence[Any],
    query: Any,
    z: Any,
    inverse: Any,
    lse: Any,
    act: str,
    heads: int,
    groups: int,
    **_: Any,
) -> int:
    # Per source: g . v, a g, the query's part, the gradient of the query; the norm's part. Once: g . h.
    each = 10 if groups else 8
    return (each * len(sources) + (0 if act == "sigmoid" else 2)) * math.prod(sources[0])
