"""Highway connections (Table 5): h_l = (1 - g_l) h_{l-1} + g_l f(h_{l-1}), g_l = sigmoid(W_l h_{l-1} + b_l).

What a sublayer reads is a convex combination of the embedding and all earlier outputs, per channel where the
gate is a vector: with gates g_1, ..., g_L of the sublayers in order, output i has the weight
g_i prod_{j > i} (1 - g_j) in the state after sublayer l (j up to l) and the embedding prod_j (1 - g_j), which
sum to one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from repro.depth.base import State, is_number, tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.single_state import SingleState
from repro.errors import ConfigError
from repro.ops.matmul import linear
from repro.ops.precision import full_precision

GATES = ("vector", "scalar")


class Highway(SingleState):
    """A gate per sublayer and token, of the state as it is; sublayers keep their norm, which f stands for.

    gate: `vector` (a gate per channel, W_l [D, D]) or `scalar` (one gate, W_l [1, D], as in Fig. 9).
    bias: b_l at the start. The definition asks for a negative one, -1 to -3 were used, and -2 is the default;
    W_l starts at zero, so that all tokens start with the gate sigmoid(bias). Gates are computed in fp32 or
    wider. Errors: ConfigError for `arm.mixer.gate`, `.bias`.
    """

    FACTS = SchemeFacts(
        system="Highway",
        weight=DYNAMIC,
        source="h[l-1]",
        update="h[l] = (1-g[l]) h[l-1] + g[l] f(h[l-1])",
        update_tex=r"h_l = (1 - g_l) \odot h_{l-1} + g_l \odot f_{l-1}(h_{l-1})",
        links=("arXiv:1505.00387",),
    )

    def __init__(
        self, num_sublayers: int, width: int, *, gate: str = "vector", bias: float = -2.0, **common: Any
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if gate not in GATES:
            raise ConfigError("arm.mixer.gate", gate, "one of " + ", ".join(GATES))
        if not is_number(bias):
            raise ConfigError("arm.mixer.bias", bias, "a number (default -2)")
        self.per_channel = gate == "vector"
        size = width if self.per_channel else 1
        # A parameter for each sublayer: the gradient of a slice would fill a tensor of them all.
        self.gate_weights = nn.ParameterList(
            tagged(torch.zeros(size, width), "scalar") for _ in range(num_sublayers)
        )
        self.gate_biases = tagged(torch.full((num_sublayers, size), float(bias)), "scalar")

    def gate(self, stream: Tensor, l: int) -> Tensor:
        """g of sublayer l, [B, T, D] or [B, T, 1], from the state that it reads."""
        with full_precision(stream.device):
            wide = stream.to(torch.promote_types(stream.dtype, torch.float32))
            logits = linear(wide, self.gate_weights[l].to(wide.dtype)) + self.gate_biases[l].to(wide.dtype)
            return logits.sigmoid()

    def write(self, state: State, l: int, output: Tensor) -> State:
        (stream,) = state
        gate = self.held(self.gate(stream, l)).to(stream.dtype)
        return (torch.lerp(stream, output.to(stream.dtype), gate),)

    def facts(self) -> SchemeFacts:
        if self.per_channel:
            return self.FACTS
        return replace(self.FACTS, update_tex=self.FACTS.update_tex.replace(r"\odot ", ""))

    def flops_per_token(self) -> float:
        """The product with W_l, its bias and sigmoid, and three operations per channel."""
        size = self.gate_biases.shape[1]
        return float(self.num_sublayers * (2 * size * self.width + 2 * size + 3 * self.width))
