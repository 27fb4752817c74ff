"""The phases of `phases` on CPU in C, one pass over memory each; what C does not cover goes to `eager`.

Covered: float32, one head. The arithmetic is that of `eager_phases`, where shapes and meanings are stated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from repro.ops import eager_phases
from repro.ops.native.build import load, unavailable

__all__ = [
    "DELTA_FROM_READ",
    "merge_backward",
    "merge_forward",
    "mix_backward",
    "mix_forward",
    "score_backward",
    "score_forward",
    "unavailable",
]

DELTA_FROM_READ = True

_ACTS = {"softmax": 0, "sigmoid": 1, "linear": 2}
#: Bytes of queries up to which a pass with all of them at each token keeps them in the second cache.
_QUERIES_AT_ONCE = 2**18
#: Sources or reads, and a quarter of the scalars of a token, that a pass holds on the stack of its thread.
_READS_AT_ONCE = 2**9
#: Elements of a tensor below which a second thread costs more than it does (as in torch).
_ONE_THREAD = 2**15


@cache
def _function(name: str, arguments: str) -> Any:
    """A function of the library; arguments: p pointer, i int, l int64, f float, after the thread count."""
    kinds = {"p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_int64, "f": ctypes.c_float}
    function = getattr(load(), name)
    function.argtypes, function.restype = [ctypes.c_int, *(kinds[kind] for kind in arguments)], None
    return function


def _covered(heads: int, *tensors: Tensor | None) -> bool:
    """Whether C computes this: numbers in memory, and not what torch.compile or another mode traces."""
    return (
        heads == 1
        and not torch.compiler.is_compiling()
        and torch._C._len_torch_dispatch_stack() == 0
        and all(x is None or _plain(x) for x in tensors)
    )


def _plain(x: Tensor) -> bool:
    """Float32 on CPU with a storage of its own: no subclass, no batch of vmap, no lazy negation."""
    return (
        type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and not x.is_neg()
        and not torch._C._functorch.is_batchedtensor(x)
        and not torch._C._functorch.is_legacy_batchedtensor(x)
    )


def _threads(tensor: Tensor) -> int:
    return 1 if tensor.numel() < _ONE_THREAD else torch.get_num_threads()


def _fit(queries: Tensor) -> bool:
    return len(queries) <= _READS_AT_ONCE and 4 * queries.numel() <= _QUERIES_AT_ONCE


def _small(num: int, reads: int) -> bool:
    return max(num, reads, num * reads // 4) <= _READS_AT_ONCE


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*map(_pointer, tensors))


def _rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _row(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def score_forward(
    source: Tensor, addend: Tensor | None, queries: Tensor, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """As `eager_score.score_forward`."""
    if not (_fit(queries) and _covered(heads, source, addend, queries)):
        return eager_phases.score_forward(source, addend, queries, heads, groups, eps)
    source, addend, queries = source.contiguous(), _row(addend), queries.contiguous()
    reads, width, lead = queries.shape[0], source.shape[-1], source.shape[:-1]
    total = None if addend is None else torch.empty_like(source)
    logits, inverse = source.new_empty(*lead, reads, 1), source.new_empty(*lead, 1) if groups else None
    _function("score_forward", "llifpppppp")(
        _threads(source),
        source.numel() // width,
        width,
        reads,
        eps,
        *map(_pointer, (source, addend, queries, total, logits, inverse)),
    )
    return logits, inverse, total


def score_backward(
    grad: Tensor,
    grad_in: Tensor | None,
    source: Tensor,
    queries: Tensor,
    logits: Tensor,
    inverse: Tensor | None,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """As `eager_score.score_backward`."""
    if not (_fit(queries) and _covered(heads, grad, grad_in, source, queries, logits, inverse)):
        return eager_phases.score_backward(grad, grad_in, source, queries, logits, inverse, heads, groups)
    grad, grad_in, source, queries = (
        grad.contiguous(),
        _row(grad_in),
        source.contiguous(),
        queries.contiguous(),
    )
    reads, width, threads = queries.shape[0], source.shape[-1], _threads(source)
    back, grad_queries = torch.empty_like(source), torch.empty_like(queries)
    scratch = source.new_empty(threads, 2, reads, width)
    _function("score_backward", "lli" + "p" * 9)(
        threads,
        source.numel() // width,
        width,
        reads,
        *map(_pointer, (grad, grad_in, source, queries, logits, inverse, back, grad_queries, scratch)),
    )
    return back, grad_queries


def mix_forward(
    sources: Sequence[Tensor],
    z: Tensor,
    priors: Sequence[Tensor],
    prior_lse: Tensor | None,
    act: str,
    dtype: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    """As `eager_mix.mix_forward`."""
    num, reads, heads = z.shape[0], z.shape[-2], z.shape[-1]
    kept = dtype in (None, torch.float32) and _small(num, reads)
    if not (kept and _covered(heads, *sources, z, *priors, prior_lse)):
        return eager_phases.mix_forward(sources, z, priors, prior_lse, act, dtype)
    sources, priors, prior_lse = _rows(sources), _rows(priors), _row(prior_lse)
    width, own = sources[0].shape[-1], z.movedim(0, -3).contiguous()
    mixed, lse = [torch.empty_like(sources[0]) for _ in range(reads)], z.new_empty(z.shape[1:])
    _function("mix_forward", "lliii" + "p" * 6)(
        _threads(sources[0]),
        sources[0].numel() // width,
        width,
        num,
        reads,
        _ACTS[act],
        _pointers(sources),
        own.data_ptr(),
        _pointers(priors) if priors else None,
        _pointer(prior_lse),
        _pointers(mixed),
        lse.data_ptr(),
    )
    return mixed, lse


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
    """As `eager_mix.mix_backward`."""
    num, reads, heads = z.shape[0], z.shape[-2], z.shape[-1]
    tensors = (*grads, lse, delta, *priors, prior_lse, grad_lse, *sources, z, *grads_in)
    if not _small(num, reads) or not _covered(heads, *tensors):
        return eager_phases.mix_backward(
            grads, lse, delta, continued, priors, prior_lse, grad_lse, sources, z, act, grads_in
        )
    grads, sources = _rows(grads), _rows(sources)
    lse, delta = lse.contiguous(), delta.contiguous()
    prior_lse, grad_lse = _row(prior_lse), _row(grad_lse)
    before, given = [_row(prior) for prior in priors] or [None] * reads, [_row(grad) for grad in grads_in]
    width, own = sources[0].shape[-1], z.movedim(0, -3).contiguous()
    back, grad_z, whole = [torch.empty_like(x) for x in sources], torch.empty_like(own), torch.empty_like(lse)
    _function("mix_backward", "lliii" + "p" * 13)(
        _threads(sources[0]),
        sources[0].numel() // width,
        width,
        num,
        reads,
        _ACTS[act],
        _pointers(grads),
        lse.data_ptr(),
        delta.data_ptr(),
        bytes(continued),
        _pointers(before),
        _pointer(prior_lse),
        _pointer(grad_lse),
        _pointers(sources),
        own.data_ptr(),
        _pointers(given),
        _pointers(back),
        grad_z.data_ptr(),
        whole.data_ptr(),
    )
    return back, grad_z.movedim(-3, 0), whole


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
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor]:
    """As `eager_merge.merge_forward`."""
    if prior_lse.numel() * output.shape[-1] != output.numel() or not _covered(
        heads, prior, prior_lse, partial, output, query
    ):
        return eager_phases.merge_forward(prior, prior_lse, partial, output, query, act, heads, groups, eps)
    prior, partial, output = prior.contiguous(), _row(partial), output.contiguous()
    prior_lse, query, width = prior_lse.contiguous(), query.contiguous(), output.shape[-1]
    mixed, total = torch.empty_like(output), None if partial is None else torch.empty_like(output)
    z, lse = torch.empty_like(prior_lse), torch.empty_like(prior_lse)
    inverse = torch.empty_like(z) if groups else None
    _function("merge_forward", "llifpp" + "p" * 8)(
        _threads(output),
        output.numel() // width,
        width,
        _ACTS[act],
        eps,
        *map(_pointer, (prior, prior_lse, partial, output, query, mixed, total, z, inverse, lse)),
    )
    return mixed, total, z, inverse, lse


def merge_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    prior: Tensor | None,
    total: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor | None,
    lse: Tensor,
    mixed: Tensor | None,
    act: str,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `eager_merge.merge_backward`."""
    if not _covered(heads, grad, grad_total, prior, total, query, z, inverse, lse, mixed):
        return eager_phases.merge_backward(
            grad, grad_total, prior, total, query, z, inverse, lse, mixed, act, heads, groups
        )
    grad, grad_total, prior, total = grad.contiguous(), _row(grad_total), _row(prior), total.contiguous()
    query, z, lse, mixed = query.contiguous(), z.contiguous(), lse.contiguous(), _row(mixed)
    inverse = _row(inverse)
    width, threads = total.shape[-1], _threads(total)
    back, delta, grad_query = torch.empty_like(total), torch.empty_like(z), torch.empty_like(query)
    given = (grad, grad_total, prior, total, query, z, inverse, lse, mixed)
    made = (back, delta, grad_query, total.new_empty(threads, 2, width))
    _function("merge_backward", "lli" + "p" * 13)(
        threads, total.numel() // width, width, _ACTS[act], *map(_pointer, (*given, *made))
    )
    return back, delta, grad_query
