"""Deep Delta Learning (Table 5, "DDL"): a state of d_v columns, erased and written along a sublayer's output.

The state of a token is H [D, d_v] (here its transpose, d_v streams as rows). With k the sublayer's output at
unit length, a gate beta in (0, 2) and a value v [d_v],

    H <- (I - beta k k^T) H + beta k v^T   =   H + beta k (v - H^T k)^T

erases a share beta of what H holds along k and writes v there. The right form says that each column only
ever gains multiples of what the sublayers wrote, w = beta (v - H^T k) / |f|: as a mixture over depth (Fig. 9)
the weights are scalars, M[l, i] = r_l^T w_i for a read r_l^T of the columns, of rank at most d_v across cuts.
With beta = 0 the state stays as it is.

Table 5 fixes the update alone. The rest is of medium certainty and follows the official code: x is what the
sublayer reads; beta = 2 sigmoid(w_b^T RMSNorm(x) + b), 1 at the start; v = 4 sigmoid(W_v x + b_v), 2 on
average at the start, W_v drawn so that the columns can differ; the embedding is repeated into all columns,
and a read is their mean at the start, with learned weights, by way of a short convolution over tokens. The
convolution is left out here unless asked for, since it mixes tokens, which no other scheme does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from repro.depth.base import DepthMixer, tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.streams import check_count, widened
from repro.errors import ConfigError
from repro.ops.precision import full_precision
from repro.ops.streams import add, gather

VALUES, VALUE_INPUTS = ("sigmoid", "linear"), ("raw", "normed")
#: the largest v under the sigmoid, and the length that is added (squared) to that of a sublayer's output
VALUE_SCALE, KEY_EPS = 4.0, 1e-5


class DDLState(NamedTuple):
    """columns [tokens, d_v, D]; gates: beta [tokens, 1] and v [tokens, d_v] between a read and its write.

    shape: of the embedding.  weights and biases: of the gates, per sublayer, [1 + d_v, D] and [1 + d_v].
    """

    columns: Tensor
    gates: tuple[Tensor, Tensor] | None
    shape: torch.Size
    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]


class DDL(DepthMixer):
    """The delta rule over depth.

    streams: d_v; with one, reads are the state itself.  value: `sigmoid` (4 sigmoid, as published) or
    `linear`.  value_input: v from what the sublayer reads, `raw` (as published) or `normed`.  conv: taps of a
    causal depth-wise convolution over tokens before each read, 0 for none; starts as the identity.
    Errors: ConfigError for `arm.mixer.streams`, `.value`, `.value_input`, `.conv`.
    """

    FACTS = SchemeFacts(
        system="DDL",
        weight=DYNAMIC,
        source="d_v streams",
        update="H[l] = (I - b k k^T) H[l-1] + b k v^T",
        update_tex=r"H_l = (I - \beta_l k_l k_l^\top) H_{l-1} + \beta_l k_l v_l^\top",
        links=("arXiv:2601.00417",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        streams: int = 1,
        value: str = "sigmoid",
        value_input: str = "raw",
        conv: int = 0,
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        check_count("arm.mixer.streams", streams)
        for key, given, allowed in (("value", value, VALUES), ("value_input", value_input, VALUE_INPUTS)):
            if given not in allowed:
                raise ConfigError(f"arm.mixer.{key}", given, "must be " + " or ".join(allowed))
        if not isinstance(conv, int) or isinstance(conv, bool) or conv < 0:
            raise ConfigError("arm.mixer.conv", conv, "a number of taps, 0 for no convolution")
        self.streams, self.value, self.value_input = streams, value, value_input
        self.gate = tagged(torch.zeros(num_sublayers, width), "scalar")
        self.gate_bias = tagged(torch.zeros(num_sublayers), "scalar")
        self.value_weight = tagged(torch.zeros(num_sublayers, streams, width), "scalar")
        self.value_bias = tagged(torch.zeros(num_sublayers, streams), "scalar")
        # Equal columns would stay equal: all that tells them apart is what is written into them.
        self.normal_init["value_weight"] = 0.5 * width**-0.5
        reads = num_sublayers + 1
        mean = torch.full((reads, streams), 1 / streams)
        self.read_weight = tagged(mean, "scalar") if streams > 1 else None
        last = F.pad(torch.ones(reads, 1, streams, width), (0, 0, 0, 0, max(conv - 1, 0), 0))
        self.conv = tagged(last, "scalar") if conv else None

    def begin(self, embedding: Tensor) -> DDLState:
        columns = embedding.reshape(-1, 1, self.width).expand(-1, self.streams, -1).contiguous()
        wide = torch.promote_types(embedding.dtype, torch.float32)
        weights = torch.cat((self.gate[:, None], self.value_weight), 1).to(wide)
        biases = torch.cat((self.gate_bias[:, None], self.value_bias), 1).to(wide)
        return DDLState(columns, None, embedding.shape, weights.unbind(0), biases.unbind(0))

    def read(self, state: DDLState, l: int) -> tuple[Tensor, DDLState]:
        columns = state.columns
        with full_precision(columns.device):
            x = self._compressed(widened(columns), state.shape, l)
            gates = self._gates(x, state.weights[l], state.biases[l])
        return x.to(columns.dtype).view(state.shape), state._replace(gates=gates)

    def write(self, state: DDLState, l: int, output: Tensor) -> DDLState:
        assert state.gates is not None
        beta, value = state.gates
        with full_precision(state.columns.device):
            columns = widened(state.columns)
            y = output.reshape(-1, self.width).to(columns.dtype)
            inverse = y.square().sum(-1, keepdim=True).add(KEY_EPS**2).rsqrt()
            held_there = torch.bmm(columns, y[:, :, None])[:, :, 0] * inverse  # H^T k, [tokens, d_v]
            places = self.held(beta * inverse * (value - held_there))
            columns = add(columns, places, y)
        return state._replace(columns=columns.to(state.columns.dtype), gates=None)

    def finish(self, state: DDLState) -> Tensor:
        with full_precision(state.columns.device):
            x = self._compressed(widened(state.columns), state.shape, self.num_sublayers)
        return x.to(state.columns.dtype).view(state.shape)

    def stream(self, state: DDLState) -> Tensor | None:
        """The mean over columns, what a read starts as."""
        return state.columns.mean(1).view(state.shape)

    def _compressed(self, columns: Tensor, shape: torch.Size, l: int) -> Tensor:
        """What read l takes from the columns [tokens, d_v, D]: [tokens, D]."""
        if self.conv is not None:
            columns = _convolved(columns, shape, self.conv[l].to(columns.dtype))
        if self.read_weight is None:
            return columns.squeeze(1)
        return gather(columns, self.read_weight[l].to(columns.dtype).expand(columns.shape[0], -1))

    def _gates(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """beta [tokens, 1] and v [tokens, d_v] from x [tokens, D], both by one product."""
        inverse = x.square().mean(-1, keepdim=True).add(self.eps).rsqrt()
        gate, value = (x @ weight.T).split((1, self.streams), -1)
        if self.value_input == "normed":
            value = value * inverse
        value = value + bias[1:]
        if self.value == "sigmoid":
            value = VALUE_SCALE * value.sigmoid()
        return 2 * (gate * inverse + bias[:1]).sigmoid(), value

    def flops_per_token(self) -> float:
        n, width = self.streams, self.width
        read = (2 * n if n > 1 else 0) + (2 * n * self.conv.shape[1] if self.conv is not None else 0)
        write = 2 + 2 * (1 + n) + 2 + 2 * n + 2 * n  # norm and gates of x, norm of k, H^T k, add
        return float(width * (self.num_sublayers * write + (self.num_sublayers + 1) * read))


def _convolved(columns: Tensor, shape: torch.Size, kernel: Tensor) -> Tensor:
    """sum_k kernel[K - 1 - k] H[t - k] over tokens up to t; columns [B T, d_v, D], kernel [K, d_v, D]."""
    by_token = columns.view(-1, shape[-2], *columns.shape[1:])
    total = by_token * kernel[-1]
    for k in range(1, min(len(kernel), shape[-2])):
        total = total + F.pad(by_token[:, :-k] * kernel[-1 - k], (0, 0, 0, 0, k, 0))
    return total.view_as(columns)
