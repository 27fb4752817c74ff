"""Depth attention as functions on a list of sources: tensors in, tensors out, one signature per operation.

`depth_mix` is one read of AttnRes (Eqs. 2 to 6). `attend_with_stats` and `merge_stats` are the two halves
of Algorithm 1. `score_source` and `mix_scored` split a read into its scores, which a learned query allows
to compute when a source is written, and its weighted sum. Letters: S sources, D width, H heads, Q and R
numbers of queries, "..." any leading axes (none included).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from repro.ops import eager, reference, stats
from repro.ops.precision import full_precision
from repro.ops.reference import log_sigmoid
from repro.ops.stats import Stats, normalise_stats

__all__ = [
    "ACTS",
    "BACKENDS",
    "Stats",
    "attend_with_stats",
    "depth_mix",
    "log_sigmoid",
    "merge_stats",
    "mix_scored",
    "normalise_stats",
    "score_source",
]

#: Name (`runtime.backend`) -> module with `depth_mix`, `score_source` and `mix_scored`.
BACKENDS: dict[str, ModuleType] = {"auto": eager, "eager": eager, "reference": reference}
ACTS = ("softmax", "sigmoid", "sigmoid_normalized")


def _backend(name: str) -> ModuleType:
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is not one of {', '.join(BACKENDS)}")
    return BACKENDS[name]


def _check_sources(sources: Sequence[Tensor]) -> Tensor:
    if isinstance(sources, Tensor) or len(sources) == 0:
        raise ValueError("sources must be a non-empty list of tensors [..., D]")
    first = sources[0]
    if first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"a source must be [..., D] with D >= 1, got shape {tuple(first.shape)}")
    if not first.dtype.is_floating_point:
        raise ValueError(f"sources must be floating point, got {first.dtype}")
    for i, source in enumerate(sources):
        if source.shape != first.shape:
            shapes = f"{tuple(source.shape)} and {tuple(first.shape)}"
            raise ValueError(f"sources must have one shape, source {i} and source 0 have {shapes}")
        if source.dtype != first.dtype:
            raise ValueError(f"sources must have one dtype, source {i} is {source.dtype}, not {first.dtype}")
        if source.device != first.device:
            raise ValueError(f"sources must be on one device, source {i} is on {source.device}")
    return first


def _check_like(name: str, tensor: Tensor, shapes: Sequence[tuple[int, ...]], first: Tensor) -> None:
    if tuple(tensor.shape) not in shapes:
        allowed = " or ".join(str(shape) for shape in shapes)
        raise ValueError(f"{name} must have shape {allowed}, got {tuple(tensor.shape)}")
    if not tensor.dtype.is_floating_point:
        raise ValueError(f"{name} must be floating point, got {tensor.dtype}")
    if tensor.device != first.device:
        raise ValueError(f"{name} is on {tensor.device}, the sources are on {first.device}")


def _check_options(width: int, heads: int, eps: float) -> None:
    if heads < 1 or width % heads:
        raise ValueError(f"heads must divide the width {width}, got {heads}")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")


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
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """One read: weights act(q . key(v_i)) over the sources, and the weighted sum of the raw sources.

    sources: list of S tensors [..., D], any strides, repeats allowed.  query: [D], or [..., D] where it
    depends on the input.  key_weight: [D], gain of the key.  key_norm: RMSNorm of the key, mean over the
    width (over each head's channels with head_norm), eps inside the root.  act: softmax, sigmoid, or
    sigmoid_normalized (divided by its sum).  heads: channel groups with weights of their own.
    Returns mixed [..., D] in the sources' dtype and weights [S, H, ...] in float32 or wider, both
    differentiable once in sources, query and key_weight. ValueError on anything else. Eqs. 2 to 4.
    """
    module = _backend(backend)
    first = _check_sources(sources)
    width = first.shape[-1]
    _check_like("query", query, [(width,), tuple(first.shape)], first)
    if key_weight is not None:
        _check_like("key_weight", key_weight, [(width,)], first)
    if act not in ACTS:
        raise ValueError(f"act {act!r} is not one of {', '.join(ACTS)}")
    _check_options(width, heads, eps)
    norm: dict[str, Any] = {"key_norm": key_norm, "heads": heads, "head_norm": head_norm, "eps": eps}
    with full_precision(first.device):
        return module.depth_mix(sources, query, key_weight=key_weight, act=act, **norm)


def attend_with_stats(
    sources: Sequence[Tensor],
    queries: Tensor,
    *,
    key_weight: Tensor | None = None,
    key_norm: bool = True,
    heads: int = 1,
    head_norm: bool = False,
    eps: float = 1e-8,
    backend: str = "auto",
) -> Stats:
    """Q reads of the same sources, kept as numerator, maximum and scaled sum (Algorithm 1, line 3).

    sources: list of [..., D].  queries, key_weight: [Q, D].  Returns `Stats`: o [Q, ..., D], m and l
    [Q, H, ...], in float32 or wider; o / l is the softmax read (`normalise_stats`). ValueError as in
    `depth_mix`.
    """
    module = _backend(backend)
    first = _check_sources(sources)
    width = first.shape[-1]
    _check_like("queries", queries, [(queries.shape[0] if queries.dim() else 1, width)], first)
    if key_weight is not None:
        _check_like("key_weight", key_weight, [tuple(queries.shape)], first)
    _check_options(width, heads, eps)
    norm: dict[str, Any] = {"key_norm": key_norm, "heads": heads, "head_norm": head_norm, "eps": eps}
    with full_precision(first.device):
        return stats.attend_with_stats(
            module.score_source, module.mix_scored, sources, queries, key_weight=key_weight, **norm
        )


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Statistics of the union of two disjoint source sets, exactly (Algorithm 1, line 12).

    Both as returned by `attend_with_stats` for the same queries; ValueError where shapes differ.
    """
    for name, x, y in zip(Stats._fields, a, b, strict=True):
        if x.shape != y.shape:
            raise ValueError(f"statistics differ in the shape of {name}: {tuple(x.shape)}, {tuple(y.shape)}")
    return stats.merge_stats(a, b)


def score_source(
    source: Tensor,
    queries: Tensor,
    *,
    key_norm: bool = True,
    heads: int = 1,
    head_norm: bool = False,
    eps: float = 1e-8,
    backend: str = "auto",
) -> Tensor:
    """Logits of one source against R queries at once: [..., R, H], in float32 or wider.

    source: [..., D].  queries: [R, D], each multiplied by its key gain beforehand (only the product
    matters). ValueError as in `depth_mix`.
    """
    module = _backend(backend)
    first = _check_sources([source])
    width = first.shape[-1]
    _check_like("queries", queries, [(queries.shape[0] if queries.dim() else 1, width)], first)
    _check_options(width, heads, eps)
    with full_precision(first.device):
        return module.score_source(
            source, queries, key_norm=key_norm, heads=heads, head_norm=head_norm, eps=eps
        )


def mix_scored(
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    *,
    act: str = "softmax",
    dtype: torch.dtype | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Q weighted sums of the same sources by given logits.

    sources: list of [..., D].  logits: as many of [..., Q, H].  act: softmax, sigmoid, or linear (the
    logits are the weights).  Returns mixed [..., Q, D], in `dtype` (default: float32 or wider, so that
    the one cast can come last), and the logit [..., Q, H] under which a mixed tensor stands for its
    sources in a later mix: log-sum-exp for softmax, infinity (weight one) otherwise. ValueError where
    the shapes do not fit.
    """
    module = _backend(backend)
    if len(sources) == 0 or len(sources) != len(logits):
        raise ValueError(f"as many logits as sources are needed, got {len(logits)} for {len(sources)}")
    if act not in ("softmax", "sigmoid", "linear"):
        raise ValueError(f"act {act!r} is not one of softmax, sigmoid, linear")
    shape = sources[0].shape
    for source, logit in zip(sources, logits, strict=True):
        if source.shape != shape or logit.shape != logits[0].shape or logit.shape[:-2] != shape[:-1]:
            raise ValueError(
                f"sources must be [..., D] and logits [..., Q, H] with equal leading axes, got "
                f"{tuple(source.shape)} and {tuple(logit.shape)}"
            )
    _check_options(shape[-1], logits[0].shape[-1], 0.0)
    with full_precision(sources[0].device):
        return module.mix_scored(sources, logits, act=act, dtype=dtype)
