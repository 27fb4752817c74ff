"""ANCRe: the shortcut of each sublayer is a learned mixture of all earlier states, not the last one alone.

State h_0 is the embedding, and
    h_{l+1} = f_l(h_l) + sum_{j <= l} a_lj h_j,       a_l = softmax(c_l / tau),
so the K = L + 1 states have K (K - 1) / 2 coefficients c_lj, which depend on no input. The paper here names
ANCRe in its related work only; this is the reading of its abstract (coefficients for all shortcuts, routed
by a softmax with temperature), of medium certainty. How c starts is not known: `previous` offers both a mean
over all states and a start near PreNorm. With all weight on the last state it is PreNorm.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.base import State, is_number
from repro.depth.facts import STATIC, SchemeFacts
from repro.errors import ConfigError


class ANCRe(scalar_mixing.ScalarMixer):
    """Softmax-routed shortcuts; L (L + 1) / 2 - 1 parameters, since the first sublayer has one shortcut.

    temperature: tau.  previous: share of the last state in each shortcut at the start, above 0 and below 1,
    the rest spread evenly; null starts at c = 0, the mean of all earlier states.
    Errors: ConfigError for `arm.mixer.temperature`, `.previous`.
    """

    FACTS = SchemeFacts(
        system="ANCRe",
        weight=STATIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = f(h[l-1]) + sum_j softmax(c[l] / t)[j] h[j]",
        update_tex=r"h_l = f_{l-1}(h_{l-1}) + \sum_{j<l} \mathrm{softmax}(c_l / \tau)_j h_j",
        links=("arXiv:2602.09009",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        temperature: float = 1.0,
        previous: float | None = None,
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if not (is_number(temperature) and temperature > 0):
            raise ConfigError("arm.mixer.temperature", temperature, "a number above 0")
        if previous is not None and not (is_number(previous) and 0 < previous < 1):
            raise ConfigError("arm.mixer.previous", previous, "a share above 0 and below 1, or null")
        self.temperature, self.previous = temperature, previous
        self.add_scalars(num_sublayers, self._initial)

    def _initial(self, rows: Tensor, columns: Tensor) -> Tensor:
        """c, entry by entry: with c_ll = tau log(l p / (1 - p)) and zeros the last state has the share p."""
        if self.previous is None:
            return torch.zeros(len(rows))
        odds = self.previous / (1 - self.previous)
        return torch.where(rows == columns, self.temperature * torch.log(rows * odds), 0.0)

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """a, [L, L]: row l weighs the states in the shortcut of sublayer l, zero above the diagonal."""
        logits = self.scalars.to(dtype) / self.temperature
        return scalar_mixing.triangle(logits, self.positions, self.num_reads, -math.inf).softmax(-1)

    def begin(self, embedding: Tensor) -> State:
        return self.start_history(embedding), embedding

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        return state[1], state

    def write(self, state: State, l: int, output: Tensor) -> State:
        history, latest = state
        # The first shortcut is the embedding itself; spelling it out would cost a copy.
        shortcut = latest if l == 0 else scalar_mixing.mixed(history, latest.dtype)
        latest = shortcut + output
        if l + 1 < self.num_sublayers:  # no shortcut is left that could use the last state
            history = scalar_mixing.append(history, latest)
        return history, latest

    def finish(self, state: State) -> Tensor:
        return state[1]

    def stream(self, state: State) -> Tensor | None:
        return state[1]

    def flops_per_token(self) -> float:
        return float(self.width * self.num_sublayers * (self.num_sublayers + 2))
