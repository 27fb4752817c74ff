"""AttnRes with an input-dependent query of low rank: q_l(x) = U_l V_l x, D -> r -> D.

The paper's best variant (Table 4, "Full w/ input-dependent query") has a D x D matrix per read, which at its
widths is as large as an attention projection; two factors of rank r cost 2 r D. Letters as in `base`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.base import tagged
from repro.depth.boundaries import is_whole
from repro.depth.facts import SchemeFacts
from repro.depth.phased import AttnResState
from repro.errors import ConfigError
from repro.ops.precision import full_precision

ORIGINS = ("latest_source", "mixed_state")


def check_origin(query: str) -> None:
    """ConfigError unless a query is projected from an activation."""
    if query not in ORIGINS:
        raise ConfigError("arm.mixer.query", query, "one of " + ", ".join(ORIGINS))


class LowRankQuery(AttnRes):
    """Queries projected from an activation through a bottleneck of rank r.

    rank: r, from 1 to the width; query: `latest_source` (default) or `mixed_state`, as in `AttnRes`, whose
    other options hold. U (`query_up`) starts at zero, so that weights are uniform; V (`query_down`) at
    normal(0, 1 / r), which keeps the length of the activation on average. With r = D and V the identity this
    is the full matrix.

    Computed read by read, as every query that waits for the latest activation: the weights of a read, and so
    its mix, cannot be known before.
    """

    executions = ("per_read",)

    def __init__(
        self, num_sublayers: int, width: int, *, rank: int = 8, query: str = "latest_source", **options: Any
    ) -> None:
        if not is_whole(rank, 1, width):
            raise ConfigError("arm.mixer.rank", rank, f"a whole number from 1 to the width, {width}")
        check_origin(query)
        self.rank = rank
        super().__init__(num_sublayers, width, query=query, **options)
        self.normal_init["query_down"] = rank**-0.5

    def _add_queries(self, reads: int) -> None:
        self.query_down = tagged(torch.zeros(reads, self.rank, self.width), "query")
        self.query_up = tagged(torch.zeros(reads, self.rank, self.width), "query")

    def _projections(self) -> tuple[Tensor, ...]:
        """V_l and the transpose of U_l, [2, r, D], of each read."""
        return torch.stack([self.query_down, self.query_up], 1).unbind(0)

    def _projected_query(self, state: AttnResState, l: int, latest: Tensor) -> Tensor:
        origin = latest if self.query == "latest_source" else state.mixed
        assert origin is not None
        with full_precision(origin.device):
            factors = state.projections[l]
            origin = self._normalised(origin, factors.dtype)
            down, up = factors.to(origin.dtype).unbind(0)
            return torch.matmul(torch.matmul(origin, down.mT), up)

    def flops_per_token(self) -> float:
        """Two factors in place of one matrix, 4 r D instead of 2 D^2 per read."""
        reads = self.num_sublayers + self.output_read
        difference = (4 * self.rank - 2 * self.width) * self.width * reads
        return super().flops_per_token() + float(difference)

    def facts(self) -> SchemeFacts:
        facts = super().facts()
        return replace(facts, system=f"{facts.system}, low-rank input query")
