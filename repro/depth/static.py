"""Input-independent mixing: every read weighs all sources by learned scalars (Table 4, "Full w/
input-independent mixing"; query and key removed).

Read l is sum_i alpha_{i->l} v_i over the embedding v_0 and all earlier sublayer outputs, the output read
included. The paper does not say whether the scalars are normalised, so both are offered.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.base import DepthMixer, State, tagged
from repro.errors import ConfigError

#: Sources per group of `two_phase`: near the square root of the usual L, where both phases cost the same.
GROUP_SIZE = 8


class Static(DepthMixer):
    """Learned scalars per (read, source), L (L + 3) / 2 of them; the read of one source takes it as it is.

    weights: "softmax" (softmax of scalars that start at zero) or "raw" (the scalars themselves, which start
    at one over the number of sources). Both start as the mean of the sources, as Full does, so the two
    differ by the constraint alone; raw scalars that start at one are `DenseFormer(over="sublayers")`.
    Execution: "two_phase" (groups of reads share one matrix product, same numbers up to rounding) or
    "per_read".  Errors: ConfigError for `arm.mixer.weights`.
    """

    executions = ("two_phase", "per_read")
    positions: Tensor

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
        weights: str = "softmax",
    ) -> None:
        super().__init__(num_sublayers, width, eps=eps, execution=execution, backend=backend)
        if weights not in ("softmax", "raw"):
            raise ConfigError("arm.mixer.weights", weights, "must be softmax or raw")
        self.weights = weights
        positions = scalar_mixing.triangle_positions(num_sublayers + 1)
        self.register_buffer("positions", positions, persistent=False)
        entries = torch.zeros(positions.shape[1]) if weights == "softmax" else 1.0 / (positions[0] + 1)
        self.scalars = tagged(entries.to(torch.get_default_dtype()), "scalar")

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The mixing matrix, [L + 1, L + 1]: row l weighs the sources of read l, zero above the diagonal."""
        scalars, size = self.scalars.to(dtype), self.num_sublayers + 1
        if self.weights == "raw":
            return scalar_mixing.triangle(scalars, self.positions, size, 0.0)
        return scalar_mixing.triangle(scalars, self.positions, size, float("-inf")).softmax(-1)

    def begin(self, embedding: Tensor) -> State:
        group_size = GROUP_SIZE if self.execution == "two_phase" else self.num_sublayers + 1
        matrix = self.matrix(torch.promote_types(embedding.dtype, torch.float32))
        return scalar_mixing.start(matrix, embedding, group_size), embedding.dtype

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        history, dtype = state
        if self.tap is not None:
            self.record(l, scalar_mixing.weights_of(history))
        return scalar_mixing.mixed(history, dtype), state

    def write(self, state: State, l: int, output: Tensor) -> State:
        history, dtype = state
        return scalar_mixing.append(history, output), dtype

    def finish(self, state: State) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def source_columns(self, l: int) -> list[int]:
        return list(range(l + 1))

    def stream(self, state: State) -> Tensor | None:
        return state[0].recent[-1]

    def flops_per_token(self) -> float:
        return float(self.width * (self.num_sublayers + 1) * (self.num_sublayers + 2))
