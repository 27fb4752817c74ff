"""DenseFormer: input-independent weighted averages over depth, started at the plain residual.

over="blocks" is DenseFormer's own definition: after transformer block i (two sublayers joined by plain
residuals, X_i its output with the residual included) the stream becomes
Y_i = sum_{j <= i} alpha_ij X_j, where X_0 = Y_0 is the embedding; alpha_ii = 1 and all others 0 at the start.
With dilation k only every k-th state back from X_i is averaged (j = i, i - k, i - 2k, ...), and with period p
only after every p-th block, the others passing X_i on (the k x p of its paper).
over="sublayers" is the formula of Table 5, h_l = alpha_{0->l} h_1 + sum_i alpha_{i->l} f_i(h_i), output read
included; all ones at the start. At their initialisation all are PreNorm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.boundaries import is_whole
from repro.depth.facts import STATIC, SchemeFacts
from repro.errors import ConfigError


class DenseFormerState(NamedTuple):
    """stream: what the next sublayer reads.  histories: one per residue of the index of a state modulo the
    dilation, as far as begun.  weights: of the residues, [R, R] each.
    """

    stream: Tensor
    histories: tuple[scalar_mixing.History, ...]
    weights: tuple[Tensor, ...]


class DenseFormer(scalar_mixing.ScalarMixer):
    """Depth-weighted averages by raw scalars: d (d + 3) / 2 of them for d transformer blocks or sublayers.

    over: "blocks" or "sublayers" (see above). An odd last sublayer counts as a block of its own.
    dilation, period: from 1 (the default) to d, for "blocks" alone: a read over sublayer outputs has no state
    to fall back on. Average i then has i // dilation + 1 scalars, if period divides i, and none otherwise.
    Errors: ConfigError for `arm.mixer.over`, `.dilation`, `.period`.
    """

    FACTS = SchemeFacts(
        system="DenseFormer",
        weight=STATIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = a[0,l] h[1] + sum_i a[i,l] f[i](h[i])",
        update_tex=r"h_l = \alpha_{0 \to l} h_1 + \sum_{i=1}^{l-1} \alpha_{i \to l} f_i(h_i)",
        links=("arXiv:2402.02622",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        over: str = "blocks",
        dilation: int = 1,
        period: int = 1,
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if over not in ("blocks", "sublayers"):
            raise ConfigError("arm.mixer.over", over, "must be blocks or sublayers")
        self.over = over
        #: sublayers from one weighted average to the next
        self.span = 2 if over == "blocks" else 1
        self.num_averages = -(-num_sublayers // self.span)
        most = self.num_averages if over == "blocks" else 1
        for key, value in (("arm.mixer.dilation", dilation), ("arm.mixer.period", period)):
            if not is_whole(value, 1, most):
                allowed = f"a whole number from 1 to the number of transformer blocks, {most}"
                raise ConfigError(key, value, allowed if over == "blocks" else "1 where over is sublayers")
        self.dilation, self.period = dilation, period
        learned = [
            (i, j) for i in range(1, self.num_averages + 1) for j in self._columns(i) if self._averages(i)
        ]
        self.add_scalars(
            self.num_averages + 1,
            lambda rows, columns: rows == columns if over == "blocks" else torch.ones(len(rows)),
            torch.tensor(learned, dtype=torch.long).view(-1, 2).T.contiguous(),
        )

    def _averages(self, i: int) -> bool:
        """Whether the stream is averaged after block i; block 0 is the embedding."""
        return i > 0 and i % self.period == 0

    def _columns(self, i: int) -> list[int]:
        """The states that Y_i is made of, in order."""
        return list(range(i % self.dilation, i + 1, self.dilation)) if self._averages(i) else [i]

    def begin(self, embedding: Tensor) -> DenseFormerState:
        matrix, k = self.matrix(torch.promote_types(embedding.dtype, torch.float32)), self.dilation
        weights = (matrix,) if k == 1 else tuple(matrix[r::k, r::k] for r in range(k))
        history = scalar_mixing.start(weights[0], embedding, self.group_size)
        return DenseFormerState(embedding, (history,), weights)

    def read(self, state: DenseFormerState, l: int) -> tuple[Tensor, DenseFormerState]:
        if self.tap is not None and (columns := self.source_columns(l)):
            history = state.histories[columns[-1] % self.dilation]
            alone = state.stream.new_ones(1, 1, *state.stream.shape[:-1])
            averages = self._averages(columns[-1])
            self.record(l, scalar_mixing.weights_of(history) if averages else alone)
        return state.stream, state

    def write(self, state: DenseFormerState, l: int, output: Tensor) -> DenseFormerState:
        source = state.stream + output if self.over == "blocks" else output
        if (l + 1) % self.span and l + 1 < self.num_sublayers:
            return state._replace(stream=source)
        i = -(-(l + 1) // self.span)
        histories = self._appended(state, i, source)
        if not self._averages(i):
            return state._replace(stream=source, histories=histories)
        stream = scalar_mixing.mixed(histories[i % self.dilation], state.stream.dtype)
        return state._replace(stream=stream, histories=histories)

    def _appended(self, state: DenseFormerState, i: int, source: Tensor) -> tuple[scalar_mixing.History, ...]:
        residue, histories = i % self.dilation, state.histories
        if i < self.dilation:
            return (*histories, scalar_mixing.start(state.weights[residue], source, self.group_size))
        history = scalar_mixing.append(histories[residue], source)
        return (*histories[:residue], history, *histories[residue + 1 :])

    def source_columns(self, l: int) -> list[int]:
        """The columns j of the X_j averaged just before sublayer l; none inside a transformer block."""
        if l == self.num_sublayers:
            return self._columns(self.num_averages)
        return [] if l % self.span else self._columns(l // self.span)

    def source_labels(self, l: int) -> list[str]:
        return [f"x{c}" if self.over == "blocks" else f"b{c}" for c in self.source_columns(l)]

    def stream(self, state: DenseFormerState) -> Tensor | None:
        return state.stream if self.over == "blocks" else state.histories[0].recent[-1]

    def facts(self) -> SchemeFacts:
        if self.over == "sublayers":
            return self.FACTS
        k, p = self.dilation, self.period
        every = "" if p == 1 else f", every {p} blocks"
        return replace(
            self.FACTS,
            source=("[x[0]..x[i]]" if k == 1 else f"[x[i], x[i-{k}]..]")
            + ", states after transformer blocks",
            update=f"y[i] = sum_j a[i,j] x[j], x[j] with its residual{every}",
            update_tex=r"y_i = \sum_{j \le i} \alpha_{ij} x_j",
        )

    def flops_per_token(self) -> float:
        indices = range(1, self.num_averages + 1)
        averages = self.width * sum(2 * len(self._columns(i)) for i in indices if self._averages(i))
        return float(averages + (self.num_sublayers * self.width if self.over == "blocks" else 0))
