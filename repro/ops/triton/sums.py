# mypy: allow-untyped-defs
"""Second stage of a sum over all rows: the partial sums of a fixed number of programs, in a fixed order.

No atomics, so a gradient of a query or gain is the same to the last bit from run to run.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from repro.ops.triton import rows
from repro.ops.triton.launch import launch

#: Columns and partial sums of one step.
COLUMNS, STEP = 64, 64


@triton.jit
def sum_partials_kernel(p_partials, p_total, num, width, B: tl.constexpr, S: tl.constexpr):
    o_column = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    o_part = tl.arange(0, S)
    # [S, B]
    acc = tl.zeros([S, B], p_total.dtype.element_ty)
    for start in range(0, num, S):
        o_row = start + o_part
        mask = (o_row < num)[:, None] & (o_column < width)[None, :]
        offsets = (o_row.to(tl.int64) * width)[:, None] + o_column[None, :]
        acc += tl.load(p_partials + offsets, mask=mask, other=0.0)
    tl.store(p_total + o_column, tl.sum(acc, 0), mask=o_column < width)


def sum_partials(partials: Tensor) -> Tensor:
    """Partial sums [P, ...] -> [...], contiguous, in their own type."""
    total = rows.empty(partials.shape[1:], partials.dtype, partials)
    launch(
        sum_partials_kernel,
        (-(-total.numel() // COLUMNS),),
        4,
        p_partials=partials,
        p_total=total,
        num=partials.shape[0],
        width=total.numel(),
        B=COLUMNS,
        S=STEP,
    )
    return total
