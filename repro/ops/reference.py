"""The definition of depth attention (Eqs. 2 to 6), plain and differentiated by autograd.

Slow and memory-hungry on purpose: in float64 this is the oracle that every other backend is held to.
Letters: S sources, D width, H heads, Q queries that mix, R queries that score one source; "..." are any
leading axes. Everything is computed in float32, or in the inputs' type where that is wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from repro.ops.history import History, Norm


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


def score(source: Tensor, queries: Tensor, norm: Norm, addend: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Logits [..., R, H] of a source, plus addend, against R queries with gains folded in; and the source."""
    source = source if addend is None else source + addend
    dtype = compute_dtype(source, queries)
    key = keys(
        source.to(dtype),
        key_norm=norm.groups > 0,
        heads=norm.heads,
        head_norm=norm.groups > 1,
        eps=norm.eps,
    )
    return torch.einsum("...hd,rhd->...rh", key, split_heads(queries.to(dtype), norm.heads)), source


def mix(
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    priors: Sequence[History] = (),
    *,
    act: str,
    dtype: torch.dtype | None,
    continued: Sequence[bool],
) -> tuple[list[History], list[Tensor]]:
    """Sources [..., D] by their logits [..., Q, H], a prior counting as one more source; and the sources."""
    wide = compute_dtype(*sources, *logits)
    z = torch.stack(list(logits)).to(wide)
    values = [source.to(wide) for source in sources]
    histories = []
    for q in range(z.shape[-2]):
        prior = [priors[q]] if priors else []
        own = (
            torch.cat([*(p.lse.unsqueeze(0) for p in prior), z[..., q, :]])
            if act == "softmax"
            else z[..., q, :]
        )
        weights = {
            "softmax": own.softmax,
            "sigmoid": lambda _, w=own: w.sigmoid(),
            "linear": lambda _, w=own: w,
        }[act](0)
        terms = [*(p.mixed.to(wide) for p in prior), *values]
        if prior and act != "softmax":
            weights = torch.cat([torch.ones_like(weights[:1]), weights])
        groups = torch.stack([split_heads(term, z.shape[-1]) for term in terms])
        mixed = (weights.unsqueeze(-1) * groups).sum(0).flatten(-2)
        lse = torch.logsumexp(own, 0) if act == "softmax" else torch.zeros_like(own[0])
        histories.append(History(mixed.to(dtype or wide), lse, lse if continued[q] else None))
    return histories, list(sources)


def merge(
    prior: History, partial: Tensor | None, output: Tensor, query: Tensor, norm: Norm, act: str
) -> tuple[Tensor, Tensor]:
    """The read of a history and the partial sum plus the latest output; and that partial sum."""
    logits, total = score(output, query.unsqueeze(0), norm, partial)
    histories, _ = mix([total], [logits], [prior], act=act, dtype=output.dtype, continued=[False])
    return histories[0].mixed, total


def log_sigmoid(logits: Tensor) -> Tensor:
    """Softmax over these is the sigmoid divided by its sum, so one merge serves both."""
    return F.logsigmoid(logits)
