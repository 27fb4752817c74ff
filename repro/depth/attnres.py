"""Attention Residuals: each sublayer attends over depth to what the earlier ones wrote (Eqs. 2 to 6).

Full keeps every sublayer output as a source; Block keeps sums over blocks of sublayers, and inside a block
also the partial sum. The embedding is source 0 for good and part of no sum; the first sublayer of a block
sees complete blocks only; the output read has its own query and key norm. Letters as in `base`; N blocks.

Executions compute the same numbers in another order: `per_read` (Fig. 2) scores and mixes all sources at
each read; the other two compute ahead (`phased`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from repro import ops
from repro.depth.base import BACKENDS, tagged
from repro.depth.boundaries import is_whole, source_plan
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.depth.phased import AttnResState, PhasedReads
from repro.errors import ConfigError
from repro.ops.precision import full_precision
from repro.ops.reference import split_heads

QUERIES = ("learned", "latest_source", "mixed_state")
QUERY_NORMS = ("unit", "rms", "none")


class AttnRes(PhasedReads):
    """Attention over depth with one pseudo-query per read, zero at the start (the mean of the sources).

    block_size: sublayers per block, 1 (default) is Full; the last block may be shorter.  num_blocks: that
    many balanced blocks instead.  window: on Full, a read sees the embedding and the last so many sources;
    window_output: whether the output read sees `all` sources, as in Full, or the `window`.
    heads: channel groups with weights of their own; head_norm: one key RMS per head, not over the width.
    act: softmax, sigmoid, sigmoid_normalized.  key_norm, key_gain: RMSNorm of the keys and its learnable
    gain (no gain without the norm).  query: `learned`; or projected, by a zero-initialised matrix per read,
    from the `latest_source` or the `mixed_state` (what the previous sublayer read).  query_norm: of that
    activation, so that logits do not follow its size: `unit` length, unit `rms`, or `none`.
    """

    FACTS = SchemeFacts(
        system="AttnRes Full",
        weight=DYNAMIC,
        source="[h[1]..h[l-1]]",
        update="h[l] ~ sum_i phi(w[l],k[i]) v[i]",
        update_tex=r"h_l \propto \sum_{i<l} \phi(w_l, k_i) v_i",
        links=("arXiv:2603.15031",),
    )
    executions: tuple[str, ...] = ("two_phase", "score_on_write", "per_read")
    output_read = True
    stream_has_outputs_gradient = True

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        block_size: int | None = None,
        num_blocks: int | None = None,
        window: int | None = None,
        window_output: str = "all",
        heads: int = 1,
        head_norm: bool = False,
        act: str = "softmax",
        key_norm: bool = True,
        key_gain: bool = True,
        query: str = "learned",
        query_norm: str = "unit",
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__(num_sublayers, width, eps=eps, execution=execution, backend=backend)
        self.plan = source_plan(num_sublayers, block_size, num_blocks, window, window_output)
        if not is_whole(heads, 1) or width % heads:
            raise ConfigError("arm.mixer.heads", heads, f"a divisor of the width, {width}")
        for key, value, allowed in (
            ("arm.mixer.act", act, ops.ACTS),
            ("arm.mixer.query", query, QUERIES),
            ("arm.mixer.query_norm", query_norm, QUERY_NORMS),
            ("runtime.backend", backend, BACKENDS),
        ):
            if value not in allowed:
                raise ConfigError(key, value, "one of " + ", ".join(allowed))
        reason = ops.refusal(backend, act=act, heads=heads, key_norm=key_norm, token_query=query != "learned")
        if reason is not None:
            raise ConfigError("runtime.backend", backend, f"one that can compute this arm ({reason})")
        self.heads, self.act, self.key_norm = heads, act, key_norm
        self.query, self.query_norm = query, query_norm
        self._mix_act = "sigmoid" if act == "sigmoid" else "softmax"
        self._norm = dict[str, Any](key_norm=key_norm, heads=heads, head_norm=head_norm, eps=eps)
        self._keys = ops.key_normalisation(**self._norm)
        self._choose_execution(execution)

        reads = num_sublayers + self.output_read
        self._add_queries(reads)
        self.key_gains = tagged(torch.ones(reads, width), "gain") if key_gain and key_norm else None

    def _add_queries(self, reads: int) -> None:
        """The parameters that the queries of so many reads come from."""
        if self.query == "learned":
            self.queries = tagged(torch.zeros(reads, self.width), "query")
        else:
            self.query_projections = tagged(torch.zeros(reads, self.width, self.width), "query")

    def _projections(self) -> tuple[Tensor, ...]:
        """What projects the query of each read from an activation."""
        return self.query_projections.unbind(0)

    def _choose_execution(self, execution: str) -> None:
        """Fall back where an execution does not apply, and plan which mix uses which score."""
        if execution == "auto" and self.heads > 1:
            self.execution = "per_read"  # no batched product over heads pays at these widths (measured)
        if self.backend in ops.SINGLE_READS:
            self.execution = "per_read"  # the backend knows no phases
        if self.query != "learned":
            self.execution = "per_read"  # the query waits for an activation: nothing can be scored ahead
        elif self.plan.window is not None and self.execution == "two_phase":
            self.execution = "score_on_write"  # the reads of a group would see different histories
        self._plan_reads()

    # -- the four steps ------------------------------------------------------------------------

    def begin(self, embedding: Tensor) -> AttnResState:
        state = AttnResState((embedding,), mixed=embedding)
        if self.query != "learned":
            return state._replace(projections=self._projections())
        queries = self._folded_queries()
        state = state._replace(queries=queries.unbind(0), stacked=queries)
        if self.execution == "per_read":
            return state
        state = state._replace(ops=ops.backend_for(self.backend, embedding.device))
        return self._add_source(state, embedding, None)

    def read(self, state: AttnResState, l: int) -> tuple[Tensor, AttnResState]:
        if self.execution == "per_read":
            mixed = self._mix_at_read(state, l)
            return mixed, state._replace(mixed=mixed if self.query == "mixed_state" else None)
        for level in range(len(self._levels)):
            group = self._levels[level][l]
            if l == group.start and len(group) > 1:
                state = self._mix_group(state, level, group)
        return self._finish_read(state, l)

    def write(self, state: AttnResState, l: int, output: Tensor) -> AttnResState:
        output = output.to(state.sources[0].dtype)  # under autocast, sums and sources stay as wide as it
        completes = l + 1 in self.plan.ends
        if self.execution != "per_read":
            if completes:
                return self._add_source(state, output, state.partial)
            return state._replace(latest=output)
        partial = output if state.partial is None else state.partial + output
        if completes:
            return state._replace(sources=(*state.sources, partial), partial=None)
        return state._replace(partial=partial)

    def finish(self, state: AttnResState) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    # -- per_read ------------------------------------------------------------------------------

    def _sources(self, state: AttnResState, l: int) -> list[Tensor]:
        """What read l mixes, in the order of `source_columns`."""
        partial = [] if state.partial is None else [state.partial]
        return [state.sources[i] for i in self._visible[l]] + partial

    def _mix_at_read(self, state: AttnResState, l: int) -> Tensor:
        sources = self._sources(state, l)
        if len(sources) == 1 and self.act != "sigmoid":
            return self._only_source(l, sources[0])
        gain = None
        if state.queries:
            query = state.queries[l]
        else:
            query = self._projected_query(state, l, sources[-1])
            gain = None if self.key_gains is None else self.key_gains[l]
        mixed, weights = self._mix_sources(l, sources, query, gain)
        self.record(l, weights)
        if self.frozen:
            return self._weighted_sum(sources, self.held(weights))
        return mixed

    def _mix_sources(
        self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Read l of its sources by a query, [D] or [B, T, D], and the weights [S, H, B, T]."""
        return ops.depth_mix(
            sources, query, key_weight=gain, act=self.act, backend=self.backend, **self._norm
        )

    @staticmethod
    def _weighted_sum(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
        """The mix by given weights [S, H, B, T], differentiable in the sources."""
        values = torch.stack([split_heads(source.to(weights.dtype), weights.shape[1]) for source in sources])
        return (weights.movedim(1, -1).unsqueeze(-1) * values).sum(0).flatten(-2).to(sources[0].dtype)

    def _projected_query(self, state: AttnResState, l: int, latest: Tensor) -> Tensor:
        """Query [B, T, D] from an activation."""
        origin = latest if self.query == "latest_source" else state.mixed
        assert origin is not None
        with full_precision(origin.device):
            projection = state.projections[l]
            origin = self._normalised(origin, projection.dtype)
            return torch.nn.functional.linear(origin, projection.to(origin.dtype))

    def _normalised(self, origin: Tensor, dtype: torch.dtype) -> Tensor:
        """What a query is projected from, in its own dtype or a wider `dtype`."""
        origin = origin.to(torch.promote_types(origin.dtype, dtype))
        if self.query_norm != "none":
            origin = torch.nn.functional.rms_norm(origin, (self.width,), eps=self.eps)
        return origin * self.width**-0.5 if self.query_norm == "unit" else origin

    def _only_source(self, l: int, source: Tensor) -> Tensor:
        """One source has weight one whatever the query, which gets no gradient."""
        if self.tap is not None:
            self.record(l, source.new_ones(1, self.heads, *source.shape[:-1]))
        return source

    # -- accounts ------------------------------------------------------------------------------

    def facts(self) -> SchemeFacts:
        if self.plan.window is not None:
            return replace(self.FACTS, source=f"h[1] and the last {self.plan.window} outputs")
        if len(self.plan.ends) == self.num_sublayers:
            return self.FACTS
        return replace(
            self.FACTS,
            system="AttnRes Block",
            source="[b[0]..b[n-1], b[n]^j]",
            update="h[l] ~ sum_i phi(w[l],k[i]) v[i] + phi(w[l],k[n]^j) v[n]^j",
            update_tex=r"h_l \propto \sum_{i<n} \phi(w_l, k_i) v_i + \phi(w_l, k_n^j) v_n^j",
        )

    def source_columns(self, l: int) -> list[int]:
        return self.plan.columns(l)

    def source_labels(self, l: int) -> list[str]:
        return self.plan.labels(l)

    @property
    def depth_heads(self) -> int:
        return self.heads

    def stream(self, state: AttnResState) -> Tensor | None:
        parts = [part for part in (state.partial, state.latest) if part is not None]
        return sum(parts[1:], parts[0]) if parts else state.sources[-1]

    def parameters_without_gradient(self) -> set[str]:
        """Row 0: the first read has one source, whose weight is one except under a raw sigmoid."""
        if self.act == "sigmoid" or self.num_sources(0) > 1:
            return set()
        return {f"{name}[0]" for name, _ in self.named_parameters()}

    def flops_per_token(self) -> float:
        """Scores and weighted sums, 4 D per source of each read; 2 D per distinct key; block sums."""
        reads = range(self.num_sublayers + self.output_read)
        mixing = 4 * sum(self.num_sources(l) for l in reads)
        keys = 2 * (len(self.plan.ends) + 1 + sum(self.plan.outputs_in_partial(l) > 0 for l in reads))
        sums = self.num_sublayers - len(self.plan.ends)
        projections = 2 * self.width * len(reads) if self.query != "learned" else 0
        return float(self.width * (mixing + keys * self.key_norm + sums + projections))
