"""Reads of AttnRes in two steps, logits and then weights: the base of relatives that change either.

`logits` and `weigh` say what changes. A subclass whose weights are no softmax of the logits derives from
`WeighedReads`, whose reads have all their logits before them; one that only moves logits keeps the
executions of `phased`. Letters as in `base`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.base import SINGLE_READS
from repro.depth.facts import SchemeFacts
from repro.depth.phased import AttnResState
from repro.errors import ConfigError
from repro.ops.precision import full_precision
from repro.ops.reference import compute_dtype, fold, keys, split_heads


def relative_facts(own: SchemeFacts, attnres: SchemeFacts) -> SchemeFacts:
    """What a relative states, with the sources that AttnRes has under the same options, named if blocks."""
    blocks = attnres.system != own.system  # AttnRes renames what it is given where it forms blocks
    return replace(own, source=attnres.source, system=own.system + (", blocks" if blocks else ""))


class LogitReads(AttnRes):
    """AttnRes whose logits are formed apart from its weights; `act` must be softmax, the rest as there."""

    def _require_logits(self) -> None:
        """ConfigError where logits cannot be had, or would not be those of a softmax."""
        if self.act != "softmax":
            raise ConfigError("arm.mixer.act", self.act, f"softmax for {type(self).__name__}")
        if self.backend in SINGLE_READS:
            raise ConfigError("runtime.backend", self.backend, "one that gives logits (not a package's read)")

    def facts(self) -> SchemeFacts:
        return relative_facts(self.FACTS, super().facts())

    def logits(self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None) -> Tensor:
        """Logits [S, ..., H] of read l, a query being [D] or [..., D]; of the definition, for `per_read`."""
        folded = fold(query, gain)
        dtype = compute_dtype(*sources, folded)
        folded = split_heads(folded.to(dtype), self.heads)
        return torch.stack([(keys(v.to(dtype), **self._norm) * folded).sum(-1) for v in sources])

    def weigh(self, logits: Tensor) -> Tensor:
        """Weights of logits [S, ...], over the first axis."""
        return logits.softmax(0)

    def _mix_sources(
        self, l: int, sources: Sequence[Tensor], query: Tensor, gain: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        with full_precision(sources[0].device):
            weights = self.weigh(self.logits(l, sources, query, gain))
        (read,), _ = ops.mix(
            sources,
            list(weights.unsqueeze(-2).unbind(0)),
            act="linear",
            dtype=sources[0].dtype,
            backend=self.backend,
        )
        return read.mixed, weights.movedim(-1, 1)


class WeighedReads(LogitReads):
    """Weights need all logits of a read at once, so nothing is mixed ahead; sources are scored when written.

    Weights that are exactly zero save nothing here: which they are differs from token to token.
    """

    executions = ("score_on_write", "per_read")

    def _finish_read(self, state: AttnResState, l: int) -> tuple[Tensor, AttnResState]:
        visible = self._visible[l]
        sources = [state.sources[i] for i in visible]
        scores = [state.scores[i][l] for i in visible]  # with no groups of reads, a piece is one read
        if state.latest is not None:
            source = state.latest if state.partial is None else state.partial
            addend = None if state.partial is None else state.latest
            own, partial = self._score(state, (l,), source, addend, None)
            sources.append(partial)
            scores.append(own)
            state = state._replace(partial=partial, latest=None)
        if len(sources) == 1:
            return self._only_source(l, sources[0]), state
        with full_precision(sources[0].device):
            weights = self.held(self.weigh(torch.stack(scores)))  # [S, ..., 1, H]
            assert state.ops is not None
            (read,), passed = state.ops.mix(
                sources,
                list(weights.unbind(0)),
                (),
                act="linear",
                dtype=sources[0].dtype,
                continued=[False],
            )
        self.record(l, weights.squeeze(-2).movedim(-1, 1))
        kept = list(state.sources)
        for i, source in zip(visible, passed, strict=False):  # the last is the partial sum where there is one
            kept[i] = source
        if len(passed) > len(visible):
            state = state._replace(partial=passed[-1])
        return read.mixed, state._replace(sources=tuple(kept))
