"""Tensors [..., D] as rows for a kernel: at most two strided leading axes, never a copy unless it needs one.

Row r of a tensor begins at (r // inner_size) * outer + (r % inner_size) * inner elements. One split of the
leading axes into an outer and an inner group serves all tensors of a call. Also here: block sizes and warps
by rule from width and heads, and the one place where kernels' outputs are allocated.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

#: Sources of one launch; more are chained through a carried mix (forward) or cut (backward).
MAX_SOURCES = 64
#: Lengths of a tuple of pointers, so that a few compiled forms serve all numbers of sources.
POINTERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 56, 64)
#: Rows that a grid can index, less a margin: a program that takes rows in turn looks one turn ahead.
MAX_ROWS = 2**31 - 1024
#: Programs that share a sum over all rows: fixed, so that the order of additions depends on no device.
NUM_PARTIALS = 512
#: Warps of a program: with more, a thread has too few registers for a row's share of several tiles.
MAX_WARPS = 16
#: Elements of one tile where rows are shorter than that.
TILE = 1024


class Rows(NamedTuple):
    """Tensors of one shape [..., *] seen as `num` rows, and the strides (in elements) of their two axes.

    split: whether two axes are needed; without it row r begins at r * inner.
    """

    tensors: tuple[Tensor, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    num: int
    inner_size: int
    split: bool


class Tile(NamedTuple):
    """Block of a kernel that holds whole rows: [rows, heads, channels], all powers of two, and its warps."""

    rows: int
    heads: int
    channels: int
    num_warps: int


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """Uninitialised output of a kernel on the device of `like`; tests fill it with NaN."""
    return torch.empty(tuple(shape), dtype=dtype, device=like.device)


def _merged(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Stride of axes seen as one, or None where they are not one strided axis."""
    axes = [(n, stride) for n, stride in zip(shape, strides, strict=True) if n != 1]
    for (_, stride), (n, below) in itertools.pairwise(axes):
        if stride != n * below:
            return None
    return axes[-1][1] if axes else 0


def _strides(tensor: Tensor, split: int) -> tuple[int, int] | None:
    """Outer and inner stride where the leading axes are cut before axis `split`, or None."""
    lead = tensor.dim() - 1
    outer = _merged(tensor.shape[:split], tensor.stride()[:split])
    inner = _merged(tensor.shape[split:lead], tensor.stride()[split:lead])
    return None if outer is None or inner is None else (outer, inner)


def check(name: str, tensors: Sequence[Tensor]) -> None:
    """ValueError where a kernel cannot read the tensors [..., D] in place: last axis, number of rows."""
    for tensor in tensors:
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(
                f"{name}: the last axis must be contiguous for backend triton, got stride {tensor.stride(-1)}"
            )
    num = math.prod(tensors[0].shape[:-1])
    if num > MAX_ROWS:
        raise ValueError(f"{name}: {num} rows are more than a grid can index ({MAX_ROWS})")


def as_rows(tensors: Sequence[Tensor]) -> Rows:
    """Tensors [..., D_i] of equal leading axes as rows with a contiguous last axis.

    A copy is made of a gradient whose last axis is not contiguous (as that of `sum` is), and of a tensor
    whose leading axes are more than two strided axes, or two that are cut elsewhere than most tensors'.
    """
    tensors = [t if t.shape[-1] == 1 or t.stride(-1) == 1 else t.contiguous() for t in tensors]
    shape = tensors[0].shape[:-1]
    num = math.prod(shape)
    # Fewest copies; a cut before the first axis leaves one axis, so it is tried first.
    found = [[_strides(tensor, split) for tensor in tensors] for split in range(max(len(shape), 1))]
    best = min(range(len(found)), key=lambda split: found[split].count(None))
    for i, strides in enumerate(found[best]):
        if strides is None:
            tensors[i] = tensors[i].contiguous()
            found[best][i] = _strides(tensors[i], best)
    pairs = [pair for pair in found[best] if pair is not None]
    inner_size = max(math.prod(shape[best:]), 1)
    return Rows(
        tuple(tensors),
        tuple(outer for outer, _ in pairs),
        tuple(inner for _, inner in pairs),
        num,
        inner_size,
        best > 0,
    )


def chunks(num_sources: int, most: int | None = None) -> list[slice]:
    """Sources cut into as few launches as `most` pointers allow, of sizes that differ by at most one."""
    num = -(-num_sources // (most or MAX_SOURCES))
    bounds = [round(i * num_sources / num) for i in range(num + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def padded(items: tuple[T, ...]) -> tuple[T, ...]:
    """One item for each source, followed by repeats (which a kernel leaves alone) up to one of `POINTERS`."""
    length = next(length for length in POINTERS if length >= len(items))
    return items + items[:1] * (length - len(items))


def strides(outer: tuple[int, ...], inner: tuple[int, ...]) -> tuple[Any, Any]:
    """Strides of several sources: one pair of integers where they agree, else tuples as long as `padded`."""
    if len(set(outer)) == len(set(inner)) == 1:
        return outer[0], inner[0]
    return padded(outer), padded(inner)


def row_tile(width: int, heads: int, *, per_thread: int = 16) -> Tile:
    """Whole rows in registers: one row per program where it is long, several where short.

    per_thread: elements of the tile that one thread holds (a power of two), which sets the warps.
    """
    h, c = next_power_of_2(heads), next_power_of_2(width // heads)
    rows = max(1, min(TILE // (h * c), 64))
    num_warps = rows * h * c // (32 * per_thread)
    return Tile(rows, h, c, max(1, min(next_power_of_2(num_warps), MAX_WARPS)))


def num_partials(num_rows: int, rows: int) -> int:
    """Programs that each sum a share of the rows, `rows` at a time."""
    return max(1, min(-(-num_rows // rows), NUM_PARTIALS))
