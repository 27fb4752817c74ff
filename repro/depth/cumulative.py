"""Cumulative-state AttnRes as the earlier code of the Delta-AttnRes authors has it (arXiv:2605.18855).

That code presents it as AttnRes; the paper's sources are what each sublayer wrote. Its `full` mode keeps the
list of running states h_0, h_1, ..., h_l and mixes the list and, once more, the running state h_l itself.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from repro.depth.controls import Cumulative
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.phased import AttnResState
from repro.errors import ConfigError


class CumulativeAttnRes(Cumulative):
    """Softmax over running states with the newest state counted twice, and no output read.

    Counting a source twice adds log 2 to its logit. The recency bias b that the code adds to the second copy
    is zero, as its trainers set it (with b the newest state's logit would get log(1 + e^b)). The control
    `controls.Cumulative` counts every state once. Softmax only.
    """

    FACTS = SchemeFacts(
        system="Cumulative AttnRes",
        weight=DYNAMIC,
        source="[h[1]..h[l-1], h[l-1] again]",
        update="h[l] = h[l-1] + f(sum_i phi(w[l],k[i]) h[i] + phi(w[l],k[l-1]) h[l-1])",
        update_tex=r"h_l = h_{l-1} + f_{l-1}(\sum_{i<l} \alpha_{i \to l} h_i + \alpha_{l-1 \to l} h_{l-1})",
        links=("arXiv:2605.18855",),
    )

    def __init__(self, num_sublayers: int, width: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        if self.act != "softmax":
            raise ConfigError("arm.mixer.act", self.act, "softmax")

    def facts(self) -> SchemeFacts:
        return self.FACTS

    def _sources(self, state: AttnResState, l: int) -> list[Tensor]:
        sources = super()._sources(state, l)
        return [*sources, sources[-1]] if l > 0 else sources

    def record(self, l: int, weights: Tensor) -> None:
        """Weights of the states; two copies of one state are one source."""
        if self.tap is not None and len(weights) > self.num_sources(l):
            again, weights = weights[-1], weights[:-1].detach().clone()
            weights[-1] += again
        super().record(l, weights)

    def _add_source(self, state: AttnResState, output: Tensor, partial: Tensor | None) -> AttnResState:
        """A state is the newest for one read, its first, and its logit there stands for both copies."""
        state = super()._add_source(state, output, partial)
        first = len(state.scores) - 1
        scores = state.scores[-1]
        if first == 0 or not scores:
            return state
        start = min(scores)
        twice = scores[start].new_zeros(scores[start].shape[-2], 1)
        twice[0] = math.log(2)
        return state._replace(scores=(*state.scores[:-1], {**scores, start: scores[start] + twice}))
