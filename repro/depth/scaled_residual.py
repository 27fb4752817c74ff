"""ReZero and LayerScale (Table 5): what a sublayer writes is scaled by a number, or a number per channel.

ReZero: h_l = h_{l-1} + alpha_l f(h_{l-1}) with alpha_l = 0 at the start, where all reads are the embedding.
LayerScale: h_l = h_{l-1} + diag(lambda_l) f(h_{l-1}) with lambda_l small at the start. With all scales one,
both are PreNorm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.base import State, is_number, tagged
from repro.depth.facts import STATIC, SchemeFacts
from repro.depth.single_state import SingleState
from repro.errors import ConfigError


class ReZero(SingleState):
    """One learned scale per sublayer.

    initial: alpha at the start.  pre_norm: whether sublayers keep their norm. Table 5 writes the rule over
    the same f as PreNorm's, so they do by default; ReZero was proposed without any norm in them (false).
    Errors: ConfigError for `arm.mixer.initial`, `arm.mixer.pre_norm`.
    """

    FACTS = SchemeFacts(
        system="ReZero",
        weight=STATIC,
        source="h[l-1]",
        update="h[l] = h[l-1] + a[l] f(h[l-1])",
        update_tex=r"h_l = h_{l-1} + \alpha_l f_{l-1}(h_{l-1})",
        links=("arXiv:2003.04887",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        initial: float = 0.0,
        pre_norm: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if not is_number(initial):
            raise ConfigError("arm.mixer.initial", initial, "a number (default 0)")
        if not isinstance(pre_norm, bool):
            raise ConfigError("arm.mixer.pre_norm", pre_norm, "true or false")
        self.pre_norm = pre_norm
        self.scales = tagged(torch.full((num_sublayers,), float(initial)), "scalar")

    def write(self, state: State, l: int, output: Tensor) -> State:
        return (_add_scaled(state[0], output, self.scales[l]),)

    def flops_per_token(self) -> float:
        return float(2 * self.num_sublayers * self.width)


class LayerScale(SingleState):
    """A learned scale per sublayer and channel.

    initial: lambda at the start; null takes the published value for the number of transformer blocks (two
    sublayers each): 0.1 up to 18 of them, 1e-5 up to 24, 1e-6 beyond. Errors: ConfigError for
    `arm.mixer.initial`.
    """

    FACTS = SchemeFacts(
        system="LayerScale",
        weight=STATIC,
        source="h[l-1]",
        update="h[l] = h[l-1] + diag(lambda[l]) f(h[l-1])",
        update_tex=r"h_l = h_{l-1} + \mathrm{diag}(\lambda_l) f_{l-1}(h_{l-1})",
        links=("arXiv:2103.17239",),
    )
    per_channel = True

    def __init__(
        self, num_sublayers: int, width: int, *, initial: float | None = None, **common: Any
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if initial is not None and not is_number(initial):
            raise ConfigError("arm.mixer.initial", initial, "a number, or null for the published value")
        scale = published_scale(num_sublayers) if initial is None else float(initial)
        self.scales = tagged(torch.full((num_sublayers, width), scale), "scalar")

    def write(self, state: State, l: int, output: Tensor) -> State:
        return (_add_scaled(state[0], output, self.scales[l]),)

    def flops_per_token(self) -> float:
        return float(2 * self.num_sublayers * self.width)


def published_scale(num_sublayers: int) -> float:
    """LayerScale's initial value by depth, as published for vision transformers of that many blocks."""
    blocks = -(-num_sublayers // 2)
    return 0.1 if blocks <= 18 else 1e-5 if blocks <= 24 else 1e-6


def _add_scaled(stream: Tensor, output: Tensor, scale: Tensor) -> Tensor:
    """stream + scale * output in one pass, in the type of the stream; scale [] or [D]."""
    return torch.addcmul(stream, output.to(stream.dtype), scale.to(stream.dtype))
