"""Paired comparisons with intervals, and the verdict that compares one with the paper's difference.

Two runs of an experiment share data order and whatever parameters they have in common, so every comparison is
paired. Where two or more seeds exist, the unit is the seed: a t interval of the paired differences. With one
seed the unit is the validation document: a bootstrap of the ratio of sums (``analysis.bootstrap``), in which
both arms see the same resampled documents. Such an interval says nothing about the spread over seeds, hence
its own ``kind``. Seeds and documents jointly are in ``analysis.joint``; p-values, power and equivalence in
``analysis.paired_t``, ``analysis.power`` and ``analysis.equivalence``.

Documents are resampled, not sequences, since the tokens of a document are not independent (in ``prose`` nine
speeches hold 44 % of the validation bytes). Sources are not strata: the validation set is a hash split of
titles over all sources together, so how many documents of each source fell into it is part of the sampling.
Strata would hold that fixed, and would give a source that has a single document no spread at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from analysis.bootstrap import DRAWS, LEVEL, document_bounds
from analysis.bootstrap import SEED as BOOTSTRAP_SEED

MARGIN = 0.005  # nats per token; a smaller difference counts as none
MIN_SEEDS = 3
PAPER_ROUNDING = 0.001  # nats: two losses printed to 0.001 differ by up to this much where they are equal

VERDICT_RULE = (
    "Verdict on a contrast: agrees (95 % interval excludes zero on the paper's side), differs (excludes zero "
    f"on the other), no difference (interval within ±{MARGIN} nats), else underpowered; "
    f"none under {MIN_SEEDS} seeds. A paper's difference of up to ±{PAPER_ROUNDING} may be the rounding of "
    "its two numbers and counts as zero, which has no side: what excludes zero and is not within "
    f"±{MARGIN} then differs."
)


@dataclass(frozen=True)
class Interval:
    """A difference of losses with its interval (nats per token).

    kind: ``seeds`` (t, n paired seeds), ``documents`` (bootstrap, n documents, one seed), ``seeds and
    documents`` (``analysis.joint``, n seeds), or ``none`` (low and high are NaN: a single document, or a
    published number, which comes without an uncertainty).
    """

    estimate: float
    low: float
    high: float
    kind: str
    n: int


def point(estimate: float) -> Interval:
    """A number that has no interval."""
    return Interval(estimate, math.nan, math.nan, "none", 0)


def seed_interval(differences: Sequence[float], level: float = LEVEL) -> Interval:
    """The t interval of a mean of paired differences, one per seed.

    differences: [n >= 2], nats per token.  A ``ValueError`` below two or for a value that is not finite.
    """
    d = np.asarray(differences, dtype=np.float64)
    if d.ndim != 1 or d.size < 2 or not np.isfinite(d).all():
        raise ValueError(f"seed_interval needs two or more finite differences, got {differences!r}")
    mean = float(d.mean())
    half = float(stdtrit(d.size - 1, 0.5 + level / 2) * d.std(ddof=1) / math.sqrt(d.size))
    return Interval(mean, mean - half, mean + half, "seeds", int(d.size))


def document_interval(
    loss_sum: ArrayLike,
    loss_sum_reference: ArrayLike,
    tokens: ArrayLike,
    *,
    level: float = LEVEL,
    draws: int = DRAWS,
    seed: int = BOOTSTRAP_SEED,
) -> Interval:
    """The difference of two losses with a bootstrap interval over the validation documents that both saw.

    loss_sum, loss_sum_reference: [documents], summed loss in nats; tokens: [documents], the same for both.
    The estimate is (sum of loss_sum - sum of loss_sum_reference) / (sum of tokens), the pooled loss per
    token; the generator is fixed, so a rendered table can be rebuilt to the last digit.
    """
    d = np.asarray(loss_sum, dtype=np.float64) - np.asarray(loss_sum_reference, dtype=np.float64)
    t = np.asarray(tokens, dtype=np.float64)
    if d.shape != t.shape or d.ndim != 1 or d.size == 0:
        raise ValueError(f"document losses of shape {d.shape} and tokens of shape {t.shape} do not match")
    if not np.isfinite(d).all() or not (np.isfinite(t).all() and (t >= 0).all() and t.sum() > 0):
        raise ValueError("document losses must be finite, tokens non-negative and not all zero")
    estimate = float(d.sum() / t.sum())
    if d.size == 1:
        return point(estimate)
    low, high = document_bounds(d, t, level, draws, seed)
    return Interval(estimate, low, high, "documents", int(d.size))


def verdict(
    interval: Interval, paper: float, *, margin: float = MARGIN, min_seeds: int = MIN_SEEDS
) -> str | None:
    """What our interval says about the paper's difference, by ``VERDICT_RULE``; None if it may say nothing.

    paper: the paper's difference, same contrast and unit. Where it is within ``PAPER_ROUNDING`` there is no
    side to agree with: an interval within the margin is then ``no difference``, one that excludes zero beyond
    it ``differs``.
    """
    if interval.kind != "seeds" or interval.n < min_seeds:
        return None
    within = -margin <= interval.low and interval.high <= margin
    excludes_zero = interval.low > 0 or interval.high < 0
    side = 0.0 if abs(paper) <= PAPER_ROUNDING + 1e-9 else paper
    if excludes_zero and not (side == 0 and within):
        return "agrees" if side * interval.estimate > 0 else "differs"
    return "no difference" if within else "underpowered"
