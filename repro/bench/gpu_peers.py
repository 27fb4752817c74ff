"""The same reads by our kernels and by published ones, through `depth_mix`, gradients by autograd."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from repro import ops
from repro.bench.gpu_data import Draw
from repro.bench.roofline import timing
from repro.bench.supervised import Row, Skipped


def measure(
    backend: str, device: str, dtype: str, tokens: int, width: int, num: int, repeats: int
) -> Iterator[Row]:
    """Time of both directions of one read of `num` sources that are kept apart, as a model has them.

    All that a backend does with the list counts: Liger-Kernel's stack, and the weights that are returned.
    """
    try:
        ops.pick(backend, device)
    except ValueError as reason:
        raise Skipped(str(reason)) from None
    draw = Draw(device, dtype, (tokens,), width)
    leaves = [x.requires_grad_() for x in (*draw.streams(num), draw.query(), 1 + 0.1 * draw.query())]
    grad = draw.stream()

    def forward() -> torch.Tensor:
        *sources, query, gain = leaves
        return ops.depth_mix(sources, query, key_weight=gain, backend=backend)[0]

    mixed = forward()

    def backward() -> None:
        torch.autograd.grad(mixed, leaves, grad, retain_graph=True)

    size = tokens * width * draw.dtype.itemsize
    for direction, work, streams in (("forward", forward, num + 1), ("backward", backward, 2 * num + 2)):
        yield timing(work, draw.device, repeats).row() | {
            "operation": "read by depth_mix",
            "backend": backend,
            "direction": direction,
            "dtype": dtype,
            "tokens": tokens,
            "width": width,
            "sources": num,
            "bytes": streams * size,
        }
