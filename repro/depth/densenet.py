"""DenseNet over the depth of a sequence model: concatenate all that was written and project it to the width.

Table 5 writes h_l = ConvPool([h_1; f_1, ..., f_{l-1}]). Of its two parts the pooling has no analogue here (it
would mix tokens, future ones included); the convolution over one position is a matrix:
h_l = W_l [v_0; v_1; ...; v_{l-1}] = sum_i W_{l,i} v_i, one D x D matrix per read and source, output read
included. With all W_{l,i} = I it is PreNorm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from repro.depth.base import DepthMixer, State, tagged
from repro.depth.facts import STATIC, SchemeFacts
from repro.errors import ConfigError
from repro.ops.matmul import linear
from repro.ops.precision import full_precision


class DenseNet(DepthMixer):
    """A projection per read, from (l + 1) D to D at read l = 0, ..., L: (L + 1)(L + 2) / 2 D^2 parameters.

    init: "identity" (every W_{l,i} = I, which is PreNorm) or "fan_in" (normal, variance one over (l + 1) D,
    as layers of a DenseNet have it). Errors: ConfigError for `arm.mixer.init`.

    Slow by definition: 2 D^2 operations per read and source. At L = 32 that is 561 matrices of D^2 where the
    sublayers have 16 x 12, three times as many; a training step at quick takes about 2.4 times PreNorm's.
    No order of summation saves any of it, since no two reads share a matrix; one product per read over the
    concatenation runs them at the speed of large products. It stands here as the ancestor in Table 5; what is
    left if every W_{l,i} is a multiple of I is mixing by scalars (`Static`).
    """

    FACTS = SchemeFacts(
        system="DenseNet",
        weight=STATIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = W[l] [h[1]; f[1]..f[l-1]]",
        update_tex=r"h_l = W_l [h_1; f_1; \ldots; f_{l-1}]",
        links=("arXiv:1608.06993",),
    )
    maps_channels = True

    def __init__(self, num_sublayers: int, width: int, *, init: str = "identity", **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if init not in ("identity", "fan_in"):
            raise ConfigError("arm.mixer.init", init, "must be identity or fan_in")
        self.projections = nn.ParameterList()
        for l in range(num_sublayers + 1):
            self.projections.append(tagged(torch.eye(width).repeat(1, l + 1), "scalar"))
            if init == "fan_in":
                self.normal_init[f"projections.{l}"] = ((l + 1) * width) ** -0.5

    def begin(self, embedding: Tensor) -> State:
        return (embedding,)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        dtype = torch.promote_types(state[0].dtype, torch.float32)
        with full_precision(state[0].device):
            x = torch.cat(state, dim=-1).to(dtype)
            return linear(x, self.projections[l].to(dtype)).to(state[0].dtype), state

    def write(self, state: State, l: int, output: Tensor) -> State:
        return (*state, output.to(state[0].dtype))

    def finish(self, state: State) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def stream(self, state: State) -> Tensor | None:
        return state[-1]

    def flops_per_token(self) -> float:
        return float(self.width**2 * (self.num_sublayers + 1) * (self.num_sublayers + 2))
