"""Input-independent mixing: every read weighs all sources by learned scalars (Table 4, "Full w/
input-independent mixing"; query and key removed).

Read l is sum_i alpha_{i->l} v_i over the embedding v_0 and all earlier sublayer outputs, the output read
included. The paper does not say whether the scalars are normalised, so both are offered.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.base import State
from repro.depth.facts import STATIC, SchemeFacts
from repro.errors import ConfigError


class Static(scalar_mixing.ScalarMixer):
    """Learned scalars per (read, source), L (L + 3) / 2 of them; the read of one source takes it as it is.

    weights: "softmax" (softmax of scalars that start at zero) or "raw" (the scalars themselves, which start
    at one over the number of sources). Both start as the mean of the sources, as Full does, so the two
    differ by the constraint alone; raw scalars that start at one are `DenseFormer(over="sublayers")`.
    Errors: ConfigError for `arm.mixer.weights`.
    """

    FACTS = SchemeFacts(
        system="Input-independent mixing",
        weight=STATIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = sum_i a[i,l] v[i]",
        update_tex=r"h_l = \sum_{i<l} \alpha_{i \to l} v_i",
        links=("arXiv:2603.15031",),
    )

    def __init__(self, num_sublayers: int, width: int, *, weights: str = "softmax", **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if weights not in ("softmax", "raw"):
            raise ConfigError("arm.mixer.weights", weights, "must be softmax or raw")
        self.weights = weights
        self.add_scalars(
            num_sublayers + 1,
            lambda rows, _: torch.zeros(len(rows)) if weights == "softmax" else 1.0 / (rows + 1),
        )

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The mixing matrix, [L + 1, L + 1]: row l weighs the sources of read l, zero above the diagonal."""
        if self.weights == "raw":
            return super().matrix(dtype)
        scalars = self.scalars.to(dtype)
        return scalar_mixing.triangle(scalars, self.positions, self.num_reads, float("-inf")).softmax(-1)

    def begin(self, embedding: Tensor) -> State:
        return self.start_history(embedding), embedding.dtype

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        history, dtype = state
        if self.tap is not None:
            self.record(l, scalar_mixing.weights_of(history))
        return scalar_mixing.mixed(history, dtype), state

    def write(self, state: State, l: int, output: Tensor) -> State:
        history, dtype = state
        return scalar_mixing.append(history, output), dtype

    def source_columns(self, l: int) -> list[int]:
        return list(range(l + 1))

    def stream(self, state: State) -> Tensor | None:
        return state[0].recent[-1]

    def flops_per_token(self) -> float:
        return float(self.width * (self.num_sublayers + 1) * (self.num_sublayers + 2))
