"""SiameseNorm (Table 5): a post-norm and a pre-norm stream that share their sublayers.

With y the output of a sublayer, h1 <- Norm(h1 + y) and h2 <- h2 + y; both start as the embedding, and Table 5
says no more. What a sublayer reads, and the output, follow the published code of arXiv:2602.08064, which
normalises h1 when it is next read. With RMSNorms that each have a gain of their own,

    h1 <- Norm(h1);  y = f(h1 + Norm(h2));  h1 <- h1 + c y;  h2 <- h2 + y

(f with its own pre-norm), and after the last sublayer Norm(h1) + Norm(h2) goes to the final norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, State, tagged
from repro.depth.facts import FIXED, SchemeFacts
from repro.errors import ConfigError

OUTPUT_SCALES = ("one", "depth")


class SiameseNorm(DepthMixer):
    """Two streams, each with a norm before every read.

    output_scale: c above: `one` (default, the rule of Table 5), or `depth`, as in the published code
    for vision and language: 1 / sqrt(2 (k + 1)) in transformer block k = 0, 1, ..., which ends 2 (k + 1)
    sublayers. Table 5 has no such factor.
    Errors: ConfigError for `arm.mixer.output_scale`.
    """

    FACTS = SchemeFacts(
        system="SiameseNorm",
        weight=FIXED,
        source="2 streams",
        update="h1[l] = Norm(h1[l-1] + y), h2[l] = h2[l-1] + y",
        update_tex=r"h_l^1 = \mathrm{Norm}(h_{l-1}^1 + y_{l-1}),\ h_l^2 = h_{l-1}^2 + y_{l-1}",
        links=("arXiv:2602.08064",),
    )
    per_channel = True

    def __init__(self, num_sublayers: int, width: int, *, output_scale: str = "one", **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if output_scale not in OUTPUT_SCALES:
            raise ConfigError("arm.mixer.output_scale", output_scale, "one of " + ", ".join(OUTPUT_SCALES))
        self.output_scale = output_scale
        #: gains of the norms of h1 and h2 before each read, the output read included
        self.post_gains = tagged(torch.ones(num_sublayers + 1, width), "norm")
        self.pre_gains = tagged(torch.ones(num_sublayers + 1, width), "norm")

    def scale(self, l: int) -> float:
        """c of sublayer l."""
        return 1.0 if self.output_scale == "one" else (2 * (l // 2 + 1)) ** -0.5

    def begin(self, embedding: Tensor) -> State:
        return embedding, embedding

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        post, pre = state
        post = self.normed(post, self.post_gains[l])
        return post + self.normed(pre, self.pre_gains[l]), (post, pre)

    def write(self, state: State, l: int, output: Tensor) -> State:
        post, pre = state
        output = output.to(pre.dtype)
        return torch.add(post, output, alpha=self.scale(l)), pre + output

    def finish(self, state: State) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def stream(self, state: State) -> Tensor | None:
        """The stream without norm, which is the one that grows."""
        return state[1]

    def flops_per_token(self) -> float:
        """A read: two norms of four operations per channel and their sum; a write: two sums, one scaled."""
        writes = 2 if self.output_scale == "one" else 3
        return float(self.width * (9 * (self.num_sublayers + 1) + writes * self.num_sublayers))
