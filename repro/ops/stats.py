"""Reads kept as statistics and merged later (Algorithm 1), from a backend's scores and weighted sums.

Letters: D width, H heads, Q queries; "..." are any leading axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from repro.ops.backends import Backend
from repro.ops.history import Norm
from repro.ops.reference import fold, split_heads


class Stats(NamedTuple):
    """What Algorithm 1 keeps of a set of sources: numerator, largest logit, scaled sum.

    o: [Q, ..., D], sum of exp(logit - m) times the source.  m: [Q, H, ...], the largest logit.
    l: [Q, H, ...], sum of exp(logit - m); at a zero query it is the number of sources.
    """

    o: Tensor
    m: Tensor
    l: Tensor


def attend_with_stats(
    backend: Backend, sources: Sequence[Tensor], queries: Tensor, norm: Norm, *, key_weight: Tensor | None
) -> Stats:
    """Line 3: Q queries over the same sources.

    The largest logit is differentiated like the rest, by autograd.
    """
    folded = fold(queries, key_weight)
    scored = [backend.score(source, folded, norm) for source in sources]
    z = torch.stack([logits for logits, _ in scored])  # [S, ..., Q, H]
    m = z.amax(0)
    e = torch.exp(z - m)
    values = [value for _, value in scored]
    plain = [False] * len(queries)
    histories, _ = backend.mix(values, e.unbind(0), act="linear", dtype=e.dtype, continued=plain)
    o = torch.stack([history.mixed for history in histories])
    # [..., Q, H] -> the public layout with queries and heads first.
    return Stats(o, m.movedim((-2, -1), (0, 1)), e.sum(0).movedim((-2, -1), (0, 1)))


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Exact online-softmax merge of two disjoint source sets (line 12)."""
    m = torch.maximum(a.m, b.m)
    scale_a, scale_b = torch.exp(a.m - m), torch.exp(b.m - m)
    heads = m.shape[1]

    def scaled(o: Tensor, scale: Tensor) -> Tensor:
        return (split_heads(o, heads) * scale.movedim(1, -1).unsqueeze(-1)).flatten(-2)

    o = scaled(a.o, scale_a) + scaled(b.o, scale_b)
    return Stats(o, m, a.l * scale_a + b.l * scale_b)


def normalise_stats(stats: Stats) -> Tensor:
    """h = o / l, per head: [Q, ..., D]."""
    return (split_heads(stats.o, stats.l.shape[1]) / stats.l.movedim(1, -1).unsqueeze(-1)).flatten(-2)
