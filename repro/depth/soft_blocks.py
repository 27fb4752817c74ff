"""Block AttnRes with learned block boundaries: sublayers belong to blocks by a soft assignment.

Sublayer i belongs to block n by the share p_i(n) = s_i(n - 1) - s_i(n), where s_i(n) is the extent to which
boundary n has been passed before it: a logistic step at a learned position e_n, s_i(n) = sigmoid((i + 1/2 -
e_n) / temperature). Shares of one sublayer are not negative and sum to one. Block n is the sum of what was
written, by shares; a read attends to the embedding and all blocks that can have begun. Letters as in `base`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, tagged
from repro.depth.boundaries import check_num_blocks, ends_by_count
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.errors import ConfigError
from repro.ops.precision import full_precision

#: A block that has begun by less than this counts as one that has not: its logarithm stays finite.
LEAST = 1e-30


class SoftState(NamedTuple):
    """blocks: [B, T, N + 1, D], the embedding and the sums so far, side by side per token.

    queries: of each read [D].  shares: of each sublayer [N + 1], zero for the embedding.  begun: of each read
    [N + 1], the part of a block that has begun, at most one.  dtype: of what is read.
    """

    blocks: Tensor
    queries: tuple[Tensor, ...]
    shares: tuple[Tensor, ...]
    begun: tuple[Tensor, ...]
    dtype: torch.dtype


class SoftBlocks(DepthMixer):
    """Softmax over depth whose blocks have N - 1 learned boundaries, positions in sublayers.

    A block that has only begun stands for the part g_n = min(1, sum of shares so far) of a source:

        read = sum_n pi_n b_n / g_n,   pi_n ~ g_n exp(w . RMSNorm(b_n))

    (g = 1 for the embedding). So a source never appears from nothing, one that is whole weighs as in Block,
    and at zero queries the read is the sum of all that was written over sum_n g_n: PreNorm, at any
    temperature. As the temperature vanishes shares become one-hot and this is Block with the boundaries at
    the positions. Boundary n cannot be passed before sublayer n, so that a read l has at most l + 1 sources.
    Positions start as those of Block with N balanced blocks; they are sorted, so they may cross.

    num_blocks: N.  temperature: width of a step, in sublayers.

    Computed read by read: every sublayer changes every block, so no part of the history is complete and
    nothing can be mixed ahead. The N + 1 sums travel as one tensor, which each write replaces: about
    N + 1 times the traffic of PreNorm's residual, and as many activations kept for the backward pass.
    """

    FACTS = SchemeFacts(
        system="AttnRes Block, soft boundaries",
        weight=DYNAMIC,
        source="[b[0]..b[N]], soft sums",
        update="h[l] ~ sum_n phi(w[l],k[n]) b[n], b[n] = sum_i p[i,n] f[i]",
        update_tex=r"h_l \propto \sum_n \phi(w_l, k_n) b_n, \; b_n = \sum_{i<l} p_{i,n} f_i",
        links=("arXiv:2603.15031",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        num_blocks: int,
        temperature: float = 0.5,
        key_gain: bool = True,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__(num_sublayers, width, eps=eps, execution=execution, backend=backend)
        check_num_blocks(num_sublayers, num_blocks)
        number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
        if not number or not 0 < temperature < math.inf:
            raise ConfigError("arm.mixer.temperature", temperature, "a positive number of sublayers")
        if not isinstance(key_gain, bool):
            raise ConfigError("arm.mixer.key_gain", key_gain, "true or false")
        self.num_blocks, self.temperature = num_blocks, temperature
        self.queries = tagged(torch.zeros(num_sublayers + 1, width), "query")
        self.key_gains = tagged(torch.ones(num_sublayers + 1, width), "gain") if key_gain else None
        ends = ends_by_count(num_sublayers, num_blocks)[:-1]
        self.positions = tagged(torch.tensor(ends, dtype=torch.get_default_dtype()), "scalar")

    def shares(self, dtype: torch.dtype) -> Tensor:
        """p, [L, N]: the share of each block in each sublayer; rows sum to one."""
        positions = self.positions.to(dtype).sort().values
        middles = torch.arange(self.num_sublayers, dtype=dtype, device=positions.device) + 0.5
        passed = torch.sigmoid((middles[:, None] - positions) / self.temperature)  # [L, N - 1]
        passed = passed.tril(-1)  # boundary n, in column n - 1, is passed by sublayer n at the earliest
        ones, zeros = passed.new_ones(self.num_sublayers, 1), passed.new_zeros(self.num_sublayers, 1)
        return torch.cat([ones, passed], 1) - torch.cat([passed, zeros], 1)

    def begin(self, embedding: Tensor) -> SoftState:
        wide = torch.promote_types(embedding.dtype, torch.float32)
        with full_precision(embedding.device):
            queries = self.queries.to(wide)
            if self.key_gains is not None:
                queries = queries * self.key_gains.to(wide)
            shares = torch.nn.functional.pad(self.shares(wide), (1, 0))
            so_far = torch.nn.functional.pad(shares.cumsum(0), (0, 0, 1, 0))  # before each read
            begun = so_far.clamp(LEAST, 1.0)
            empty = embedding.new_zeros(*embedding.shape[:-1], self.num_blocks, self.width, dtype=wide)
            blocks = torch.cat([embedding.to(wide).unsqueeze(-2), empty], -2)
        return SoftState(blocks, queries.unbind(0), shares.unbind(0), begun.unbind(0), embedding.dtype)

    def read(self, state: SoftState, l: int) -> tuple[Tensor, SoftState]:
        sources = self.num_sources(l)
        blocks = state.blocks[..., :sources, :]
        if sources == 1:
            self.record(l, blocks.new_ones(1, 1, *blocks.shape[:-2]))
            return blocks.squeeze(-2).to(state.dtype), state
        with full_precision(blocks.device):
            mean_square = torch.linalg.vector_norm(blocks, dim=-1).square() / self.width
            logits = torch.matmul(blocks, state.queries[l]) * torch.rsqrt(mean_square + self.eps)
            begun = torch.cat([state.begun[l].new_ones(1), state.begun[l][1:sources]])
            weights = torch.softmax(logits + begun.log(), -1)  # [B, T, S]
            self.record(l, weights.movedim(-1, 0).unsqueeze(1))
            mixed = torch.matmul(self.held(weights / begun).unsqueeze(-2), blocks).squeeze(-2)
        return mixed.to(state.dtype), state

    def write(self, state: SoftState, l: int, output: Tensor) -> SoftState:
        output = output.to(state.blocks.dtype).unsqueeze(-2)
        return state._replace(blocks=torch.addcmul(state.blocks, output, state.shares[l].unsqueeze(-1)))

    def finish(self, state: SoftState) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def source_columns(self, l: int) -> list[int]:
        return list(range(min(l, self.num_blocks) + 1))

    def stream(self, state: SoftState) -> Tensor | None:
        return state.blocks.sum(-2)

    def parameters_without_gradient(self) -> set[str]:
        """Row 0 of queries and gains: the first read has one source."""
        return {f"{name}[0]" for name, _ in self.named_parameters() if name != "positions"}

    def flops_per_token(self) -> float:
        """Scores, norms and weighted sums, 6 D per source of each read; 2 D per block of each write."""
        sources = sum(self.num_sources(l) for l in range(1, self.num_sublayers + 1))
        return float(self.width * (6 * sources + 2 * self.num_blocks * self.num_sublayers))
