"""Residual and embedding scalars, the cheap mixing over depth of strong baselines (nanochat, modded-nanogpt).

Before sublayer l the stream becomes x <- r_l x + e_l x_0, where x_0 is the embedding: two numbers per
sublayer, r = 1 and e = 0 at the start, where it is PreNorm. In those codes x_0 is the normalised embedding
and the numbers come once per transformer block; here x_0 is what PreNorm's stream starts as, and both
spacings are offered. There are none before the output read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, State, tagged
from repro.depth.facts import STATIC, SchemeFacts
from repro.depth.scalar_mixing import weighted_sum
from repro.errors import ConfigError


class ResidualScalars(DepthMixer):
    """PreNorm with two learned numbers before each sublayer.

    before: "sublayers" (default, each of the L) or "blocks" (each transformer block, as published).
    Parameter `scalars` [L or ceil(L / 2), 2]: columns r and e.
    Errors: ConfigError for `arm.mixer.before`.
    """

    FACTS = SchemeFacts(
        system="Residual scalars",
        weight=STATIC,
        source="h[1], h[l-1]",
        update="h[l] = r[l] (h[l-1] + f(h[l-1])) + e[l] h[1]",
        update_tex=r"h_l = r_l (h_{l-1} + f_{l-1}(h_{l-1})) + e_l h_1",
        links=("github.com/karpathy/nanochat",),
    )

    def __init__(self, num_sublayers: int, width: int, *, before: str = "sublayers", **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if before not in ("sublayers", "blocks"):
            raise ConfigError("arm.mixer.before", before, "must be sublayers or blocks")
        #: sublayers from one pair of scalars to the next
        self.span = 2 if before == "blocks" else 1
        start = torch.tensor([1.0, 0.0]).repeat(-(-num_sublayers // self.span), 1)
        self.scalars = tagged(start.to(torch.get_default_dtype()), "scalar")

    def begin(self, embedding: Tensor) -> State:
        wide = torch.promote_types(embedding.dtype, torch.float32)
        return embedding, embedding, self.scalars.to(wide).unbind(0)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        stream, embedding, scalars = state
        if l % self.span == 0:
            stream = weighted_sum(scalars[l // self.span], (stream, embedding), stream.dtype)
        return stream, (stream, embedding, scalars)

    def write(self, state: State, l: int, output: Tensor) -> State:
        stream, embedding, scalars = state
        return stream + output, embedding, scalars

    def finish(self, state: State) -> Tensor:
        return state[0]

    def stream(self, state: State) -> Tensor | None:
        return state[0]

    def flops_per_token(self) -> float:
        return float(self.width * (self.num_sublayers + 3 * len(self.scalars)))
