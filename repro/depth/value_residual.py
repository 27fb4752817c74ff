"""Value Residual (ResFormer): attention mixes the values of the first attention sublayer into its own.

V'_l = lambda_{l,1} V_l + lambda_{l,2} V_1 for every attention sublayer after the first, where V_l = W_l^V x_l
are its values and V_1 those of the first; the residual stream is PreNorm's. Both scalars are learned
("Learnable ResFormer"); fixed scalars, a sparse choice of layers, and one V_1 for all (SVFormer) are other
variants of the paper.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, is_number, tagged
from repro.depth.facts import STATIC, SchemeFacts
from repro.depth.inputs import AttentionInputs, AttentionOutput, Output, Read, ValueMix
from repro.errors import ConfigError


class ValueResidualState(NamedTuple):
    """The residual stream, and V_1 once it is there."""

    total: Tensor
    values: Tensor | None = None


class ValueResidual(DepthMixer):
    """PreNorm with two scalars per attention sublayer (even l) but the first.

    own, first: initial lambda_{l,1} and lambda_{l,2}, 0.5 each by default; 1 and 0 start as PreNorm.
    Errors: ConfigError for `arm.mixer.own`, `.first`.
    """

    FACTS = SchemeFacts(
        system="Value Residual",
        weight=STATIC,
        source="h[l-1], values of the first attention",
        update="h[l] = h[l-1] + f(h[l-1]), V'[l] = a[l] V[l] + b[l] V[1]",
        update_tex=r"h_l = h_{l-1} + f_{l-1}(h_{l-1}), \; V'_l = \lambda_{l,1} V_l + \lambda_{l,2} V_1",
        links=("arXiv:2410.17897",),
    )

    def __init__(
        self, num_sublayers: int, width: int, *, own: float = 0.5, first: float = 0.5, **common: Any
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        for key, value in (("arm.mixer.own", own), ("arm.mixer.first", first)):
            if not is_number(value):
                raise ConfigError(key, value, "a number")
        later = (num_sublayers + 1) // 2 - 1
        self.lambdas = tagged(torch.tensor([[float(own), float(first)]]).repeat(later, 1), "scalar")

    def begin(self, embedding: Tensor) -> ValueResidualState:
        return ValueResidualState(embedding)

    def read(self, state: ValueResidualState, l: int) -> tuple[Read, ValueResidualState]:
        if l % 2:
            return state.total, state
        if l == 0:
            return AttentionInputs(state.total, keep_values=True), state
        if state.values is None:  # walked with sublayers that have no values
            return state.total, state
        own, first = self.lambdas[l // 2 - 1].unbind()
        return AttentionInputs(state.total, mix=ValueMix(state.values, own, first)), state

    def write(self, state: ValueResidualState, l: int, output: Output) -> ValueResidualState:
        if isinstance(output, AttentionOutput):
            return ValueResidualState(state.total + output.output, output.values)
        return state._replace(total=state.total + output)

    def finish(self, state: ValueResidualState) -> Tensor:
        return state.total

    def stream(self, state: ValueResidualState) -> Tensor | None:
        return state.total

    def flops_per_token(self) -> float:
        return float(self.width * (self.num_sublayers + 3 * len(self.lambdas)))
