"""Schemes that normalise the state after adding: post-norm, DeepNorm and KEEL.

post-norm  h_l = Norm(h_{l-1} + f(h_{l-1}))
DeepNorm   h_l = Norm(alpha h_{l-1} + f(h_{l-1})), with small initial matrices
KEEL       h_l = Norm(alpha h_{l-1} + f(Norm(h_{l-1})))

Norm is RMSNorm, as everywhere here, with a gain of its own after every sublayer; the head reads the last one,
so the decoder adds no final norm. The inner norm of KEEL is the decoder's pre-norm, which the other two do
without: their first sublayer reads the embedding itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.base import State, is_number, tagged
from repro.depth.facts import FIXED, SchemeFacts
from repro.depth.single_state import SingleState
from repro.errors import ConfigError

#: KEEL's alpha from the number of sublayers.
KEEL_ALPHAS = ("sublayers", "root_sublayers")
#: Matrices of a sublayer that DeepNorm scales at the start: all but query and key.
SCALED = ("value", "output", "gate", "up")


class PostNorm(SingleState):
    """The residual of the first transformers: the sum is normalised, sublayers have no norm of their own.

    alpha: weight of the state in the sum. Errors: ConfigError for `arm.mixer.alpha`.
    """

    FACTS = SchemeFacts(
        system="PostNorm",
        weight=FIXED,
        source="h[l-1]",
        update="h[l] = Norm(h[l-1] + f(h[l-1]))",
        update_tex=r"h_l = \mathrm{Norm}(h_{l-1} + f_{l-1}(h_{l-1}))",
        links=("arXiv:1706.03762",),
    )
    post_norm, pre_norm, per_channel = True, False, True

    def __init__(self, num_sublayers: int, width: int, *, alpha: float = 1.0, **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if not (is_number(alpha) and alpha > 0):
            raise ConfigError("arm.mixer.alpha", alpha, "a positive number")
        self.alpha = float(alpha)
        self.gains = tagged(torch.ones(num_sublayers, width), "norm")

    def write(self, state: State, l: int, output: Tensor) -> State:
        (stream,) = state
        total = torch.add(output.to(stream.dtype), stream, alpha=self.alpha)
        return (self.normed(total, self.gains[l]),)

    def flops_per_token(self) -> float:
        """The sum, and four operations per channel for the norm: square, add, scale, gain."""
        return float((4 + (1 if self.alpha == 1 else 2)) * self.num_sublayers * self.width)


class DeepNorm(PostNorm):
    """Post-norm with alpha = (2M)^(1/4) and initial value, output and MLP matrices divided by (8M)^(1/4).

    M: transformer blocks of the decoder, of two sublayers each, so that 2M = L (the decoder-only values).
    alpha: a number instead of (2M)^(1/4).  scaled_init: whether matrices are divided; on top of whatever
    `model.init` draws, and of SwiGLU all three. Errors: ConfigError for `arm.mixer.alpha`, `.scaled_init`.
    """

    FACTS = SchemeFacts(
        system="DeepNorm",
        weight=FIXED,
        source="h[l-1]",
        update="h[l] = Norm(a h[l-1] + f(h[l-1]))",
        update_tex=r"h_l = \mathrm{Norm}(\alpha h_{l-1} + f_{l-1}(h_{l-1}))",
        links=("arXiv:2203.00555",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        alpha: float | None = None,
        scaled_init: bool = True,
        **common: Any,
    ) -> None:
        if not isinstance(scaled_init, bool):
            raise ConfigError("arm.mixer.scaled_init", scaled_init, "true or false")
        super().__init__(
            num_sublayers, width, alpha=num_sublayers**0.25 if alpha is None else alpha, **common
        )
        self.scaled_init = scaled_init

    def initial_scale(self, name: str) -> float:
        scaled = self.scaled_init and name.rpartition(".")[2] in SCALED
        return (4 * self.num_sublayers) ** -0.25 if scaled else 1.0


class KEEL(PostNorm):
    """Post-norm and pre-norm at once, with a large weight alpha on the state; no special initialisation.

    alpha: `sublayers` (L, default), `root_sublayers` (its square root) or a number. Table 5 leaves alpha open
    and sources differ: L is what a summary of the paper and a port of it say. Errors: ConfigError for
    `arm.mixer.alpha`.
    """

    FACTS = SchemeFacts(
        system="KEEL",
        weight=FIXED,
        source="h[l-1]",
        update="h[l] = Norm(a h[l-1] + f(Norm(h[l-1])))",
        update_tex=r"h_l = \mathrm{Norm}(\alpha h_{l-1} + f_{l-1}(\mathrm{Norm}(h_{l-1})))",
        links=("arXiv:2601.19895",),
    )
    pre_norm = True

    def __init__(
        self, num_sublayers: int, width: int, *, alpha: float | str = "sublayers", **common: Any
    ) -> None:
        if not (alpha in KEEL_ALPHAS or is_number(alpha)):
            raise ConfigError("arm.mixer.alpha", alpha, f"{', '.join(KEEL_ALPHAS)} or a positive number")
        if isinstance(alpha, str):
            alpha = num_sublayers if alpha == "sublayers" else num_sublayers**0.5
        super().__init__(num_sublayers, width, alpha=alpha, **common)
