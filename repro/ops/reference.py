"""The definition of depth attention (Eqs. 2 to 6, Algorithm 1), plain and differentiated by autograd.

Slow and memory-hungry on purpose: in float64 this is the oracle that every other backend is held to.
Letters: S sources, D width, H heads, Q queries of one call, R queries that score one source; "..." are any
leading axes. Everything is computed in float32, or in the inputs' type where that is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Stats(NamedTuple):
    """What Algorithm 1 keeps of a set of sources: numerator, largest logit, scaled sum.

    o: [Q, ..., D], sum of exp(logit - m) times the source.  m: [Q, H, ...], the largest logit.
    l: [Q, H, ...], sum of exp(logit - m); at a zero query it is the number of sources.
    """

    o: Tensor
    m: Tensor
    l: Tensor


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float32, or the widest type among the inputs where that is wider."""
    dtype = torch.float32
    for tensor in tensors:
        if tensor is not None:
            dtype = torch.promote_types(dtype, tensor.dtype)
    return dtype


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[..., D] -> [..., H, D / H]."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads))


def fold(query: Tensor, key_weight: Tensor | None) -> Tensor:
    """Query times key gain: the gain multiplies the key, so the logit sees only their product."""
    dtype = compute_dtype(query, key_weight)
    return query.to(dtype) if key_weight is None else query.to(dtype) * key_weight.to(dtype)


def keys(source: Tensor, *, key_norm: bool, heads: int, head_norm: bool, eps: float) -> Tensor:
    """[..., D] -> [..., H, D / H]: RMSNorm without gain (mean over the width, eps inside the root)."""
    groups = split_heads(source, heads)
    if not key_norm:
        return groups
    over = groups if head_norm else source.unsqueeze(-2)
    return groups * torch.rsqrt(over.square().mean(-1, keepdim=True) + eps)


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
    """One read: sources [..., D] and a query [D] or [..., D] -> mixed [..., D], weights [S, H, ...]."""
    dtype = compute_dtype(*sources, query, key_weight)
    folded = split_heads(fold(query, key_weight).to(dtype), heads)
    values = [source.to(dtype) for source in sources]
    norm: dict[str, Any] = {"key_norm": key_norm, "heads": heads, "head_norm": head_norm, "eps": eps}
    logits = torch.stack([(keys(value, **norm) * folded).sum(-1) for value in values])  # [S, ..., H]
    if act == "softmax":
        weights = torch.softmax(logits, 0)
    else:
        weights = torch.sigmoid(logits)
        if act == "sigmoid_normalized":
            weights = weights / weights.sum(0)
    groups = torch.stack([split_heads(value, heads) for value in values])
    mixed = (weights.unsqueeze(-1) * groups).sum(0).flatten(-2)
    return mixed.to(sources[0].dtype), weights.movedim(-1, 1)


def score_source(
    source: Tensor, queries: Tensor, *, key_norm: bool, heads: int, head_norm: bool, eps: float
) -> Tensor:
    """Logits of one source [..., D] against R queries [R, D] with their gains folded in -> [..., R, H]."""
    dtype = compute_dtype(source, queries)
    key = keys(source.to(dtype), key_norm=key_norm, heads=heads, head_norm=head_norm, eps=eps)
    return torch.einsum("...hd,rhd->...rh", key, split_heads(queries.to(dtype), heads))


def mix_scored(
    sources: Sequence[Tensor], logits: Sequence[Tensor], *, act: str, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Mix sources [..., D] by given logits, each [..., Q, H] -> mixed [..., Q, D], lse [..., Q, H]."""
    wide = compute_dtype(*sources, *logits)
    z = torch.stack(list(logits)).to(wide)
    weights = {"softmax": lambda: torch.softmax(z, 0), "sigmoid": z.sigmoid, "linear": lambda: z}[act]()
    groups = torch.stack([split_heads(source.to(wide), z.shape[-1]) for source in sources]).unsqueeze(-3)
    mixed = (weights.unsqueeze(-1) * groups).sum(0).flatten(-2)
    lse = torch.logsumexp(z, 0) if act == "softmax" else torch.full_like(z[0], torch.inf)
    return mixed.to(dtype or wide), lse


def attend_with_stats(
    sources: Sequence[Tensor],
    queries: Tensor,
    *,
    key_weight: Tensor | None,
    key_norm: bool,
    heads: int,
    head_norm: bool,
    eps: float,
) -> Stats:
    """Algorithm 1, line 3: Q queries over the same sources, kept as numerator, maximum and scaled sum."""
    folded = fold(queries, key_weight)
    norm: dict[str, Any] = {"key_norm": key_norm, "heads": heads, "head_norm": head_norm, "eps": eps}
    z = torch.stack([score_source(source, folded, **norm) for source in sources])  # [S, ..., Q, H]
    m = z.amax(0)
    e = torch.exp(z - m)
    o, _ = mix_scored(sources, e.unbind(0), act="linear", dtype=None)
    return stats_layout(o, m, e.sum(0))


def stats_layout(o: Tensor, m: Tensor, l: Tensor) -> Stats:
    """[..., Q, D] and [..., Q, H] -> the public layout with queries and heads first."""
    return Stats(o.movedim(-2, 0), m.movedim((-2, -1), (0, 1)), l.movedim((-2, -1), (0, 1)))


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Exact online-softmax merge of two disjoint source sets (Algorithm 1, line 12)."""
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


def log_sigmoid(logits: Tensor) -> Tensor:
    """Softmax over these is the sigmoid divided by its sum, so one merge serves both."""
    return F.logsigmoid(logits)
