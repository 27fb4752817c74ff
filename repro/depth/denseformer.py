"""DenseFormer: input-independent weighted averages over depth, started at the plain residual.

over="blocks" is DenseFormer's own definition: after transformer block i (two sublayers joined by plain
residuals, X_i its output with the residual included) the stream becomes
Y_i = sum_{j <= i} alpha_ij X_j, where X_0 = Y_0 is the embedding; alpha_ii = 1 and all others 0 at the start.
over="sublayers" is the formula of Table 5, h_l = alpha_{0->l} h_1 + sum_i alpha_{i->l} f_i(h_i), output read
included; all ones at the start. At their initialisation both are PreNorm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.base import State
from repro.depth.facts import STATIC, SchemeFacts
from repro.errors import ConfigError


class DenseFormer(scalar_mixing.ScalarMixer):
    """Depth-weighted averages by raw scalars: d (d + 3) / 2 of them for d transformer blocks or sublayers.

    over: "blocks" or "sublayers" (see above). An odd last sublayer counts as a block of its own.
    Errors: ConfigError for `arm.mixer.over`.
    """

    FACTS = SchemeFacts(
        system="DenseFormer",
        weight=STATIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = a[0,l] h[1] + sum_i a[i,l] f[i](h[i])",
        update_tex=r"h_l = \alpha_{0 \to l} h_1 + \sum_{i=1}^{l-1} \alpha_{i \to l} f_i(h_i)",
        links=("arXiv:2402.02622",),
    )

    def __init__(self, num_sublayers: int, width: int, *, over: str = "blocks", **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if over not in ("blocks", "sublayers"):
            raise ConfigError("arm.mixer.over", over, "must be blocks or sublayers")
        self.over = over
        #: sublayers from one weighted average to the next
        self.span = 2 if over == "blocks" else 1
        self.num_averages = -(-num_sublayers // self.span)
        self.add_scalars(
            self.num_averages + 1,
            lambda rows, columns: rows == columns if over == "blocks" else torch.ones(len(rows)),
        )

    def begin(self, embedding: Tensor) -> State:
        history = self.start_history(embedding)
        return history, self._mixed(history, embedding)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        history, stream = state
        if self.tap is not None and self.source_columns(l):
            self.record(l, scalar_mixing.weights_of(history))
        return stream, state

    def write(self, state: State, l: int, output: Tensor) -> State:
        history, stream = state
        source = stream + output if self.over == "blocks" else output
        if (l + 1) % self.span and l + 1 < self.num_sublayers:
            return history, source
        history = scalar_mixing.append(history, source)
        return history, self._mixed(history, stream)

    @staticmethod
    def _mixed(history: scalar_mixing.History, like: Tensor) -> Tensor:
        # Row 0 has the single weight one; spelling it out would cost a copy of the embedding.
        return like if history.num_sources == 1 else scalar_mixing.mixed(history, like.dtype)

    def source_columns(self, l: int) -> list[int]:
        """Columns 0..i of the X_j averaged just before sublayer l; none inside a transformer block."""
        if l == self.num_sublayers:
            return list(range(self.num_averages + 1))
        return [] if l % self.span else list(range(l // self.span + 1))

    def source_labels(self, l: int) -> list[str]:
        return [f"x{c}" if self.over == "blocks" else f"b{c}" for c in self.source_columns(l)]

    def stream(self, state: State) -> Tensor | None:
        return state[1] if self.over == "blocks" else state[0].recent[-1]

    def facts(self) -> SchemeFacts:
        if self.over == "sublayers":
            return self.FACTS
        return replace(
            self.FACTS,
            source="[x[0]..x[i]], states after transformer blocks",
            update="y[i] = sum_j a[i,j] x[j], x[j] with its residual",
            update_tex=r"y_i = \sum_{j \le i} \alpha_{ij} x_j",
        )

    def flops_per_token(self) -> float:
        averages = self.width * self.num_averages * (self.num_averages + 3)
        return float(averages + (self.num_sublayers * self.width if self.over == "blocks" else 0))
