"""Mixing a growing list of sources by scalars that do not depend on the input.

What input-independent mixing (Table 4) and DenseFormer (Table 5) have in common: read r is
sum_i W[r, i] v_i over the sources 0..r, where the triangle W is learned. Since W is known before the first
source is written, the reads of a group need not be summed one by one: all that they take from earlier
groups is one matrix product, and only the sources of the group itself are added read by read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, State, tagged
from repro.depth.inputs import value_input
from repro.ops.precision import full_precision

#: Sources per group of `two_phase`: near the square root of the usual L, where both phases cost the same.
GROUP_SIZE = 8


class History(NamedTuple):
    """The sources written so far and what the reads of the open group take from earlier groups.

    weights: W, [R, R], fp32 or wider.  group_size: sources per group.  packed: finished groups, each
    [G, B, T, D].  recent: sources of the open group.  prior: for each read of the open group its sum over
    `packed` (empty in the first group).
    """

    weights: Tensor
    group_size: int
    packed: tuple[Tensor, ...]
    recent: tuple[Tensor, ...]
    prior: tuple[Tensor, ...]

    @property
    def num_sources(self) -> int:
        return len(self.packed) * self.group_size + len(self.recent)


def triangle_positions(num_reads: int) -> Tensor:
    """Rows and columns of the learned entries of W, [2, R (R + 1) / 2 - 1], row by row.

    Row 0 is not among them: a read of one source takes that source as it is.
    """
    rows, columns = torch.tril_indices(num_reads - 1, num_reads, offset=1)
    return torch.stack((rows + 1, columns))


def triangle(entries: Tensor, positions: Tensor, num_reads: int, fill: float) -> Tensor:
    """W [R, R] from its learned entries; the rest is `fill`, and W[0, 0] is 0 if fill is -inf, else 1."""
    full = entries.new_full((num_reads, num_reads), fill)
    full[0, 0] = 1.0 if fill == 0.0 else 0.0
    return full.index_put((positions[0], positions[1]), entries)


def start(weights: Tensor, source: Tensor, group_size: int) -> History:
    """History of one source, [B, T, D]."""
    return History(weights, group_size, (), (source,), ())


def append(history: History, source: Tensor) -> History:
    """History with one more source; a full group is packed when the next one opens."""
    weights, size, packed, recent, prior = history
    if len(recent) < size:
        return history._replace(recent=(*recent, source))
    packed = (*packed, torch.stack(recent).to(weights.dtype))
    first = len(packed) * size
    total: Tensor | None = None
    with full_precision(source.device):
        for k, group in enumerate(packed):
            block = weights[first : first + size, k * size : (k + 1) * size]
            flat = group.flatten(1)
            total = block @ flat if total is None else torch.addmm(total, block, flat)
    assert total is not None
    prior = total.view(total.shape[0], *source.shape).unbind(0)
    return History(weights, size, packed, (source,), prior)


def mixed(history: History, dtype: torch.dtype) -> Tensor:
    """The read over all sources so far, [B, T, D] in `dtype`; summed in the dtype of the weights."""
    read = history.num_sources - 1
    first = len(history.packed) * history.group_size
    prior = history.prior[read - first] if history.prior else None
    return _WeightedSum.apply(history.weights[read, first : read + 1], prior, *history.recent).to(dtype)


def weighted_sum(weights: Tensor, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """sum_i w_i v_i in `dtype`, from w [S]; summed in the dtype of the weights."""
    return _WeightedSum.apply(weights, None, *sources).to(dtype)


def weights_of(history: History) -> Tensor:
    """Weights of the read over all sources so far, [S, 1, B, T] (a view), for a tap."""
    read = history.num_sources - 1
    row = history.weights[read, : read + 1]
    return row[:, None, None, None].expand(-1, 1, *history.recent[0].shape[:-1])


class ScalarMixer(DepthMixer):
    """Base of both schemes: R reads, R (R + 1) / 2 - 1 learned scalars.

    Execution: "two_phase" (groups of reads share one matrix product, same numbers up to rounding) or
    "per_read". A subclass calls `add_scalars` in its constructor and `start_history` in `begin`.
    """

    executions = ("two_phase", "per_read")
    positions: Tensor

    def add_scalars(
        self,
        num_reads: int,
        initial: Callable[[Tensor, Tensor], Tensor],
        positions: Tensor | None = None,
    ) -> None:
        """Create the scalars; `initial` gives their values from their rows and columns in W.

        positions: rows and columns [2, ...] of what is learned, all of the triangle but row 0 unless given.
        """
        if positions is None:
            positions = triangle_positions(num_reads)
        self.num_reads = num_reads
        self.register_buffer("positions", positions, persistent=False)
        self.scalars = tagged(initial(*positions).to(torch.get_default_dtype()), "scalar")

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """W, [R, R]: row r weighs the sources of read r; zero above the diagonal."""
        return triangle(self.scalars.to(dtype), self.positions, self.num_reads, 0.0)

    @property
    def group_size(self) -> int:
        """Sources per group of a history."""
        return GROUP_SIZE if self.execution == "two_phase" else self.num_reads

    def start_history(self, embedding: Tensor) -> History:
        """The history before the first sublayer, in which the embedding is the only source."""
        weights = self.matrix(torch.promote_types(embedding.dtype, torch.float32))
        return start(weights, embedding, self.group_size)

    def finish(self, state: State) -> Tensor:
        return value_input(self.read(state, self.num_sublayers)[0])


class _WeightedSum(torch.autograd.Function):
    """prior + sum_i w_i v_i with no temporary per source; w [S], each v [..., D]; sums in w's dtype."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, prior: Tensor | None, *sources: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *sources)
        ctx.has_prior = prior is not None
        total = sources[0] * weights[0] if prior is None else torch.addcmul(prior, sources[0], weights[0])
        total = total.to(weights.dtype)
        for weight, source in zip(weights[1:].unbind(), sources[1:], strict=True):
            total.addcmul_(source, weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()
        weights, *sources = ctx.saved_tensors
        flat = grad.reshape(-1)
        of_weights = torch.stack([flat.dot(v.reshape(-1).to(flat.dtype)) for v in sources])
        of_sources = [(grad * w).to(v.dtype) for w, v in zip(weights.unbind(), sources, strict=True)]
        return of_weights, grad if ctx.has_prior else None, *of_sources
