"""Depth attention as functions on a list of sources: tensors in, tensors out, one signature per operation.

`depth_mix` is one read of AttnRes (Eqs. 2 to 6). `attend_with_stats` and `merge_stats` are the two halves
of Algorithm 1 in the paper's own form. `score`, `mix` and `merge` cut a read into phases that share their
passes over memory: a source is scored once, when it is written, a history mixed once for several reads.
Letters: S sources, D width, H heads, Q and R numbers of queries, "..." any leading axes (none included).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repro.ops import stats
from repro.ops.backends import BACKENDS, SINGLE_READS, Backend, backend_for, pick
from repro.ops.history import History, Norm, key_groups
from repro.ops.packages import refusal
from repro.ops.precision import full_precision
from repro.ops.reference import log_sigmoid
from repro.ops.stats import Stats, normalise_stats

__all__ = [
    "ACTS",
    "BACKENDS",
    "SINGLE_READS",
    "Backend",
    "History",
    "Norm",
    "Stats",
    "attend_with_stats",
    "backend_for",
    "depth_mix",
    "key_normalisation",
    "log_sigmoid",
    "merge",
    "merge_stats",
    "mix",
    "normalise_stats",
    "pick",
    "refusal",
    "score",
]

ACTS = ("softmax", "sigmoid", "sigmoid_normalized")


def _check_sources(sources: Sequence[Tensor]) -> Tensor:
    if isinstance(sources, Tensor) or len(sources) == 0:
        raise ValueError("sources must be a non-empty list of tensors [..., D]")
    first = sources[0]
    if first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"a source must be [..., D] with D >= 1, got shape {tuple(first.shape)}")
    if not first.dtype.is_floating_point:
        raise ValueError(f"sources must be floating point, got {first.dtype}")
    inference = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    for i, source in enumerate(sources):
        if inference and source.requires_grad:
            raise ValueError(f"source {i} requires a gradient, which inference mode cannot give: detach it")
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
    differentiable once in sources, query and key_weight. Backends fla and liger compute what `refusal` lets
    through, in float32, and their weights carry no gradient. ValueError on anything else. Eqs. 2 to 4.
    """
    first = _check_sources(sources)
    module = backend_for(backend, first.device)
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
    first = _check_sources(sources)
    module = backend_for(backend, first.device)
    width = first.shape[-1]
    _check_like("queries", queries, [(queries.shape[0] if queries.dim() else 1, width)], first)
    if key_weight is not None:
        _check_like("key_weight", key_weight, [tuple(queries.shape)], first)
    _check_options(width, heads, eps)
    norm = key_normalisation(key_norm, heads, head_norm, eps)
    with full_precision(first.device):
        return stats.attend_with_stats(module, sources, queries, norm, key_weight=key_weight)


def merge_stats(a: Stats, b: Stats) -> Stats:
    """Statistics of the union of two disjoint source sets, exactly (Algorithm 1, line 12).

    Both as returned by `attend_with_stats` for the same queries; ValueError where shapes differ.
    """
    for name, x, y in zip(Stats._fields, a, b, strict=True):
        if x.shape != y.shape:
            raise ValueError(f"statistics differ in the shape of {name}: {tuple(x.shape)}, {tuple(y.shape)}")
    return stats.merge_stats(a, b)


def key_normalisation(key_norm: bool, heads: int, head_norm: bool, eps: float) -> Norm:
    """The options of `depth_mix` as the phases take them."""
    return Norm(heads, key_groups(key_norm, heads, head_norm), eps)


def _checked(norm: Norm | None) -> Norm:
    norm = norm or Norm()
    if norm.groups not in (0, 1, norm.heads):
        raise ValueError(f"groups must be 0, 1 or the {norm.heads} heads, got {norm.groups}")
    return norm


def score(
    source: Tensor,
    queries: Tensor,
    norm: Norm | None = None,
    *,
    addend: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Logits of one source against R queries at once, in float32 or wider, and the source to go on with.

    source: [..., D].  queries: [R, D], each multiplied by its key gain beforehand (only the product
    matters).  addend: [..., D], added to the source first (a partial sum and the output that completes it).
    Returns logits [..., R, H] and the source [..., D]. ValueError as in `depth_mix`.
    """
    norm = _checked(norm)
    first = _check_sources([source] if addend is None else [source, addend])
    width = first.shape[-1]
    _check_like("queries", queries, [(queries.shape[0] if queries.dim() else 1, width)], first)
    _check_options(width, norm.heads, norm.eps)
    found = backend_for(backend, first.device)
    with full_precision(first.device):
        return found.score(source, queries, norm, addend)


def mix(
    sources: Sequence[Tensor],
    logits: Sequence[Tensor],
    priors: Sequence[History] = (),
    *,
    act: str = "softmax",
    dtype: torch.dtype | None = None,
    continued: Sequence[bool] | None = None,
    backend: str = "auto",
) -> tuple[list[History], list[Tensor]]:
    """Q weighted sums of the same sources by given logits, each on top of its prior where there are priors.

    sources: list of [..., D].  logits: as many of [..., Q, H].  priors: none, or Q of them.  act: softmax,
    sigmoid, or linear (the logits are the weights).  dtype: of the mixes (default: float32 or wider under
    `reference` and `eager`, so that the one cast can come last; the sources' under `triton`).
    continued: for each read whether a later `mix` or `merge` takes it as its prior (default: none); its mix
    is then for that one use. Returns Q histories and the sources to go on with. ValueError where shapes do
    not fit, or where a prior was not mixed to be continued.
    """
    first = _check_sources(sources)
    if len(sources) != len(logits):
        raise ValueError(f"as many logits as sources are needed, got {len(logits)} for {len(sources)}")
    if act not in ("softmax", "sigmoid", "linear"):
        raise ValueError(f"act {act!r} is not one of softmax, sigmoid, linear")
    shape = first.shape
    for logit in logits:
        if logit.shape != logits[0].shape or logit.shape[:-2] != shape[:-1] or logit.dim() != len(shape) + 1:
            raise ValueError(
                f"sources must be [..., D] and logits [..., Q, H] with equal leading axes, got "
                f"{tuple(shape)} and {tuple(logit.shape)}"
            )
        if not logit.dtype.is_floating_point or logit.device != first.device:
            raise ValueError(
                f"logits must be floating point on {first.device}, got {logit.dtype}, {logit.device}"
            )
    reads, heads = logits[0].shape[-2:]
    if priors and len(priors) != reads:
        raise ValueError(f"no priors or one per read are needed, got {len(priors)} for {reads} reads")
    continued = [False] * reads if continued is None else list(continued)
    if len(continued) != reads:
        raise ValueError(f"continued must say yes or no for each of {reads} reads, got {len(continued)}")
    _check_priors(priors)
    for prior in priors:
        _check_like("prior.mixed", prior.mixed, [tuple(shape)], first)
        _check_like("prior.lse", prior.lse, [(*shape[:-1], heads)], first)
    _check_options(shape[-1], heads, 0.0)
    found = backend_for(backend, sources[0].device)
    with full_precision(sources[0].device):
        return found.mix(sources, logits, priors, act=act, dtype=dtype, continued=continued)


def _check_priors(priors: Sequence[History]) -> None:
    if any(prior.message is None for prior in priors):
        raise ValueError("a prior must come from mix(..., continued=[...]) with True for its read")


def merge(
    prior: History,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    norm: Norm | None = None,
    *,
    act: str = "softmax",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The read of a history and of the partial sum plus the latest sublayer output (Algorithm 1, phase 2).

    prior: of `mix`.  partial: [..., D] or None where the block has one output.  output: [..., D].  query:
    [D], times its key gain.  act: softmax or sigmoid.  Returns the read, in the output's dtype, and the
    partial sum to go on with. ValueError where the shapes do not fit.
    """
    norm = _checked(norm)
    first = _check_sources([output] if partial is None else [partial, output])
    width = first.shape[-1]
    _check_like("query", query, [(width,)], first)
    _check_like("prior.mixed", prior.mixed, [tuple(first.shape)], first)
    _check_like("prior.lse", prior.lse, [(*first.shape[:-1], norm.heads)], first)
    _check_priors([prior])
    if act not in ("softmax", "sigmoid"):
        raise ValueError(f"act {act!r} is not one of softmax, sigmoid")
    _check_options(width, norm.heads, norm.eps)
    found = backend_for(backend, first.device)
    with full_precision(first.device):
        return found.merge(prior, partial, output, query, norm, act)
