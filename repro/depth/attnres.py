"""Attention Residuals: each sublayer attends over depth to what the earlier ones wrote (Eqs. 2 to 6).

Full keeps every sublayer output as a source; Block keeps sums over blocks of sublayers, and inside a block
also the partial sum. The embedding is source 0 for good and part of no sum; the first sublayer of a block
sees complete blocks only; the output read has its own query and key norm. Letters as in `base`; N blocks.

Executions compute the same numbers in another order: `per_read` (Fig. 2) scores and mixes all sources at
each read; `score_on_write` scores a source against all later queries once, when it is written, since a
learned query does not wait for activations; `two_phase` (Algorithm 1, Appendix B) also mixes the history
once for a group of reads, into which a read then merges what the group itself has written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro import ops
from repro.depth.base import DepthMixer, tagged
from repro.depth.boundaries import is_whole, source_plan
from repro.errors import ConfigError
from repro.ops.precision import full_precision

QUERIES = ("learned", "latest_source", "mixed_state")
QUERY_NORMS = ("unit", "rms", "none")
#: Two-phase execution: reads that one pass over the history serves, at least (measured on CPU).
READS_PER_GROUP = 8


class AttnResState(NamedTuple):
    """Sources, the partial sum of the open block, and what the execution has computed ahead."""

    sources: tuple[Tensor, ...]
    partial: Tensor | None = None
    queries: Tensor | None = None  # [L + 1, D], learned pseudo-queries times key gains
    projections: tuple[Tensor, ...] = ()  # one [D, D] per read where the query depends on the input
    scores: tuple[dict[int, Tensor], ...] = ()  # per source: first read of a piece -> logits [..., R, H]
    history: tuple[tuple[Tensor, Tensor], ...] = ()  # per read of the group: mix [..., D], logit [..., 1, H]
    mixed: Tensor | None = None  # what the previous sublayer read


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
            ("runtime.backend", backend, tuple(ops.BACKENDS)),
        ):
            if value not in allowed:
                raise ConfigError(key, value, "one of " + ", ".join(allowed))
        self.heads, self.act, self.key_norm = heads, act, key_norm
        self.query, self.query_norm = query, query_norm
        self._mix_act = "sigmoid" if act == "sigmoid" else "softmax"
        self._norm = dict[str, Any](key_norm=key_norm, heads=heads, head_norm=head_norm, eps=eps)
        self._choose_execution(execution)

        reads = num_sublayers + self.output_read
        if query == "learned":
            self.queries = tagged(torch.zeros(reads, width), "query")
        else:
            self.query_projections = tagged(torch.zeros(reads, width, width), "query")
        self.key_gains = tagged(torch.ones(reads, width), "gain") if key_gain and key_norm else None

    def _choose_execution(self, execution: str) -> None:
        """Fall back where an execution does not apply, and group the reads of a two-phase one."""
        if execution == "auto" and self.heads > 1:
            self.execution = "per_read"  # no batched product over heads pays at these widths (measured)
        if self.query != "learned":
            self.execution = "per_read"  # the query waits for an activation: nothing can be scored ahead
        elif self.plan.window is not None and self.execution == "two_phase":
            self.execution = "score_on_write"  # the reads of a group would see different histories
        groups = tuple(range(l, l + 1) for l in range(self.num_sublayers + 1))
        if self.execution == "two_phase":
            groups = self.plan.groups(READS_PER_GROUP)
        reads = range(self.num_sublayers + 1)
        # Plain tuples, so that a pass looks things up and torch.compile sees constants.
        self._group = tuple((group.start, len(group)) for group in groups for _ in group)
        self._visible = tuple(tuple(self.plan.visible(l)) for l in reads)
        self._since_group = tuple(
            self._visible[l][self.plan.completed(start) :] if size > 1 else self._visible[l]
            for l, (start, size) in enumerate(self._group)
        )
        self._pieces = tuple(
            self.plan.pieces(source, self._group, self.num_sublayers + self.output_read)
            for source in range(len(self.plan.ends) + 1)
        )

    # -- the four steps ------------------------------------------------------------------------

    def begin(self, embedding: Tensor) -> AttnResState:
        state = AttnResState((embedding,), mixed=embedding)
        if self.query != "learned":
            return state._replace(projections=self.query_projections.unbind(0))
        state = state._replace(queries=self._folded_queries())
        return state if self.execution == "per_read" else state._replace(scores=(self._score(state),))

    def read(self, state: AttnResState, l: int) -> tuple[Tensor, AttnResState]:
        if self.execution == "per_read":
            mixed = self._mix_at_read(state, l)
        else:
            start, size = self._group[l]
            if size > 1 and l == start:
                state = state._replace(history=self._mix_history(state, l))
            mixed = self._mix_ahead(state, l)
        return mixed, state._replace(mixed=mixed)

    def write(self, state: AttnResState, l: int, output: Tensor) -> AttnResState:
        output = output.to(state.sources[0].dtype)  # under autocast, sums and sources stay as wide as it
        partial = output if state.partial is None else state.partial + output
        if l + 1 not in self.plan.ends:
            return state._replace(partial=partial)
        state = state._replace(sources=(*state.sources, partial), partial=None)
        if self.execution == "per_read":
            return state
        return state._replace(scores=(*state.scores, self._score(state)))

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
        if state.queries is not None:
            query = state.queries[l]
        else:
            query = self._projected_query(state, l, sources[-1])
            gain = None if self.key_gains is None else self.key_gains[l]
        mixed, weights = ops.depth_mix(
            sources, query, key_weight=gain, act=self.act, backend=self.backend, **self._norm
        )
        self.record(l, weights)
        return mixed

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

    def _logits(self, source: Tensor, queries: Tensor) -> Tensor:
        """[..., R, H]; the normalised sigmoid is a softmax of log-sigmoids and needs no further case."""
        logits = ops.score_source(source, queries, backend=self.backend, **self._norm)
        return ops.log_sigmoid(logits) if self.act == "sigmoid_normalized" else logits

    def _score(self, state: AttnResState) -> dict[int, Tensor]:
        """Score the newest source against the reads that will see it, in the pieces that they are used in."""
        assert state.queries is not None
        reads, pieces = self._pieces[len(state.sources) - 1]
        if not reads:
            return {}
        contiguous = reads[-1] - reads[0] + 1 == len(reads)
        rows = state.queries[reads[0] : reads[-1] + 1] if contiguous else state.queries[list(reads)]
        logits = self._logits(state.sources[-1], rows)
        parts = logits.split([size for _, size in pieces], -2)
        return {start: part for (start, _), part in zip(pieces, parts, strict=True)}

    def _mix_history(self, state: AttnResState, l: int) -> tuple[tuple[Tensor, Tensor], ...]:
        """Phase 1: the complete sources mixed for all reads of the group that starts at read l."""
        logits = [scores[l] for scores in state.scores]
        if len(logits) == 1 and self.act != "sigmoid":
            mixed = state.sources * logits[0].shape[-2]
            lse = logits[0]
        else:
            mix, lse = ops.mix_scored(state.sources, logits, act=self._mix_act, backend=self.backend)
            mixed = mix.unbind(-2)
        return tuple(zip(mixed, lse.split(1, -2), strict=True))

    def _mix_ahead(self, state: AttnResState, l: int) -> Tensor:
        """Phase 2: merge what came after the history (everything, where a read is its own group)."""
        start, size = self._group[l]
        sources, logits = [], []
        if size > 1:
            mix, logit = state.history[l - start]
            sources, logits = [mix], [logit]
        sources += [state.sources[i] for i in self._since_group[l]]
        logits += [state.scores[i][l] for i in self._since_group[l]]
        if state.partial is not None:
            assert state.queries is not None
            sources.append(state.partial)
            logits.append(self._logits(state.partial, state.queries[l : l + 1]))
        if self.tap is not None:
            self._record_ahead(state, l, logits[-1])
        dtype = state.sources[0].dtype
        if len(sources) == 1 and (size > 1 or self.act != "sigmoid"):
            return sources[0].to(dtype)
        mixed, _ = ops.mix_scored(sources, logits, act=self._mix_act, dtype=dtype, backend=self.backend)
        return mixed.squeeze(-2)

    @torch.no_grad()
    def _record_ahead(self, state: AttnResState, l: int, last: Tensor) -> None:
        """Weights of read l from the logits of all its sources; `last` is the partial sum's, if any."""
        start, size = self._group[l]
        logits = []
        for i in self._visible[l]:
            scores = state.scores[i]
            in_history = size > 1 and i not in self._since_group[l]
            logits.append(scores[start].narrow(-2, l - start, 1) if in_history else scores[l])
        if state.partial is not None:
            logits.append(last)
        stack = torch.stack(logits).squeeze(-2)
        weights = stack.sigmoid() if self.act == "sigmoid" else stack.softmax(0)
        self.record(l, weights.movedim(-1, 1))

    # -- accounts ------------------------------------------------------------------------------

    def source_columns(self, l: int) -> list[int]:
        return self.plan.columns(l)

    def source_labels(self, l: int) -> list[str]:
        return self.plan.labels(l)

    @property
    def depth_heads(self) -> int:
        return self.heads

    def stream(self, state: AttnResState) -> Tensor | None:
        return state.sources[-1] if state.partial is None else state.partial

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
