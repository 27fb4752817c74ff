"""Relatives of AttnRes that move its logits: a bias per distance, and a temperature per read.

Both keep every execution, with the same numbers. A temperature is a factor of its query. A bias depends on
read and source alone, so it is added when a source is scored; and since a softmax sees no common shift,
biases are stated against that of the latest source, which is then zero. The partial sum of a block is always
the latest, so where it is merged into a history nothing is to be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from repro.depth.attnres import AttnRes
from repro.depth.base import tagged
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.logit_reads import LogitReads, relative_facts
from repro.depth.phased import AttnResState, rows_of
from repro.errors import ConfigError

BIASES = ("distance", "latest", "slope")


class RecencyBias(LogitReads):
    """A bias on the logit of each source by its distance: how many sources of the read are newer than it.

    bias: `distance`, one learned scalar per distance from 1 on, shared by all reads, zero at the start;
    `latest`, one learned scalar per read on its latest source, zero at the start (a form found in code that
    converts checkpoints); `slope`, fixed, -slope times the distance, as ALiBi has it over tokens
    (arXiv:2108.12409). slope: positive, and only with bias `slope`, which does not start as PreNorm.
    The biases are the same for all heads. Blocks count as one source, the partial sum as the latest.
    """

    FACTS = SchemeFacts(
        system="AttnRes, recency bias",
        weight=DYNAMIC,
        source="[h[1]..h[l-1]]",
        update="h[l] ~ sum_i phi(w[l],k[i]) exp(r[l-i]) v[i]",
        update_tex=r"h_l \propto \sum_{i<l} \phi(w_l, k_i)\, e^{r_{l-i}} v_i",
    )
    distances: Tensor

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        bias: str = "distance",
        slope: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(num_sublayers, width, **options)
        self._require_logits()
        if bias not in BIASES:
            raise ConfigError("arm.mixer.bias", bias, "one of " + ", ".join(BIASES))
        number = isinstance(slope, int | float) and not isinstance(slope, bool)
        if bias == "slope" and not (number and 0 < slope < float("inf")):  # type: ignore[operator]
            raise ConfigError("arm.mixer.slope", slope, "a positive number with bias slope")
        if bias != "slope" and slope is not None:
            raise ConfigError("arm.mixer.slope", slope, "null unless bias is slope")
        self.bias, self.slope = bias, slope
        distances = [self._distances_of(l) for l in range(num_sublayers + 1)]
        self.register_buffer("distances", torch.tensor(distances), persistent=False)
        if bias == "distance":
            self.biases = tagged(torch.zeros(max(map(max, distances))), "scalar")
        elif bias == "latest":
            self.biases = tagged(torch.zeros(num_sublayers + self.output_read), "scalar")

    def _distances_of(self, l: int) -> list[int]:
        """Distance of every complete source at read l, 0 where it does not exist yet."""
        newest = self.plan.completed(l) - 1 + (self.plan.outputs_in_partial(l) > 0)
        return [max(newest - i, 0) for i in range(len(self.plan.ends) + 1)]

    def _offsets(
        self, reads: int | slice | list[int], sources: int | list[int], dtype: torch.dtype
    ) -> Tensor:
        """What is added to the logits of complete sources, less what the latest source would get."""
        distances = self.distances[reads, sources]
        if self.bias == "slope":
            assert self.slope is not None
            return -self.slope * distances.to(dtype)
        biases = self.biases.to(dtype)
        if self.bias == "latest":
            return -biases[reads] * (distances > 0)
        return F.pad(biases, (1, 0))[distances]

    def _score(
        self,
        state: AttnResState,
        reads: Sequence[int],
        source: Tensor,
        addend: Tensor | None,
        index: int | None,
    ) -> tuple[Tensor, Tensor]:
        logits, source = super()._score(state, reads, source, addend, index)
        if index is not None:
            logits = logits + self._offsets(rows_of(reads), index, logits.dtype).unsqueeze(-1)
        return logits, source

    def logits(self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None) -> Tensor:
        found = super().logits(l, sources, query, gain)
        offsets = self._offsets(l, list(self._visible[l]), found.dtype)
        offsets = F.pad(offsets, (0, len(sources) - len(offsets)))  # the partial sum
        return found + offsets.view(-1, *(1 for _ in found.shape[1:]))

    def parameters_without_gradient(self) -> set[str]:
        """Of biases per read the first; of biases per distance none."""
        return super().parameters_without_gradient() - ({"biases[0]"} if self.bias == "distance" else set())


class Temperature(AttnRes):
    """Logits divided by a learned temperature per read, 1 at the start.

    Stored as its logarithm, so that it stays positive. As a function it adds nothing to a free query; as a
    parameter it lets one number sharpen a read. At zero queries its gradient is zero.
    """

    FACTS = SchemeFacts(
        system="AttnRes, learned temperature",
        weight=DYNAMIC,
        source="[h[1]..h[l-1]]",
        update="h[l] ~ sum_i phi(w[l] / t[l],k[i]) v[i]",
        update_tex=r"h_l \propto \sum_{i<l} \phi(w_l / \tau_l, k_i) v_i",
    )

    def __init__(self, num_sublayers: int, width: int, **options: Any) -> None:
        super().__init__(num_sublayers, width, **options)
        self.log_temperatures = tagged(torch.zeros(num_sublayers + self.output_read), "scalar")

    def _folded_queries(self) -> Tensor:
        queries = super()._folded_queries()
        return queries * torch.exp(-self.log_temperatures.to(queries.dtype)).unsqueeze(-1)

    def _projected_query(self, state: AttnResState, l: int, latest: Tensor) -> Tensor:
        query = super()._projected_query(state, l, latest)
        return query * torch.exp(-self.log_temperatures[l].to(query.dtype))

    def facts(self) -> SchemeFacts:
        return relative_facts(self.FACTS, super().facts())
