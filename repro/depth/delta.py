"""Delta Attention Residuals (arXiv:2605.18855): routing is added to the residual stream.

A sublayer reads h_l + sum_i alpha_{i->l} v_i, where h_l is the standard residual stream, v_0 the embedding,
v_i what sublayer i - 1 wrote (its delta), and alpha the softmax weights of Full AttnRes. The stream itself
stays the plain sum, and the final norm reads it: there is no output read. Letters as in `base`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.base import tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.phased import AttnResState
from repro.errors import ConfigError

SOURCES = ("deltas", "states")


class RoutedState(NamedTuple):
    """history: what is attended to.  stream: the standard residual stream [B, T, D]."""

    history: AttnResState
    stream: Tensor
    gates: tuple[Tensor, ...] = ()


class DeltaAttnRes(AttnRes):
    """The residual stream plus an attention-weighted sum over depth.

    sources: `deltas` (default, the paper's) or the running `states` h_0, h_1, ...: with `AttnRes` and
    `controls.Cumulative` the four cells of source times routing, all from zero queries.  gated: a learned
    scalar per read on the weighted sum, zero at the start; not in the paper.

    At zero queries the sum of deltas is the mean of what adds up to h_l, so read l is (1 + 1 / (l + 1)) h_l:
    PreNorm under norms without eps, with no gate needed. Over states it is another function unless gated.
    With a block size the sources are those of Block, the partial sum among them; the authors' Delta Block has
    complete blocks alone, of a sum that their code forms in another way.
    """

    FACTS = SchemeFacts(
        system="Delta-AttnRes",
        weight=DYNAMIC,
        source="h[l-1] and [h[1], f[1]..f[l-1]]",
        update="h[l] = h[l-1] + f(h[l-1] + sum_i phi(w[l],k[i]) v[i])",
        update_tex=r"h_l = h_{l-1} + f_{l-1}(h_{l-1} + \sum_{i<l} \alpha_{i \to l} v_i)",
        links=("arXiv:2605.18855",),
    )
    output_read = False

    def __init__(
        self, num_sublayers: int, width: int, *, sources: str = "deltas", gated: bool = False, **options: Any
    ) -> None:
        super().__init__(num_sublayers, width, **options)
        if sources not in SOURCES:
            raise ConfigError("arm.mixer.sources", sources, "one of " + ", ".join(SOURCES))
        if not isinstance(gated, bool):
            raise ConfigError("arm.mixer.gated", gated, "true or false")
        if sources == "states" and len(self.plan.ends) != num_sublayers:
            raise ConfigError("arm.mixer.block_size", options.get("block_size"), "1 for running states")
        self.sources = sources
        self.gates = tagged(torch.zeros(num_sublayers), "scalar") if gated else None

    def begin(self, embedding: Tensor) -> RoutedState:  # type: ignore[override]
        gates = () if self.gates is None else self.gates.unbind(0)
        return RoutedState(super().begin(embedding), embedding, gates)

    def read(self, state: RoutedState, l: int) -> tuple[Tensor, RoutedState]:  # type: ignore[override]
        routed, history = super().read(state.history, l)
        if state.gates:
            mixed = torch.addcmul(state.stream, routed, state.gates[l].to(routed.dtype))
        else:
            mixed = state.stream + routed
        return mixed, state._replace(history=history)

    def write(self, state: RoutedState, l: int, output: Tensor) -> RoutedState:  # type: ignore[override]
        stream = state.stream + output.to(state.stream.dtype)
        written = stream if self.sources == "states" else output
        return state._replace(history=super().write(state.history, l, written), stream=stream)

    def finish(self, state: RoutedState) -> Tensor:  # type: ignore[override]
        return state.stream

    def stream(self, state: RoutedState) -> Tensor | None:  # type: ignore[override]
        return state.stream

    def source_columns(self, l: int) -> list[int]:
        return [] if l == self.num_sublayers else super().source_columns(l)

    def source_labels(self, l: int) -> list[str]:
        return [] if l == self.num_sublayers else super().source_labels(l)

    def parameters_without_gradient(self) -> set[str]:
        """Row 0 of queries and gains, but not the first gate, which scales the embedding added to itself."""
        return super().parameters_without_gradient() - {"gates[0]"}

    def facts(self) -> SchemeFacts:
        if self.sources == "states":
            return replace(
                self.FACTS, system="Cumulative AttnRes, additive", source="h[l-1] and [h[1]..h[l-1]]"
            )
        if len(self.plan.ends) < self.num_sublayers:
            return replace(
                self.FACTS, system="Delta-AttnRes, blocks", source="h[l-1] and [b[0]..b[n-1], b[n]^j]"
            )
        return self.FACTS

    def flops_per_token(self) -> float:
        """Besides the routing: the stream, and its sum with what is routed."""
        return super().flops_per_token() + 2.0 * self.width * self.num_sublayers
