"""AttnRes with an input-dependent query that still allows two phases: it comes from a lagged activation.

Reads are taken in groups, and the queries of a whole group are projected from one activation that exists
before the group's first read. So all of a group's queries are known when its history is complete, and the
history is mixed for all of them at once, as in Algorithm 1, exactly: only the query's origin differs from the
paper's input-dependent variant, in which it waits for the latest activation. Letters as in `base`; G reads of
a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.boundaries import is_whole
from repro.depth.facts import SchemeFacts
from repro.depth.low_rank_query import check_origin
from repro.depth.phased import AttnResState
from repro.errors import ConfigError
from repro.ops.history import History
from repro.ops.precision import full_precision
from repro.ops.token_scores import token_scores


class LaggedQuery(AttnRes):
    """Queries projected, by a zero-initialised matrix per read, from what was there when the group began.

    lag: reads of a group, at least; a group begins where a block begins and takes whole blocks, and the
    output read joins the last. At block_size S and lag S a group is a block; lag 1 on Full is the
    input-dependent query of `AttnRes` itself, but for the output read.
    query: `latest_source` (default: the last complete source before the group, so the embedding or the last
    block) or `mixed_state` (what the last sublayer before the group read). Other options as in `AttnRes`, but
    for the window, in which the reads of a group would see different histories.

    `two_phase`: a group's queries are one product of its projections with the origin, the logits of its
    history one batched product, and the mixes those of `phased`. Sources that complete inside a group are
    scored and mixed by each of its later reads.
    """

    executions = ("two_phase", "per_read")

    def __init__(
        self, num_sublayers: int, width: int, *, lag: int = 8, query: str = "latest_source", **options: Any
    ) -> None:
        if not is_whole(lag, 1):
            raise ConfigError("arm.mixer.lag", lag, "a whole number of reads, at least 1")
        check_origin(query)
        if options.get("window") is not None:
            raise ConfigError("arm.mixer.window", options["window"], "null where queries are lagged")
        self.lag = lag
        super().__init__(num_sublayers, width, query=query, **options)

    def _choose_execution(self, execution: str) -> None:
        self._plan_reads()

    def _plan_reads(self) -> None:
        super()._plan_reads()
        groups = self.plan.groups(self.lag)
        self._group = tuple(group for group in groups for _ in group)
        self._group_index = tuple(i for i, group in enumerate(groups) for _ in group)
        self._group_sizes = [len(range(group.start, min(group.stop, self._num_reads))) for group in groups]
        batched = self.execution == "two_phase" and max(self._group_sizes) > 1
        self._levels = (self._group,) if batched else ()

    # -- the steps -----------------------------------------------------------------------------

    def begin(self, embedding: Tensor) -> AttnResState:
        state = AttnResState((embedding,), mixed=embedding)
        if self.execution == "per_read":
            return state._replace(projections=self._projections())
        projections = self.query_projections.split(self._group_sizes)  # [G, D, D] of each group
        backend = ops.backend_for(self.backend, embedding.device)
        return state._replace(projections=projections, scores=({},), ops=backend)

    def read(self, state: AttnResState, l: int) -> tuple[Tensor, AttnResState]:
        group = self._group[l]
        if l == group.start:
            if self.query == "latest_source":
                state = state._replace(mixed=state.sources[-1])
            if self.execution != "per_read":
                state = self._open_group(state, l)
        if self.execution == "per_read":
            mixed = self._mix_at_read(state, l)
        else:
            inside = range(self._completed[group.start], self._completed[l])  # complete since the group began
            if inside:
                state = self._score_reads(state, inside, l, self._own_query(state, l))
            mixed, state = self._finish_read(state, l)
        if self.query == "mixed_state" and l + 1 == group.stop:
            state = state._replace(mixed=mixed)
        return mixed, state

    def _projected_query(self, state: AttnResState, l: int, latest: Tensor) -> Tensor:
        assert state.mixed is not None  # where a group began; `latest` is what there is by now
        return super()._projected_query(state, l, state.mixed)

    # -- two_phase -----------------------------------------------------------------------------

    def _open_group(self, state: AttnResState, l: int) -> AttnResState:
        """Project a group's queries, score its history against all of them and mix it."""
        group = self._group[l]
        projection = state.projections[self._group_index[l]]
        assert state.mixed is not None
        with full_precision(state.mixed.device):
            origin = self._normalised(state.mixed, projection.dtype)
            flat = projection.flatten(0, 1).to(origin.dtype)
            queries = torch.nn.functional.linear(origin, flat).unflatten(-1, projection.shape[:2])
            if self.key_gains is not None:
                queries = queries * self.key_gains[l : l + len(projection)].to(queries.dtype)
        state = state._replace(queries=queries.unbind(-2))
        state = self._score_reads(state, range(len(state.sources)), l, queries)
        return self._mix_group(state, 0, group) if self._levels and len(projection) > 1 else state

    def _score_reads(
        self, state: AttnResState, sources: Sequence[int], l: int, queries: Tensor
    ) -> AttnResState:
        """Logits of some complete sources against queries [B, T, R, D] of the reads from l on."""
        logits = self._logits([state.sources[i] for i in sources], queries)
        scores = list(state.scores)
        for i, logit in zip(sources, logits, strict=True):
            scores[i] = {l: logit}
        return state._replace(scores=tuple(scores))

    def _logits(self, sources: Sequence[Tensor], queries: Tensor) -> tuple[Tensor, ...]:
        """[B, T, R, H] of each source."""
        logits = token_scores(sources, queries, self._keys)
        if self.act == "sigmoid_normalized":  # a softmax of log-sigmoids, as in `phased`
            return tuple(ops.log_sigmoid(logit) for logit in logits)
        return logits

    def _own_query(self, state: AttnResState, l: int) -> Tensor:
        """[B, T, 1, D]."""
        return state.queries[l - self._group[l].start].unsqueeze(-2)

    def _add_source(self, state: AttnResState, output: Tensor, partial: Tensor | None) -> AttnResState:
        """Complete a source; it is scored when the reads that see it come."""
        source = output if partial is None else partial + output
        sources, scores = (*state.sources, source), (*state.scores, {})
        return state._replace(sources=sources, partial=None, latest=None, scores=scores)

    def _merge(self, state: AttnResState, l: int, prior: History) -> tuple[Tensor, Tensor]:
        assert state.latest is not None
        assert state.ops is not None
        source = state.latest if state.partial is None else state.partial + state.latest
        logits = self._logits([source], self._own_query(state, l))
        with full_precision(source.device):
            (read,), (source,) = state.ops.mix(
                [source], logits, [prior], act=self._mix_act, dtype=source.dtype, continued=[False]
            )
        return read.mixed, source

    @torch.no_grad()
    def _record_ahead(self, state: AttnResState, l: int) -> None:
        start = self._group[l].start
        logits = []
        for i in self._visible[l]:
            scores = state.scores[i]
            logits.append(scores[l].select(-2, 0) if l in scores else scores[start].select(-2, l - start))
        if state.partial is not None:
            (own,) = self._logits([state.partial], self._own_query(state, l))
            logits.append(own.squeeze(-2))
        stack = torch.stack(logits)
        weights = stack.sigmoid() if self.act == "sigmoid" else stack.softmax(0)
        self.record(l, weights.movedim(-1, 1))

    # -- accounts ------------------------------------------------------------------------------

    def facts(self) -> SchemeFacts:
        facts = super().facts()
        return replace(facts, system=f"{facts.system}, lagged input query")
