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
from repro.ops.reference import split_heads


class LaggedQuery(AttnRes):
    """Queries projected, by a zero-initialised matrix per read, from what was there when the group began.

    lag: reads of a group, at least; a group begins where a block begins and takes whole blocks, and the
    output read joins the last. At block_size S and lag S a group is a block; lag 1 on Full is the
    input-dependent query of `AttnRes` itself, but for the output read.
    query: `latest_source` (default: the last complete source before the group, so the embedding or the last
    block) or `mixed_state` (what the last sublayer before the group read). Other options as in `AttnRes`, but
    for the window, in which the reads of a group would see different histories.

    `two_phase`: a group's queries are one product of its projections with the origin, the logits of its
    history one batched product, and the mixes those of `phased`. A source that completes inside a group is
    scored against the group's remaining reads when it is written.
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
        logits = self._token_logits(state.sources, queries)
        state = state._replace(stacked=queries, scores=tuple({l: logit} for logit in logits))
        return self._mix_group(state, 0, group) if self._levels and len(projection) > 1 else state

    def _token_logits(self, sources: Sequence[Tensor], queries: Tensor) -> tuple[Tensor, ...]:
        """Logits [B, T, R, H] of each source against queries [B, T, R, D] that differ from token to token."""
        with full_precision(queries.device):
            values = torch.stack(list(sources), -2).to(queries.dtype)  # [B, T, S, D]
            if self.heads == 1:
                logits = torch.matmul(queries, values.mT).unsqueeze(-1)  # [B, T, R, S, 1]
            else:
                by_head = split_heads(queries, self.heads), split_heads(values, self.heads)
                logits = torch.einsum("...rhd,...shd->...rsh", *by_head)
            if self._keys.groups:
                grouped = split_heads(values, self._keys.groups)
                mean_square = torch.linalg.vector_norm(grouped, dim=-1).square() / grouped.shape[-1]
                logits = logits * torch.rsqrt(mean_square + self.eps).unsqueeze(-3)
            if self.act == "sigmoid_normalized":  # a softmax of log-sigmoids, as in `phased`
                logits = ops.log_sigmoid(logits)
            return logits.unbind(-2)

    def _add_source(self, state: AttnResState, output: Tensor, partial: Tensor | None) -> AttnResState:
        """Complete a source and score it against what is left of the open group (later ones do so as they open)."""
        source = output if partial is None else partial + output
        first = self._reads_from(len(state.sources))
        scores: dict[int, Tensor] = {}
        if first < self._num_reads and first != self._group[first].start:
            assert state.stacked is not None
            start = self._group[first].start
            (logits,) = self._token_logits([source], state.stacked[..., first - start :, :])
            scores = {first + i: logit for i, logit in enumerate(logits.split(1, -2))}
        sources = (*state.sources, source)
        return state._replace(sources=sources, partial=None, latest=None, scores=(*state.scores, scores))

    def _reads_from(self, source: int) -> int:
        """The first read that sees a complete source."""
        return 0 if source == 0 else self.plan.ends[source - 1]

    def _own_query(self, state: AttnResState, l: int) -> Tensor:
        """[B, T, 1, D]."""
        assert state.stacked is not None
        row = l - self._group[l].start
        return state.stacked[..., row : row + 1, :]

    def _merge(self, state: AttnResState, l: int, prior: History) -> tuple[Tensor, Tensor]:
        assert state.latest is not None
        assert state.ops is not None
        source = state.latest if state.partial is None else state.partial + state.latest
        logits = self._token_logits([source], self._own_query(state, l))
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
            (own,) = self._token_logits([state.partial], self._own_query(state, l))
            logits.append(own.squeeze(-2))
        stack = torch.stack(logits)
        weights = stack.sigmoid() if self.act == "sigmoid" else stack.softmax(0)
        self.record(l, weights.movedim(-1, 1))

    # -- accounts ------------------------------------------------------------------------------

    def facts(self) -> SchemeFacts:
        facts = super().facts()
        return replace(facts, system=f"{facts.system}, lagged input query")
