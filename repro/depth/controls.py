"""Negative controls: what other code calls AttnRes and the paper does not; each explains a result elsewhere.

Every class changes one thing of `AttnRes`, takes the same options, and breaks either the literal values of
Eq. 6 or the start as PreNorm (zero queries), or both; `tests/test_controls.py` says which.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.base import State
from repro.depth.phased import AttnResState
from repro.errors import ConfigError

OUTPUTS = ("sum", "partial")


class NoOutputRead(AttnRes):
    """The final norm sees no mix over depth: L queries, not L + 1.

    output: `sum` of the embedding and all sublayer outputs (default), or the latest `partial` sum alone
    (the whole last block where it is complete). Breaks the literals at the output read; with `partial` also
    the start as PreNorm.
    """

    output_read = False

    def __init__(self, num_sublayers: int, width: int, *, output: str = "sum", **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        if output not in OUTPUTS:
            raise ConfigError("arm.mixer.output", output, "one of " + ", ".join(OUTPUTS))
        self.output = output

    def finish(self, state: AttnResState) -> Tensor:
        return state.sources[-1] if self.output == "partial" else torch.stack(state.sources).sum(0)

    def source_columns(self, l: int) -> list[int]:
        return [] if l == self.num_sublayers else super().source_columns(l)

    def source_labels(self, l: int) -> list[str]:
        return [] if l == self.num_sublayers else super().source_labels(l)


class Cumulative(NoOutputRead):
    """Sources are running states h_0, h_1, ... instead of what each sublayer wrote, and no output read.

    Full only. Breaks the literals from the second source on, and the start as PreNorm.
    """

    def __init__(self, num_sublayers: int, width: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, output="partial", **options)
        if len(self.plan.ends) != num_sublayers:
            raise ConfigError("arm.mixer.block_size", options.get("block_size"), "1 for running states")

    def write(self, state: State, l: int, output: Tensor) -> AttnResState:
        return super().write(state, l, state.sources[-1] + output)


class ZeroPartial(AttnRes):
    """A zero tensor stands for the partial sum at the first sublayer of each block.

    Its logit is zero, so it takes weight from real sources and shrinks the read. Breaks the literals, first
    at the very first read; at zero queries only the scale changes, which the next norm removes.
    """

    executions = ("per_read",)

    def _sources(self, state: AttnResState, l: int) -> list[Tensor]:
        sources = super()._sources(state, l)
        if state.partial is None and l < self.num_sublayers:
            sources.append(torch.zeros_like(sources[0]))
        return sources

    def source_columns(self, l: int) -> list[int]:
        columns = super().source_columns(l)
        return columns + ([columns[-1] + 1] if self._is_block_start(l) else [])

    def source_labels(self, l: int) -> list[str]:
        return super().source_labels(l) + (["zero"] if self._is_block_start(l) else [])

    def _is_block_start(self, l: int) -> bool:
        return l < self.num_sublayers and self.plan.outputs_in_partial(l) == 0


class RandomQuery(AttnRes):
    """Pseudo-queries drawn from a normal of standard deviation 0.02 instead of zero.

    Breaks the start as PreNorm; given queries, it computes what AttnRes computes.
    """

    def __init__(self, num_sublayers: int, width: int, *, std: float = 0.02, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        name = "queries" if self.query == "learned" else "query_projections"
        self.normal_init[name] = std


class ScaledLogits(AttnRes):
    """Logits divided by the square root of the width, as in attention over tokens.

    Breaks the literals; at zero queries there is nothing to scale.
    """

    def _folded_queries(self) -> Tensor:
        return super()._folded_queries() / self.width**0.5

    def _projected_query(self, state: AttnResState, l: int, latest: Tensor) -> Tensor:
        return super()._projected_query(state, l, latest) / self.width**0.5
