"""Attention Residuals: each sublayer attends over depth to what the earlier ones wrote (Eqs. 2 to 6).

Full keeps every sublayer output as a source; Block keeps sums over blocks of sublayers, and inside a block
also the partial sum. The embedding is source 0 for good and part of no sum; the first sublayer of a block
sees complete blocks only; the output read has its own query and key norm. Letters as in `base`; N blocks.

Executions compute the same numbers in another order: `per_read` (Fig. 2) scores and mixes all sources at
each read; `score_on_write` scores a source against all later queries once, when it is written, since a
learned query does not wait for activations; `two_phase` (Algorithm 1, Appendix B) also mixes the history
once for a group of reads, at two levels: a group's history once for its reads, and what the group has
written since once for the reads of a smaller group. A read adds what is left and merges the partial sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro import ops
from repro.depth.base import BACKENDS, DepthMixer, tagged
from repro.depth.boundaries import is_whole, source_plan
from repro.depth.facts import DYNAMIC, SchemeFacts
from repro.errors import ConfigError
from repro.ops import Backend, History
from repro.ops.precision import full_precision
from repro.ops.reference import split_heads

QUERIES = ("learned", "latest_source", "mixed_state")
QUERY_NORMS = ("unit", "rms", "none")
#: Two-phase execution: reads that one pass over the history serves, at least, outer and inner; of blocks, and
#: where every output is a source. Kernels move the fewest bytes so (`make traffic`), CPUs are indifferent.
READS_PER_GROUP, READS_PER_GROUP_OF_FULL = (8, 4), (16, 4)


class AttnResState(NamedTuple):
    """Sources, the partial sum of the open block, and what the execution has computed ahead."""

    sources: tuple[Tensor, ...]
    partial: Tensor | None = None  # of all outputs of the open block but the latest
    latest: Tensor | None = None  # output that no read has seen yet, in an open block
    queries: tuple[Tensor, ...] = ()  # of each read [D], learned pseudo-queries times key gains
    stacked: Tensor | None = None  # the same as [L + 1, D]
    projections: tuple[Tensor, ...] = ()  # one [D, D] per read where the query depends on the input
    scores: tuple[dict[int, Tensor], ...] = ()  # per source: first read of a piece -> logits [..., R, H]
    ahead: dict[int, History] | None = None  # read -> what was mixed ahead for it
    mixed: Tensor | None = None  # what the previous sublayer read, where a query is projected from it
    ops: Backend | None = None  # picked once a pass; its arguments are ours, so that nothing checks them


class AttnRes(DepthMixer):
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
        if query == "learned":
            self.queries = tagged(torch.zeros(reads, width), "query")
        else:
            self.query_projections = tagged(torch.zeros(reads, width, width), "query")
        self.key_gains = tagged(torch.ones(reads, width), "gain") if key_gain and key_norm else None

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
        two_phase = self.execution == "two_phase"
        # Plain tuples, so that a pass looks things up and torch.compile sees constants.
        full = len(self.plan.ends) == self.num_sublayers
        sizes = READS_PER_GROUP_OF_FULL if full else READS_PER_GROUP
        self._levels = self.plan.levels(sizes) if two_phase else ()
        self._num_reads = self.num_sublayers + self.output_read
        reads = range(self.num_sublayers + 1)
        self._visible = tuple(tuple(self.plan.visible(l)) for l in reads)
        self._completed = tuple(self.plan.completed(l) for l in reads)
        self._pieces = tuple(
            self.plan.pieces(source, self._levels, self._num_reads)
            for source in range(len(self.plan.ends) + 1)
        )

    # -- the four steps ------------------------------------------------------------------------

    def begin(self, embedding: Tensor) -> AttnResState:
        state = AttnResState((embedding,), mixed=embedding)
        if self.query != "learned":
            return state._replace(projections=self.query_projections.unbind(0))
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
        mixed, weights = ops.depth_mix(
            sources, query, key_weight=gain, act=self.act, backend=self.backend, **self._norm
        )
        self.record(l, weights)
        if self.frozen:
            return self._weighted_sum(sources, self.held(weights))
        return mixed

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
            origin = origin.to(torch.promote_types(origin.dtype, projection.dtype))
            if self.query_norm != "none":
                origin = torch.nn.functional.rms_norm(origin, (self.width,), eps=self.eps)
            if self.query_norm == "unit":
                origin = origin * self.width**-0.5
            return torch.nn.functional.linear(origin, projection.to(origin.dtype))

    def _only_source(self, l: int, source: Tensor) -> Tensor:
        """One source has weight one whatever the query, which gets no gradient."""
        if self.tap is not None:
            self.record(l, source.new_ones(1, self.heads, *source.shape[:-1]))
        return source

    # -- score_on_write and two_phase ------------------------------------------------------------

    def _folded_queries(self) -> Tensor:
        """[L + 1, D]: a logit sees a pseudo-query and its key gain only as their product."""
        wide = torch.promote_types(self.queries.dtype, torch.float32)
        queries = self.queries.to(wide)
        return queries if self.key_gains is None else queries * self.key_gains.to(wide)

    def _add_source(self, state: AttnResState, output: Tensor, partial: Tensor | None) -> AttnResState:
        """Complete a source and score it against the reads that will see it, in the pieces they use."""
        assert state.stacked is not None
        reads, pieces = self._pieces[len(state.scores)]
        source = output if partial is None else partial
        scores: dict[int, Tensor] = {}
        if reads:
            contiguous = reads[-1] - reads[0] + 1 == len(reads)
            rows = state.stacked[reads[0] : reads[-1] + 1] if contiguous else state.stacked[list(reads)]
            addend = None if partial is None else output
            assert state.ops is not None
            with full_precision(source.device):
                logits, source = state.ops.score(source, rows, self._keys, addend)
            if self.act == "sigmoid_normalized":  # a softmax of log-sigmoids: no further case below
                logits = ops.log_sigmoid(logits)
            parts = logits.split([size for _, size in pieces], -2)
            scores = {start: part for (start, _), part in zip(pieces, parts, strict=True)}
        elif partial is not None:
            source = partial + output
        sources = (source,) if not state.scores else (*state.sources, source)
        return state._replace(sources=sources, partial=None, latest=None, scores=(*state.scores, scores))

    def _mix_group(self, state: AttnResState, level: int, group: range) -> AttnResState:
        """Phase 1: mix what no outer level has mixed yet, for all reads of a group at once."""
        start = group.start
        new = range(self._covered(start, level), self._completed[start])
        if not new:
            return state
        reads = [l for l in group if l < self._num_reads]
        ahead = state.ahead or {}
        priors = [ahead[l] for l in reads if l in ahead]
        # The group's first read is complete with its history; all others have more to come.
        histories, state = self._mix(state, new, start, priors, None, [l != start for l in reads])
        return state._replace(ahead={**ahead, **dict(zip(reads, histories, strict=True))})

    def _covered(self, l: int, level: int) -> int:
        """Sources that the levels above `level` have mixed when read l is computed."""
        above = [groups[l] for groups in self._levels[:level] if len(groups[l]) > 1]
        return self._completed[above[-1].start] if above else 0

    def _mix(
        self,
        state: AttnResState,
        sources: Sequence[int],
        piece: int,
        priors: Sequence[History],
        dtype: torch.dtype | None,
        continued: Sequence[bool],
    ) -> tuple[list[History], AttnResState]:
        """Some sources on top of the priors; the state goes on with what the mix returns of them."""
        assert state.ops is not None
        with full_precision(state.sources[0].device):
            histories, passed = state.ops.mix(
                [state.sources[i] for i in sources],
                [state.scores[i][piece] for i in sources],
                priors,
                act=self._mix_act,
                dtype=dtype,
                continued=continued,
            )
        kept = list(state.sources)
        for i, source in zip(sources, passed, strict=True):
            kept[i] = source
        return histories, state._replace(sources=tuple(kept))

    def _finish_read(self, state: AttnResState, l: int) -> tuple[Tensor, AttnResState]:
        """Phase 2: what no level has mixed, then the partial sum with the latest output."""
        dtype = state.sources[0].dtype
        ahead = dict(state.ahead or {})
        prior = ahead.pop(l, None)  # and not kept: a merge saves its read instead
        state = state._replace(ahead=ahead)
        rest = self._visible[l][self._covered(l, len(self._levels)) :]
        if rest:
            open_block = state.latest is not None
            priors = [] if prior is None else [prior]
            (prior,), state = self._mix(state, rest, l, priors, None if open_block else dtype, [open_block])
        assert prior is not None
        if state.latest is None:
            mixed = prior.mixed.to(dtype)
        else:
            mixed, partial = self._merge(state, l, prior)
            state = state._replace(partial=partial, latest=None)
        if self.tap is not None:
            self._record_ahead(state, l)
        return mixed, state

    def _merge(self, state: AttnResState, l: int, prior: History) -> tuple[Tensor, Tensor]:
        """Read l of its history and the partial sum, and that partial sum with the latest output in it."""
        assert state.latest is not None
        assert state.stacked is not None
        if self.act != "sigmoid_normalized":
            assert state.ops is not None
            with full_precision(state.latest.device):
                return state.ops.merge(
                    prior, state.partial, state.latest, state.queries[l], self._keys, self._mix_act
                )
        source = state.latest if state.partial is None else state.partial
        addend = None if state.partial is None else state.latest
        logits, source = ops.score(
            source, state.stacked[l : l + 1], self._keys, addend=addend, backend=self.backend
        )
        (read,), (source,) = ops.mix(
            [source], [ops.log_sigmoid(logits)], [prior], dtype=source.dtype, backend=self.backend
        )
        return read.mixed, source

    @torch.no_grad()
    def _record_ahead(self, state: AttnResState, l: int) -> None:
        """Weights of read l from the logits of all its sources."""
        logits = []
        for i in self._visible[l]:
            start = max(start for start, _ in self._pieces[i][1] if start <= l)
            logits.append(state.scores[i][start][..., l - start, :])
        if state.partial is not None:
            own, _ = ops.score(state.partial, state.queries[l].unsqueeze(0), self._keys, backend=self.backend)
            own = ops.log_sigmoid(own) if self.act == "sigmoid_normalized" else own
            logits.append(own.squeeze(-2))
        stack = torch.stack(logits)
        weights = stack.sigmoid() if self.act == "sigmoid" else stack.softmax(0)
        self.record(l, weights.movedim(-1, 1))

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
