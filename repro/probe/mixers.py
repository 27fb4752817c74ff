"""Schemes with a source taken away or replaced, for one read or for a span of reads.

A *source* is named by its column in the depth-weight picture (`DepthMixer.source_columns`): 0 is the
embedding, and the partial sum of block n shares column n with the block it becomes. Without an intervention
these are the schemes they derive from, read by read. Letters as in `repro.depth.base`.

What a method does to source i of a read with weights a:

    remove      softmax over the other sources: a_j / (1 - a_i).  Raw sigmoid weights have no sum to restore.
    zero        value 0 at the weight a_i that the true source has; keys and weights stay as they are
    mean        value replaced by its mean over tokens, at the same weight
    random      value replaced by a random direction of the same norm, token by token, at the same weight
    equal_mass  source i stays; instead the other sources lose, in random order, as much weight as source i
                has on that token (or all they have), and the rest is scaled up: the control of `remove`

A read's only source is left alone by all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes, AttnResState
from repro.depth.base import State
from repro.depth.prenorm import PreNorm

REPLACEMENTS = ("zero", "mean", "random")
METHODS = ("remove", *REPLACEMENTS, "equal_mass")


@dataclass(frozen=True)
class Intervention:
    """Reads first..last (inclusive) see source `column` changed by `method`.

    means: read -> [D] for `mean`; direction: unit vectors [B, T, D] for `random`; order: in which
    `equal_mass`
    empties the other sources, a permutation of positions.
    """

    first: int
    last: int
    column: int
    method: str
    means: Mapping[int, Tensor] | None = None
    direction: Tensor | None = None
    order: tuple[int, ...] = ()

    def position(self, l: int, columns: list[int]) -> int | None:
        """Which of a read's sources is changed; None where none is."""
        inside = self.first <= l <= self.last and len(columns) > 1 and self.column in columns
        return columns.index(self.column) if inside else None

    def replacement(self, l: int, value: Tensor) -> Tensor:
        """What stands in the place of a value [B, T, D] of read l."""
        if self.method == "mean":
            assert self.means is not None
            return self.means[l].to(value.dtype).expand_as(value)
        if self.method == "random":
            assert self.direction is not None
            return self.direction.to(value.dtype) * value.norm(dim=-1, keepdim=True)
        return torch.zeros_like(value)


class ProbedAttnRes(AttnRes):
    """`AttnRes`, read by read. Set `interventions` between passes: each changes the given rows of the batch.

    removed_mass: of each intervention at its last changed read, the weight taken away, mean over tokens.
    """

    methods = METHODS
    interventions: Sequence[tuple[slice, Intervention]] = ()
    removed_mass: Mapping[int, float] = MappingProxyType({})
    _weights: Tensor | None = None

    def record(self, l: int, weights: Tensor) -> None:
        self._weights = weights.detach()
        super().record(l, weights)

    def sources_at(self, state: AttnResState, l: int) -> list[Tensor]:
        """The values that read l mixes, [B, T, D] each, in the order of `source_columns`."""
        return self._sources(state, l)

    def _mix_at_read(self, state: AttnResState, l: int) -> Tensor:
        mixed = super()._mix_at_read(state, l)
        columns = self.source_columns(l)
        for number, (rows, plan) in enumerate(self.interventions):
            position = plan.position(l, columns)
            if position is not None:
                assert self._weights is not None
                values = [source[rows] for source in self.sources_at(state, l)]
                mixed[rows], mass = self._changed(
                    plan, l, position, self._weights[:, :, rows], values, mixed[rows]
                )
                self.removed_mass = {**self.removed_mass, number: mass}
        return mixed

    def _changed(
        self, plan: Intervention, l: int, position: int, weights: Tensor, values: list[Tensor], mixed: Tensor
    ) -> tuple[Tensor, float]:
        """The mixture of these rows under a plan, and the weight taken away; weights are [S, H, B, T]."""
        if plan.method in REPLACEMENTS:
            change = plan.replacement(l, values[position]) - values[position]
            return mixed + _weighted(weights[position], change).to(mixed.dtype), 0.0
        changed = weights.clone()
        if plan.method == "remove":
            changed[position] = 0
        else:
            _take(changed, weights[position], [i for i in plan.order if i < len(values) and i != position])
        mass = float((weights - changed).sum(0).mean())
        if self.act != "sigmoid":  # raw sigmoid weights have no sum to restore
            total = changed.sum(0).clamp_min(torch.finfo(changed.dtype).tiny)
            changed = changed * (weights.sum(0) / total)
        parts = [_weighted(changed[i], value) for i, value in enumerate(values)]
        return sum(parts[1:], parts[0]).to(mixed.dtype), mass


class ProbedPreNorm(PreNorm):
    """`PreNorm` with its summands kept apart: a control without weights, in which every source has weight
    one.

    `remove` takes a summand out of the sum; `zero` would be the same.
    """

    methods = ("remove", "mean", "random")
    interventions: Sequence[tuple[slice, Intervention]] = ()
    removed_mass: Mapping[int, float] = MappingProxyType({})

    def begin(self, embedding: Tensor) -> State:
        return embedding, (embedding,)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        return self._changed(state, l), state

    def write(self, state: State, l: int, output: Tensor) -> State:
        return state[0] + output, (*state[1], output)

    def finish(self, state: State) -> Tensor:
        return self._changed(state, self.num_sublayers)

    def source_columns(self, l: int) -> list[int]:
        return list(range(l + 1))

    def sources_at(self, state: State, l: int) -> list[Tensor]:
        """The summands of read l, [B, T, D] each."""
        return list(state[1])

    def _changed(self, state: State, l: int) -> Tensor:
        stream, sources = state
        for rows, plan in self.interventions:
            position = plan.position(l, self.source_columns(l))
            if position is not None:
                stream = stream.clone() if stream is state[0] else stream
                value = sources[position][rows]
                stream[rows] += plan.replacement(l, value) - value
        return stream


#: target of an arm -> the same scheme with interventions
PROBED = {
    "repro.depth.attnres.AttnRes": "repro.probe.mixers.ProbedAttnRes",
    "repro.depth.prenorm.PreNorm": "repro.probe.mixers.ProbedPreNorm",
}


def _weighted(weights: Tensor, value: Tensor) -> Tensor:
    """Weights [H, B, T] times a value [B, T, D], each head its group of channels."""
    heads = weights.shape[0]
    groups = value.to(weights.dtype).unflatten(-1, (heads, value.shape[-1] // heads))
    return (weights.movedim(0, -1).unsqueeze(-1) * groups).flatten(-2)


def _take(weights: Tensor, mass: Tensor, order: list[int]) -> None:
    """Take `mass` [H, B, T] out of weights [S, H, B, T] in place, from one source after another."""
    for i in order:
        taken = torch.minimum(weights[i], mass)
        weights[i] -= taken
        mass = mass - taken
