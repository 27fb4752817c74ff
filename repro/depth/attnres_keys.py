"""LR-AttnRes: logits from keys of low rank, r channels instead of D; values stay whole (arXiv:2607.09694).

Keys are the first r channels (sliced) or a learned projection D -> r. The order of norm and cut is not the
same everywhere. Normalised over the width first, a low-rank key is a linear map of AttnRes's key,

    u . (P norm(v)) = (P^T u) . norm(v),

so a read is one of AttnRes whose query is P^T u (for a slice: u, then zeros): exact in every execution and
backend, and W = U P has rank r. Normalised after the cut, as in the authors' code, keys are scored apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from repro import ops
from repro.depth.base import tagged
from repro.depth.boundaries import is_whole
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.logit_reads import LogitReads
from repro.depth.phased import AttnResState, rows_of
from repro.errors import ConfigError
from repro.ops.precision import full_precision

KEYS = ("sliced", "projected", "projected_per_read")
NORMS_OVER = ("width", "rank")


class LowRankKeys(LogitReads):
    """AttnRes with r-channel keys, and queries and key gains [L + 1, r].

    rank: r, from 1 to D; null is D / 4 rounded down, but at least 1.  keys: `sliced`; `projected` by one
    matrix [r, D] for all reads; `projected_per_read` by one for each read (under norm_over `width` that adds
    nothing to a free query as a function, and it differs in optimisation only).  norm_over: `width`, the key
    is normalised and then cut; `rank`, the r channels are normalised. The projection is drawn from a normal
    of standard deviation D^-1/2, so that keys start with unit size; the authors' 1 / sqrt(r) in the logits
    and their keys fused into the sublayers' output matrices are left out. One head, learned queries.
    """

    FACTS = SchemeFacts(
        system="LR-AttnRes",
        weight=DYNAMIC,
        source="[h[1]..h[l-1]]",
        update="h[l] ~ sum_i phi(u[l],P k[i]) v[i], P: D -> r",
        update_tex=r"h_l \propto \sum_{i<l} \phi(u_l, P k_i) v_i,\; P \in \mathbb{R}^{r \times D}",
        links=("arXiv:2607.09694",),
    )

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        rank: int | None = None,
        keys: str = "sliced",
        norm_over: str = "width",
        **options: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **options)
        if rank is not None and not is_whole(rank, 1, width):
            raise ConfigError("arm.mixer.rank", rank, f"a whole number from 1 to the width, {width}, or null")
        for key, value, allowed in (
            ("arm.mixer.keys", keys, KEYS),
            ("arm.mixer.norm_over", norm_over, NORMS_OVER),
        ):
            if value not in allowed:
                raise ConfigError(key, value, "one of " + ", ".join(allowed))
        if self.heads != 1:
            raise ConfigError("arm.mixer.heads", self.heads, "1 with low-rank keys")
        if self.query != "learned":
            raise ConfigError("arm.mixer.query", self.query, "learned with low-rank keys")
        if norm_over == "rank":
            self._require_logits()
        self.rank = max(width // 4, 1) if rank is None else rank
        self.low_rank, self.norm_over = keys, norm_over

        reads = num_sublayers + self.output_read
        self.queries = tagged(torch.zeros(reads, self.rank), "query")
        if self.key_gains is not None:
            self.key_gains = tagged(torch.ones(reads, self.rank), "gain")
        if keys != "sliced":
            # The slice, until a model draws it.
            projection = torch.eye(self.rank, width)
            if keys == "projected_per_read":
                projection = projection.repeat(reads, 1, 1)
            self.projection = tagged(projection, "query")
            self.normal_init["projection"] = width**-0.5

    # -- normalised over the width: queries of AttnRes ---------------------------------------------

    def _folded_queries(self) -> Tensor:
        """[L + 1, D]; [L + 1, r] where keys are normalised over the rank."""
        queries = super()._folded_queries()
        if self.norm_over == "rank":
            return queries
        if self.low_rank == "sliced":
            return F.pad(queries, (0, self.width - self.rank))
        with full_precision(queries.device):
            projection = self.projection.to(queries.dtype)
            return (queries.unsqueeze(-2) @ projection).squeeze(-2)

    def _mix_sources(
        self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if self.norm_over == "rank":
            return super()._mix_sources(l, sources, query, gain)
        return super(LogitReads, self)._mix_sources(l, sources, query, gain)

    # -- normalised over the rank --------------------------------------------------------------------

    @property
    def _logits_in_merge(self) -> bool:
        return self.norm_over == "width" and super()._logits_in_merge

    def logits(self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None) -> Tensor:
        rows = query.unsqueeze(0)
        return torch.stack([self._of_rank(source, rows, (l,)).squeeze(-2) for source in sources])

    def _score(
        self,
        state: AttnResState,
        reads: Sequence[int],
        source: Tensor,
        addend: Tensor | None,
        index: int | None,
    ) -> tuple[Tensor, Tensor]:
        if self.norm_over == "width":
            return super()._score(state, reads, source, addend, index)
        assert state.stacked is not None
        source = source if addend is None else source + addend
        with full_precision(source.device):
            return self._of_rank(source, state.stacked[rows_of(reads)], reads), source

    def _of_rank(self, source: Tensor, queries: Tensor, reads: Sequence[int]) -> Tensor:
        """Logits [..., R, 1] of queries [R, r] against the key of a source [..., D], normalised over r."""
        wide = source.to(torch.promote_types(source.dtype, queries.dtype))
        if self.low_rank == "projected_per_read":
            projections = self.projection[rows_of(reads)].to(wide.dtype)
            own = F.linear(wide, projections.flatten(0, 1)).unflatten(-1, projections.shape[:2])
            logits = (own * queries).sum(-1)
            if self.key_norm:
                logits = logits * torch.rsqrt(own.square().mean(-1) + self.eps)
            return logits.unsqueeze(-1)
        if self.low_rank == "sliced":
            key = wide[..., : self.rank].contiguous()
        else:
            key = F.linear(wide, self.projection.to(wide.dtype))
        return ops.score(key, queries, self._keys, backend=self.backend)[0]

    # -- accounts ------------------------------------------------------------------------------------

    def parameters_without_gradient(self) -> set[str]:
        """Row 0 of what each read has, but not of the projection that all share."""
        shared = {"projection[0]"} if self.low_rank == "projected" else set()
        return super().parameters_without_gradient() - shared

    def flops_per_token(self) -> float:
        """As AttnRes where its queries are folded; else products over r, and 2 r D per projected key."""
        flops = super().flops_per_token()
        if self.norm_over == "width":
            return flops
        reads = range(self.num_sublayers + self.output_read)
        pairs = sum(self.num_sources(l) for l in reads)
        distinct = len(self.plan.ends) + 1 + sum(self.plan.outputs_in_partial(l) > 0 for l in reads)
        projected = {"sliced": 0, "projected": distinct, "projected_per_read": pairs}[self.low_rank]
        spared = 2 * (self.width - self.rank) * (pairs + distinct * self.key_norm)
        return flops - spared + 2.0 * self.rank * self.width * projected
