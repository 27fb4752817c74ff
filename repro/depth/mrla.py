"""MRLA, multi-head recurrent layer attention, carried over from images to tokens.

Table 5 writes h_l = sum_i sigma(ConvPool(f_{l-1}))^T sigma(ConvPool(f_i)) Conv(f_i), per group of channels (a
head). In the original, queries and keys are the global average over positions, convolved along the channels
with a short kernel, and values a depthwise convolution over positions. Tokens keep to themselves in a
residual scheme (an average over positions would see the future), so here

    q_l = a_l * rms(v_l),  k_i = b_i * rms(v_i)      *: convolution along the channels, of odd length
    h_l = sum_{i <= l} w(q_l, k_i) g_i v_i           g_i: gain per channel, a depthwise kernel of length one

for read l over the embedding v_0 and what the sublayers wrote, v_1, ..., v_l; rms has no gain. The query is
made of the latest source. The output read is one more of the same kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, tagged
from repro.depth.boundaries import is_whole
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.errors import ConfigError
from repro.ops.head_mix import head_scores, head_sum
from repro.ops.matmul import linear
from repro.ops.norm import rms_norm
from repro.ops.precision import full_precision

ACTS = ("sigmoid", "softmax")


class MRLAState(NamedTuple):
    """query: of the next read.  keys, values: of all sources, [B, T, D] each; values with their gain.

    kernels: the two convolutions of each source as one matrix [2 D, D].  dtype: of reads.
    """

    query: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    kernels: tuple[Tensor, ...]
    dtype: torch.dtype


class MRLA(DepthMixer):
    """Attention over depth with a query, a key and a value per source.

    heads: channel groups.  kernel: length of the convolutions along the channels, odd.
    act: "sigmoid" (Table 5: w = <sigmoid(q), sigmoid(k)>, no sum to one) or "softmax" over the sources of
    <q, k> / sqrt(D / heads), as in the published code. Kernels start at zero (for softmax those of the
    keys as the identity, since at zero neither would get a gradient), gains at one: all weights of a read are
    equal, so both start as PreNorm in front of a norm without eps.
    Errors: ConfigError for `arm.mixer.heads`, `.kernel`, `.act`.
    """

    FACTS = SchemeFacts(
        system="MRLA",
        weight=DYNAMIC,
        source="[h[1]..h[l-1]]",
        update="h[l] = sum_i s(conv f[l-1])^T s(conv f[i]) g[i] f[i]",
        update_tex=(r"h_l = \sum_{i<l} \sigma(a_l * f_{l-1})^\top \sigma(b_i * f_i) \; g_i \odot f_i"),
        links=("arXiv:2302.03985",),
    )
    per_channel = True
    shifts: Tensor

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        heads: int = 4,
        kernel: int = 3,
        act: str = "sigmoid",
        **common: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **common)
        if not is_whole(heads, 1) or width % heads:
            raise ConfigError("arm.mixer.heads", heads, f"a divisor of the width, {width}")
        if not is_whole(kernel, 1) or kernel % 2 == 0:
            raise ConfigError("arm.mixer.kernel", kernel, "an odd whole number")
        if act not in ACTS:
            raise ConfigError("arm.mixer.act", act, "one of " + ", ".join(ACTS))
        self.heads, self.act = heads, act
        # Shift j moves channel c + j - kernel // 2 to c: the sum of shifts by the kernel is the convolution.
        reach = range(-(kernel // 2), kernel // 2 + 1)
        shifts = torch.stack(
            [torch.diag_embed(torch.ones(max(width - abs(j), 0)), j)[:width, :width] for j in reach]
        )
        self.register_buffer("shifts", shifts.flatten(1), persistent=False)
        start = torch.zeros(num_sublayers + 1, kernel)
        identity = start.clone()
        identity[:, kernel // 2] = 1.0
        self.query_kernels = tagged(start, "scalar")
        self.key_kernels = tagged(identity if act == "softmax" else start.clone(), "scalar")
        self.value_gains = tagged(torch.ones(num_sublayers + 1, width), "scalar")

    def begin(self, embedding: Tensor) -> MRLAState:
        wide = torch.promote_types(embedding.dtype, torch.float32)
        kernels = torch.stack((self.query_kernels, self.key_kernels), dim=1).to(wide)  # [L + 1, 2, kernel]
        with full_precision(embedding.device):
            matrices = (kernels @ self.shifts.to(wide)).view(len(kernels), 2 * self.width, self.width)
        return self._added(MRLAState(embedding, (), (), matrices.unbind(0), embedding.dtype), embedding)

    def _added(self, state: MRLAState, source: Tensor) -> MRLAState:
        """The state with one more source, and the query that is made of it."""
        i = len(state.keys)
        matrix = state.kernels[i]
        with full_precision(source.device):
            wide = source.to(matrix.dtype)
            x = rms_norm(wide, wide.new_ones(self.width), self.eps)
            both = linear(x, matrix).split(self.width, dim=-1)
            # Contiguous: a key is gone through once per later read.
            query, key = (y.sigmoid() if self.act == "sigmoid" else y.contiguous() for y in both)
            value = wide * self.value_gains[i].to(wide.dtype)
        return state._replace(query=query, keys=(*state.keys, key), values=(*state.values, value))

    def read(self, state: MRLAState, l: int) -> tuple[Tensor, MRLAState]:
        with full_precision(state.query.device):
            scores, keys = head_scores(state.query, state.keys, self.heads)  # [S, B, T, H]
            if self.act == "softmax":
                scores = (scores * (self.width // self.heads) ** -0.5).softmax(0)
            weights = self.held(scores)
            x, values = head_sum(weights, state.values)
        self.record(l, weights.movedim(-1, 1))
        return x.to(state.dtype), state._replace(keys=keys, values=values)

    def write(self, state: MRLAState, l: int, output: Tensor) -> MRLAState:
        return self._added(state, output.to(state.dtype))

    def finish(self, state: MRLAState) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def stream(self, state: MRLAState) -> Tensor | None:
        return state.values[-1]

    def source_columns(self, l: int) -> list[int]:
        return list(range(l + 1))

    def source_labels(self, l: int) -> list[str]:
        """g<i>: source i times its gain, which the weights do not contain."""
        return [f"g{c}" for c in self.source_columns(l)]

    @property
    def depth_heads(self) -> int:
        return self.heads

    def parameters_without_gradient(self) -> set[str]:
        """Softmax over the only source of read 0 is one whatever its query."""
        return {"query_kernels[0]"} if self.act == "softmax" else set()

    def flops_per_token(self) -> float:
        """4 D per read and source; per source two banded matrices, the norm and the gain."""
        num = self.num_sublayers + 1
        return float(self.width * (2 * num * (num + 1) + num * (4 * self.width + 4)))
