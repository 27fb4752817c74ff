"""MUDDFormer: dense connections over depth whose weights depend on the token, one set per stream.

After transformer block i (its output X_i, residual included; X_0 the embedding) the query, key, value and
residual stream of the next block are each a mix of all states so far,

    X^c = sum_{j <= i} A^c_j X_j,   A = W_2 gelu(W_1 rms(X_i)) + b,   c in (q, k, v, r), j = 0, ..., i

and after the last block there is one stream, which the final norm sees. W_1 is normal with variance one over
the width, W_2 zero, b one for the current state X_i and zero elsewhere: PreNorm at the start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.depth.base import DepthMixer, tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.inputs import AttentionInputs, Read
from repro.errors import ConfigError
from repro.ops.precision import full_precision
from repro.ops.streams import normed_projection

STREAMS = ("query", "key", "value", "residual")
#: Hidden units of the weights' MLP are rounded up to a multiple of this.
ROUND = 64
#: factor on the hidden units after the last block, which has one stream
LAST = 4


class MUDDFormerState(NamedTuple):
    """states: X_0, X_1, ...  stream: residual stream, what an MLP reads.  inputs: of the next attention."""

    states: tuple[Tensor, ...]
    stream: Tensor
    inputs: AttentionInputs | None = None


class MUDDFormer(DepthMixer):
    """Four streams (q, k, v, residual) between transformer blocks, one after the last.

    mlp_growth: MLPs that grow with depth, as in the paper: block i of n (from 0) has the model's width times
    i / (n - 1) + 1 / 2, which leaves the sum over blocks as it is up to rounding.
    The inputs q, k and v are normalised by the one pre-norm of their sublayer. After block i there are
    hidden = C (i + 1) units for C streams (four times that after the last), rounded up to a multiple of 64.
    An odd last sublayer counts as a block. Weights are computed in fp32 or wider.
    Errors: ConfigError for `arm.mixer.mlp_growth`.
    """

    FACTS = SchemeFacts(
        system="MUDDFormer",
        weight=DYNAMIC,
        source="[x[0]..x[i]], states after transformer blocks",
        update="y[i]^c = sum_j A[i,j]^c(x[i]) x[j], c = q, k, v, residual",
        update_tex=r"y_i^c = \sum_{j \le i} A_{ij}^c(x_i) \, x_j, \; c \in \{q, k, v, r\}",
        links=("arXiv:2502.12170",),
    )

    def __init__(self, num_sublayers: int, width: int, *, mlp_growth: bool = False, **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        if not isinstance(mlp_growth, bool):
            raise ConfigError("arm.mixer.mlp_growth", mlp_growth, "true or false")
        self.mlp_growth = mlp_growth
        self.num_blocks = -(-num_sublayers // 2)
        self.first, self.second, self.bias = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for i in range(1, self.num_blocks + 1):
            streams, hidden = self._streams(i), self._hidden(i)
            self.normal_init[f"first.{i - 1}"] = width**-0.5
            self.first.append(tagged(torch.zeros(hidden, width), "scalar"))
            self.second.append(tagged(torch.zeros(streams * (i + 1), hidden), "scalar"))
            bias = torch.zeros(streams, i + 1)
            bias[:, i] = 1.0
            self.bias.append(tagged(bias, "scalar"))

    def _streams(self, i: int) -> int:
        """C after block i, counted from 1."""
        return len(STREAMS) if i < self.num_blocks else 1

    def _hidden(self, i: int) -> int:
        factor = 1 if i < self.num_blocks else LAST
        return -(-factor * self._streams(i) * (i + 1) // ROUND) * ROUND

    def mlp_width(self, block: int, width: int) -> int:
        if not self.mlp_growth or self.num_blocks == 1:
            return width
        return max(1, round(width * (block / (self.num_blocks - 1) + 0.5)))

    def begin(self, embedding: Tensor) -> MUDDFormerState:
        return MUDDFormerState((embedding,), embedding)

    def read(self, state: MUDDFormerState, l: int) -> tuple[Read, MUDDFormerState]:
        return (state.stream if state.inputs is None else state.inputs), state

    def write(self, state: MUDDFormerState, l: int, output: Tensor) -> MUDDFormerState:
        stream = state.stream + output
        if l % 2 == 0 and l + 1 < self.num_sublayers:
            return MUDDFormerState(state.states, stream)
        states = (*state.states, stream)
        mixed = self._mixed(states, l // 2)
        if len(mixed) == 1:
            return MUDDFormerState(states, mixed[0])
        query, key, value, residual = mixed
        return MUDDFormerState(states, residual, AttentionInputs(query, key, value))

    def _mixed(self, states: tuple[Tensor, ...], block: int) -> tuple[Tensor, ...]:
        """The streams after a block (counted from 0), [B, T, D] each."""
        current = states[-1]
        with full_precision(current.device):
            weights = self.held(self.weights(current.reshape(-1, self.width), block))
            stacked = torch.stack(states, dim=-2).flatten(0, -3).to(weights.dtype)  # [tokens, S, D]
            mixed = torch.bmm(weights, stacked).to(current.dtype)
        return tuple(stream.view_as(current) for stream in mixed.unbind(1))

    def weights(self, current: Tensor, block: int) -> Tensor:
        """A of a block (counted from 0), [tokens, C, S], from its output [tokens, D]."""
        first, second, bias = self.first[block], self.second[block], self.bias[block]
        dtype = torch.promote_types(current.dtype, torch.float32)
        hidden = normed_projection(current.to(dtype).unsqueeze(1), first.to(dtype), self.eps)
        dynamic = second.to(dtype) @ F.gelu(hidden)
        # Contiguous: a product per token of other strides is made one token at a time.
        return dynamic.T.contiguous().unflatten(-1, bias.shape) + bias.to(dtype)

    def finish(self, state: MUDDFormerState) -> Tensor:
        return state.stream

    def stream(self, state: MUDDFormerState) -> Tensor | None:
        return state.stream

    def flops_per_token(self) -> float:
        total = self.num_sublayers * self.width
        for i, (first, second) in enumerate(zip(self.first, self.second, strict=True), start=1):
            mixing = self._streams(i) * (i + 1) * self.width
            total += 2 * (first.numel() + second.numel() + mixing)
        return float(total)
