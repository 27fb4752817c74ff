"""Every Triton operation at the sizes of large models: time, and the bytes and operations that it needs.

Bytes are streams of the traffic accounts (README.md beside the kernels): activations [tokens, D] read and
written, each once; scalars per token and parameters are left out, so a share of the bandwidth is not
flattered. Operations are counted as for `FlopCounterMode`; those of scores run on matrix units, as products
of the parts of bfloat16 that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from repro.bench.gpu_data import Draw
from repro.bench.roofline import timing
from repro.bench.supervised import Row
from repro.ops.triton.merge import merge_forward
from repro.ops.triton.merge_backward import merge_backward
from repro.ops.triton.mix import mix_forward
from repro.ops.triton.mix_backward import mix_backward
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward
from repro.ops.triton.score import score_forward
from repro.ops.triton.score_backward import score_backward

EPS = 1e-8


class Operation(NamedTuple):
    """Both directions of one operation on inputs of one size.

    backward: of what forward returned.  streams: activations read and written, forward and backward.
    flops: per element of an activation, forward and backward.  matrix: whether matrix units do them.
    """

    forward: Callable[[], Any]
    backward: Callable[[Any], Any]
    streams: tuple[int, int]
    flops: tuple[int, int]
    matrix: bool = False


def read(draw: Draw, num: int) -> Operation:
    sources, query, grad = draw.streams(num), draw.query(), draw.stream()

    def backward(saved: Any) -> Any:
        mixed, z, inverse, lse = saved
        return read_backward(grad, None, mixed, sources, query, z, inverse, lse, "softmax", 1, 1)

    def forward() -> Any:
        return read_forward(sources, query, "softmax", 1, 1, EPS)

    # Backward: gradient, mixed and sources; the sources' gradients.
    return Operation(forward, backward, (num + 1, 2 * num + 2), (6 * num, 10 * num + 2))


def score(draw: Draw, num: int, queries: int) -> Operation:
    """A block closes: partial sum and last output, scored against the queries to come."""
    source, addend, vectors = draw.stream(), draw.stream(), draw.query(queries)
    grad_z, grad_in = draw.scalars(queries, 1), draw.stream()

    def backward(saved: Any) -> Any:
        z, inverse, total = saved
        return score_backward(grad_z, grad_in, total, vectors, z, inverse, 1, 1)

    # Three and five products of parts of bfloat16. The rate of TF32, used for float32, is not measured.
    narrow = draw.dtype == torch.bfloat16
    flops = (6 * queries, 10 * queries) if narrow else (0, 0)
    return Operation(
        lambda: score_forward(source, addend, vectors, 1, 1, EPS),
        backward,
        (3, 3),
        flops,
        matrix=narrow,
    )


def phase_1(draw: Draw, num: int, queries: int) -> Operation:
    """A history for all reads of a block, each continued by its phase 2."""
    sources, z = draw.streams(num), draw.logits(num, queries)
    grads, grads_in = draw.streams(queries), draw.streams(num)
    delta = draw.scalars(queries, 1)

    def backward(saved: Any) -> Any:
        message = (saved[1], delta, [True] * queries, [None] * queries, None, None)
        return mix_backward(grads, *message, sources, z, "softmax", grads_in)

    # Backward: gradients of reads, sources and what is added; what comes out.
    streams = (num + queries, 3 * num + queries)
    flops = (2 * num * queries, 4 * num * queries + num)
    return Operation(lambda: mix_forward(sources, z), backward, streams, flops)


def local_read(draw: Draw, num: int) -> Operation:
    """The local sources of one read on top of what it had before; the read ends."""
    sources, z, prior, prior_lse = draw.streams(num), draw.logits(num, 1), draw.stream(), draw.scalars(1, 1)
    grad, grads_in = draw.stream(), draw.streams(num)

    def backward(saved: Any) -> Any:
        message = (saved[1], saved[1], [False], [prior], prior_lse, None)
        return mix_backward([grad], *message, sources, z, "softmax", grads_in)

    flops = (2 * num + 2, 5 * num + 2)
    return Operation(
        lambda: mix_forward(sources, z, [prior], prior_lse), backward, (num + 2, 3 * num + 2), flops
    )


def merge(draw: Draw, num: int, norm: bool) -> Operation:
    """Phase 2, with the running partial sum, and with the sublayer's norm where asked."""
    prior, partial_sum, output, prior_lse = *draw.streams(3), draw.scalars(1)
    query, gain = draw.query(), draw.normal(draw.width) if norm else None
    grad, grad_total = draw.streams(2)
    options: dict[str, Any] = {"gain": gain, "norm_eps": EPS}

    def forward() -> Any:
        return merge_forward(prior, prior_lse, partial_sum, output, query, "softmax", 1, 1, EPS, **options)

    def backward(saved: Any) -> Any:
        mixed, total, z, inverse, lse = saved
        whole = (prior, total, query, z, inverse, lse, mixed)
        return merge_backward(grad, grad_total, *whole, "softmax", 1, 1, **options)

    # With the norm the gradient of the read itself is written too, for the history.
    return Operation(forward, backward, (5, 6 if norm else 5), (13, 27) if norm else (9, 13))


#: Operations that take a number of sources, and those that do not.
OF_SOURCES: dict[str, Callable[[Draw, int], Operation]] = {
    "read": read,
    "phase 1, 16 reads": partial(phase_1, queries=16),
    "local sources of a read": local_read,
}
OF_ROWS: dict[str, Callable[[Draw, int], Operation]] = {
    "score, 16 queries": partial(score, queries=16),
    "score, 128 queries": partial(score, queries=128),
    "merge": partial(merge, norm=False),
    "merge and norm": partial(merge, norm=True),
}


def operation(name: str, draw: Draw, num: int) -> Operation:
    return (OF_SOURCES | OF_ROWS)[name](draw, num)


def measure(
    name: str, device: str, dtype: str, tokens: int, width: int, num: int, repeats: int
) -> Iterator[Row]:
    """Time of both directions.  num: of sources, 0 where the operation takes none."""
    draw = Draw(device, dtype, (tokens,), width)
    found = operation(name, draw, num)
    saved = found.forward()
    for i, direction in enumerate(("forward", "backward")):
        work = found.forward if direction == "forward" else partial(found.backward, saved)
        yield timing(work, draw.device, repeats).row() | {
            "operation": name,
            "backend": "triton",
            "direction": direction,
            "dtype": dtype,
            "tokens": tokens,
            "width": width,
            "sources": num or None,
            "bytes": found.streams[i] * tokens * width * draw.dtype.itemsize,
            "flops": found.flops[i] * tokens * width,
            "units": "matrix" if found.matrix else "vector",
        }
