"""Reads of a growing list of sources cut into phases (Algorithm 1), and how each phase is differentiated.

A source is scored once against every later read (`score`); a history of sources is mixed at once for all
reads of a group, on top of what an outer group has mixed already (`mix`); a read then takes in the partial
sum (`merge`). The arithmetic is a backend's; here is what is saved and which way gradients travel.

One message per read. With h = sum_i a_i v_i over *all* its sources, g the gradient of h, lse the logarithm
of the sum of exponentials and delta = g . h, source i and its logit receive

    a_i g   and   a_i (g . v_i - delta),   a_i = exp(z_i - lse),

whatever part of the read mixed it. So the last phase of a read computes (lse, delta) and hands them with g
to the phases before it, along the graph: the "gradient" of an intermediate history's lse is the lse of the
whole read, that of its third tensor, of no meaning in the forward pass, delta, and that of `mixed` g. No
gradient of an intermediate mix is ever formed. Which histories a later phase continues is said when they are
mixed; one that is a result of its own has no message, and its gradient is what it says.

Sources and partial sums are returned as they came and are to be used instead of the arguments: the next
phase's gradient then arrives as one tensor, to which a backend adds its own part in the same pass.

Letters: D width, H heads, Q reads of a group, R reads that score a source; "..." are any leading axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.ops.history import History, Norm
from repro.ops.precision import full_precision


def score(
    raw: ModuleType, source: Tensor, queries: Tensor, norm: Norm, addend: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Logits [..., R, H] of a source (plus addend) against queries [R, D], and the source to go on with."""
    return _Score.apply(raw, norm, source, addend, queries)


def mix(
    raw: ModuleType,
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    priors: Sequence[History] = (),
    *,
    act: str,
    dtype: torch.dtype | None,
    continued: Sequence[bool],
) -> tuple[list[History], list[Tensor]]:
    """Sources [..., D] by their logits [..., Q, H] on top of no or Q priors: Q histories, and the sources."""
    reads = logits[0].shape[-2]
    parts = [part for prior in priors for part in prior]
    call = _Call(raw, act, dtype, len(sources), reads, tuple(continued))
    outputs = _Mix.apply(call, *sources, *logits, *parts)
    histories = [
        History(outputs[3 * q], outputs[3 * q + 1], outputs[3 * q + 2] if continued[q] else None)
        for q in range(reads)
    ]
    return histories, list(outputs[3 * reads :])


def merge(
    raw: ModuleType,
    prior: History,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    norm: Norm,
    act: str,
) -> tuple[Tensor, Tensor]:
    """The read [..., D] of a history and the partial sum plus the latest output, and that partial sum."""
    return _Merge.apply(raw, act, norm, *prior, partial, output, query)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, raw: ModuleType, norm: Norm, source: Tensor, addend: Tensor | None, queries: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logits, inverse, total = raw.score_forward(source, addend, queries, *norm)
        total = source if addend is None else total
        ctx.raw, ctx.norm, ctx.added = raw, norm, addend is not None
        ctx.save_for_backward(total, queries, logits, inverse)
        return logits, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None) -> tuple[Tensor | None, ...]:
        total, queries, logits, inverse = ctx.saved_tensors
        grad_queries = None
        if grad is not None:
            with full_precision(total.device):
                grad_total, grad_queries = ctx.raw.score_backward(
                    grad, grad_total, total, queries, logits, inverse, ctx.norm.heads, ctx.norm.groups
                )
            grad_queries = grad_queries.to(queries.dtype)
        return None, None, grad_total, grad_total if ctx.added else None, grad_queries


class _Call(NamedTuple):
    """What a mix is called with besides tensors.  continued: reads that a later phase ends."""

    raw: ModuleType
    act: str
    dtype: torch.dtype | None
    num_sources: int
    num_reads: int
    continued: tuple[bool, ...]


class _Mix(torch.autograd.Function):
    """Takes sources, logits, (mixed, lse, message) of each prior; gives these of each read, and sources."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        # All in one tuple: where nothing needs a gradient, torch.compile takes a forward with as many named
        # parameters as there are arguments for one without ctx.
        call, *tensors = arguments
        ctx.set_materialize_grads(False)
        num = call.num_sources
        sources, logits, parts = tensors[:num], tensors[num : 2 * num], tensors[2 * num :]
        # [n, ..., Q, H], with the scalars of a token side by side in memory, as products per token need them.
        z = torch.stack(logits, -3).movedim(-3, 0)
        softmax = call.act == "softmax"
        prior_lse = torch.stack(parts[1::3], -2) if len(parts) > 0 and softmax else None
        if num == 1 and len(parts) == 0 and softmax:  # weight one: nothing to compute or to write
            only = sources[0] if call.dtype is None else sources[0].to(call.dtype)
            outputs, lse = [only.view_as(only) for _ in range(call.num_reads)], z[0]
        else:
            outputs, lse = call.raw.mix_forward(sources, z, list(parts[::3]), prior_lse, call.act, call.dtype)
        ctx.call, ctx.on_prior = call, len(parts) > 0
        # A read that ends here needs what it had before for its delta; others get theirs in a message.
        priors = parts[::3] if softmax else ()
        ended = [prior for prior, goes_on in zip(priors, call.continued, strict=False) if not goes_on]
        ctx.save_for_backward(z, lse, prior_lse, *sources, *ended)
        message, shape = z.new_zeros(()), (*z.shape[1:-2], z.shape[-1])
        histories = zip(outputs, lse.unbind(-2), (message.expand(shape) for _ in outputs), strict=True)
        return (*(part for history in histories for part in history), *sources)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        z, own_lse, prior_lse, *rest = ctx.saved_tensors
        call: _Call = ctx.call
        num, reads = call.num_sources, call.num_reads
        sources, ended = rest[:num], iter(rest[num:])
        with full_precision(z.device):
            upstream = [torch.zeros_like(sources[0]) if g is None else g for g in grads[: 3 * reads : 3]]
            priors = [None if goes_on else next(ended, None) for goes_on in call.continued]
            lse, delta, grad_lse = own_lse, torch.zeros_like(own_lse), None
            of_lse, messages = grads[1 : 3 * reads : 3], grads[2 : 3 * reads : 3]
            if any(call.continued):
                own = own_lse.unbind(-2)
                lse = _side_by_side(
                    [g if c else None for g, c in zip(of_lse, call.continued, strict=True)], own
                )
                # No change but for a read whose result is not used: its message is zero, exp(z) may overflow.
                lse = torch.maximum(lse, own_lse)
                delta = _side_by_side(messages, delta.unbind(-2))
            plain = [None if c else g for g, c in zip(of_lse, call.continued, strict=True)]
            if any(grad is not None for grad in plain):
                grad_lse = _side_by_side(plain, torch.zeros_like(own_lse).unbind(-2))
            grad_sources, grad_z, delta = call.raw.mix_backward(
                upstream,
                lse,
                delta,
                call.continued,
                priors,
                prior_lse,
                grad_lse,
                sources,
                z,
                call.act,
                list(grads[3 * reads :]),
            )
            back: list[Tensor | None] = [*grad_sources, *grad_z.unbind(0)]
            if ctx.on_prior:
                passed = zip(upstream, lse.unbind(-2), delta.unbind(-2), strict=True)
                back += [part for message in passed for part in message]
        return (None, *back)


def _side_by_side(given: Sequence[Tensor | None], otherwise: Sequence[Tensor]) -> Tensor:
    """Scalars [..., H] of Q reads as [..., Q, H]."""
    chosen = [b if a is None else a for a, b in zip(given, otherwise, strict=True)]
    return torch.stack(chosen, -2)


class _Merge(torch.autograd.Function):
    """Takes (mixed, lse, message) of the prior, partial sum or None, output and query; phase 2."""

    @staticmethod
    def forward(
        ctx: Any,
        raw: ModuleType,
        act: str,
        norm: Norm,
        prior: Tensor,
        prior_lse: Tensor,
        message: Tensor,
        partial: Tensor | None,
        output: Tensor,
        query: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        mixed, total, z, inverse, lse = raw.merge_forward(
            prior, prior_lse, partial, output, query, act, *norm
        )
        total = output if partial is None else total
        ctx.raw, ctx.act, ctx.norm, ctx.added = raw, act, norm, partial is not None
        # delta = g . read needs the read alone, which the next norm keeps anyway, and frees the prior; but
        # where the read was rounded, the gradient of a sharp query would be lost in the rounding.
        from_read = raw.DELTA_FROM_READ and mixed.dtype == lse.dtype
        kept = (None, mixed) if from_read else (prior, None)
        ctx.save_for_backward(*kept, total, query, z, inverse, lse)
        return mixed, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None) -> tuple[Tensor | None, ...]:
        prior, mixed, total, query, z, inverse, lse = ctx.saved_tensors
        if grad is None:
            return (None,) * 6 + (grad_total if ctx.added else None, grad_total, None)
        with full_precision(grad.device):
            heads, groups = ctx.norm.heads, ctx.norm.groups
            grad_total, delta, grad_query = ctx.raw.merge_backward(
                grad, grad_total, prior, total, query, z, inverse, lse, mixed, ctx.act, heads, groups
            )
        added = grad_total if ctx.added else None
        return None, None, None, grad, lse, delta, added, grad_total, grad_query.to(query.dtype)
