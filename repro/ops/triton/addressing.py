# mypy: allow-untyped-defs
"""Where kernels find rows of tensors that come as tuples of pointers and strides (see rows.py)."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl


@triton.jit
def row_start(row, inner_size, outer, inner, SPLIT: tl.constexpr):
    """Element at which each row of a tensor begins (see rows.py)."""
    if SPLIT:
        return (row // inner_size) * outer + (row % inner_size) * inner
    else:
        return row * inner


@triton.jit
def member(items, step, j: tl.constexpr, UNROLL: tl.constexpr):
    """Item step * UNROLL + j of a tuple, or the last of its kind: a loop index cannot index a tuple."""
    found = items[j]
    for k in tl.static_range(j + UNROLL, len(items), UNROLL):
        found = tl.where(step * UNROLL + j >= k, items[k], found)
    return found


@triton.jit
def shared(strides, i: tl.constexpr):
    """Stride of tensor i; tensors that have one in common pass it once (`compact`)."""
    return strides[i % len(strides)]


@triton.jit
def stride_of(strides, step, j: tl.constexpr, UNROLL: tl.constexpr):
    """Stride of tensor step * UNROLL + j."""
    if len(strides) == 1:
        return strides[0]
    else:
        return member(strides, step, j, UNROLL)


def compact(strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of all tensors, or the one that they share: fewer arguments of a launch."""
    return tuple(strides[:1]) if len(set(strides)) == 1 else tuple(strides)
