"""The standard residual: each sublayer reads the sum of the embedding and all earlier outputs.

Baseline of every table (Table 5, first row): h_l = h_{l-1} + f_{l-1}(norm(h_{l-1})).
"""

from __future__ import annotations

from torch import Tensor

from repro.depth.base import State
from repro.depth.facts import FIXED, SchemeFacts
from repro.depth.single_state import SingleState


class PreNorm(SingleState):
    """Running sum; no parameters, state is the stream itself."""

    FACTS = SchemeFacts(
        system="Residual",
        weight=FIXED,
        source="h[l-1]",
        update="h[l] = h[l-1] + f(h[l-1])",
        update_tex=r"h_l = h_{l-1} + f_{l-1}(h_{l-1})",
        links=("arXiv:1512.03385",),
    )

    def write(self, state: State, l: int, output: Tensor) -> State:
        return (state[0] + output,)

    def flops_per_token(self) -> float:
        return float(self.num_sublayers * self.width)
