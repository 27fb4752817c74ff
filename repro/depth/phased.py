"""Reads of AttnRes computed ahead: `score_on_write` and `two_phase` (Algorithm 1, Appendix B).

A learned query does not wait for activations, so a source is scored against all its readers when it is
written, and the history of a group of reads is mixed once for all of them, at two levels. A read then adds
what is left and merges the partial sum. Numbers are those of `per_read`. Letters as in `base`; N blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from repro import ops
from repro.depth.base import DepthMixer
from repro.depth.boundaries import SourcePlan
from repro.ops import Backend, History, Norm
from repro.ops.precision import full_precision

#: Two-phase execution: reads that one pass over the history serves, at least, outer and inner; of blocks, and
#: where every output is a source. Kernels move the fewest bytes so (`make traffic`), CPUs are indifferent.
READS_PER_GROUP, READS_PER_GROUP_OF_FULL = (8, 4), (16, 4)


def rows_of(reads: Sequence[int]) -> slice | list[int]:
    """Index of ascending rows; a slice where they are adjacent, so that nothing is copied."""
    first, last = reads[0], reads[-1]
    return slice(first, last + 1) if last - first + 1 == len(reads) else list(reads)


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


class PhasedReads(DepthMixer):
    """A scheme whose reads are attention over depth with learned queries; of what, its subclass says.

    plan: which sources a read sees.  queries, key_gains: [L + 1, D], gains or None.  act: of `repro.ops`.
    """

    plan: SourcePlan
    queries: nn.Parameter
    key_gains: nn.Parameter | None
    act: str
    output_read: bool
    _mix_act: str
    _keys: Norm

    def _plan_reads(self) -> None:
        """Look up what each read needs once: plain tuples, so that torch.compile sees constants."""
        two_phase = self.execution == "two_phase"
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

    def _folded_queries(self) -> Tensor:
        """[L + 1, D]: a logit sees a pseudo-query and its key gain only as their product."""
        wide = torch.promote_types(self.queries.dtype, torch.float32)
        queries = self.queries.to(wide)
        return queries if self.key_gains is None else queries * self.key_gains.to(wide)

    def _add_source(self, state: AttnResState, output: Tensor, partial: Tensor | None) -> AttnResState:
        """Complete a source and score it against the reads that will see it, in the pieces they use."""
        index = len(state.scores)
        reads, pieces = self._pieces[index]
        source = output if partial is None else partial
        scores: dict[int, Tensor] = {}
        if reads:
            addend = None if partial is None else output
            logits, source = self._score(state, reads, source, addend, index)
            parts = logits.split([size for _, size in pieces], -2)
            scores = {start: part for (start, _), part in zip(pieces, parts, strict=True)}
        elif partial is not None:
            source = partial + output
        sources = (source,) if not state.scores else (*state.sources, source)
        return state._replace(sources=sources, partial=None, latest=None, scores=(*state.scores, scores))

    def _score(
        self,
        state: AttnResState,
        reads: Sequence[int],
        source: Tensor,
        addend: Tensor | None,
        index: int | None,
    ) -> tuple[Tensor, Tensor]:
        """Logits [..., R, H] of a source plus addend for some reads, and that source to go on with.

        index: of a complete source; None for the partial sum of the open block.
        """
        assert state.stacked is not None
        assert state.ops is not None
        with full_precision(source.device):
            logits, source = state.ops.score(source, state.stacked[rows_of(reads)], self._keys, addend)
        # A softmax of log-sigmoids: no further case where these are mixed.
        return ops.log_sigmoid(logits) if self.act == "sigmoid_normalized" else logits, source

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

    @property
    def _logits_in_merge(self) -> bool:
        """Whether the logit of a partial sum is one that the `merge` of a backend computes itself."""
        return self.act != "sigmoid_normalized"

    def _merge(self, state: AttnResState, l: int, prior: History) -> tuple[Tensor, Tensor]:
        """Read l of its history and the partial sum, and that partial sum with the latest output in it."""
        assert state.latest is not None
        if self._logits_in_merge:
            assert state.ops is not None
            with full_precision(state.latest.device):
                return state.ops.merge(
                    prior, state.partial, state.latest, state.queries[l], self._keys, self._mix_act
                )
        source = state.latest if state.partial is None else state.partial
        addend = None if state.partial is None else state.latest
        logits, source = self._score(state, (l,), source, addend, None)
        (read,), (source,) = ops.mix(
            [source], [logits], [prior], act=self._mix_act, dtype=source.dtype, backend=self.backend
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
            own, _ = self._score(state, (l,), state.partial, None, None)
            logits.append(own.squeeze(-2))
        stack = torch.stack(logits)
        weights = stack.sigmoid() if self.act == "sigmoid" else stack.softmax(0)
        self.record(l, weights.movedim(-1, 1))
