"""Resampling a ladder: over its points (all resamples there are), over seeds within points, over documents.

The points are resampled jointly for all arms (a size is drawn with every arm's loss), so what a size does to
all arms cancels in a comparison. Five points have 126 different resamples with known probabilities: they are
enumerated, so there is no Monte Carlo error and nothing to seed. A resample of a single size has no slope
(probability 1 / 625 at five points): quantities are undefined there, and the share of such draws is reported,
not dropped in silence.

A percentile interval over five points is too narrow (`tests/test_scaling_intervals.py` measures its
coverage); the t-based intervals of `analysis.advantage` and `analysis.scaling_profile` stand beside it for
that reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from analysis.scaling import Array, Curve, fit

LEVEL = 0.95
MOST = 2000  # more resamples than this are drawn, not enumerated
DRAWS = 2000
SEED = 2603


@dataclass(frozen=True)
class Resamples:
    """counts: [R, n], how often each point is drawn; probability: [R]."""

    counts: Array
    probability: Array


@dataclass(frozen=True)
class Spread:
    """A percentile interval over the draws in which the quantity is defined, and the share of the others."""

    low: float
    high: float
    undefined: float


def resamples(num_points: int, draws: int = DRAWS, seed: int = SEED) -> Resamples:
    """All resamples of n points with their probabilities, or ``draws`` random ones above ``MOST``."""
    n = num_points
    if math.comb(2 * n - 1, n) > MOST:
        drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
        return Resamples(drawn.astype(np.float64), np.full(draws, 1 / draws))
    rows = []
    for bars in combinations(range(2 * n - 1), n - 1):  # stars and bars
        edges = (-1, *bars, 2 * n - 1)
        rows.append([edges[i + 1] - edges[i] - 1 for i in range(n)])
    ways = [math.factorial(n) / math.prod(math.factorial(c) for c in row) / n**n for row in rows]
    return Resamples(np.array(rows, dtype=np.float64), np.array(ways, dtype=np.float64))


def refits(compute: npt.ArrayLike, loss: npt.ArrayLike, drawn: Resamples, estimator: str = "ols") -> Curve:
    """The curve of each resample, as one ``Curve`` of arrays [R]; NaN where fewer than two sizes were drawn.

    compute: [n]; loss: [n], or [R, n] where the losses were resampled too.
    """
    c, l = np.asarray(compute, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    losses = np.broadcast_to(l, drawn.counts.shape)
    if estimator == "ols":
        return _lines(np.log(c), np.log(losses), drawn.counts)
    start = None if l.ndim > 1 else fit(c, l, estimator)
    found = [
        fit(c, row, estimator, weights=counts, start=start or fit(c, row))
        for row, counts in zip(losses, drawn.counts, strict=True)
    ]
    return Curve(*(np.array([getattr(f, name) for f in found]) for name in ("log_a", "alpha", "e")))


def spread(values: Array, probability: Array, level: float = LEVEL) -> Spread:
    """Percentiles of a discrete distribution; values: [R], not finite where undefined."""
    defined = np.isfinite(values)
    undefined = float(1 - probability[defined].sum())
    if not defined.any():
        return Spread(math.nan, math.nan, 1.0)
    order = np.argsort(values[defined])
    ordered = values[defined][order]
    mass = np.cumsum(probability[defined][order]) / probability[defined].sum()
    low, high = (
        ordered[min(int(np.searchsorted(mass, q - 1e-12)), len(ordered) - 1)]
        for q in (0.5 - level / 2, 0.5 + level / 2)
    )
    return Spread(float(low), float(high), max(undefined, 0.0))


def over_seeds(
    losses: Sequence[npt.ArrayLike], num_draws: int = DRAWS, seed: int = SEED
) -> tuple[Resamples, list[Array]]:
    """Points and, within each point, its seeds: the resamples of points and each arm's losses in them.

    losses: one [seeds, n] per arm, paired by seed: a draw takes the same seeds for every arm.  Returns losses
    of [draws, n] per arm.
    """
    arrays = [np.asarray(l, dtype=np.float64) for l in losses]
    seeds, n = arrays[0].shape
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=num_draws).astype(np.float64)
    weights = (
        rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=(num_draws, n)) / seeds
    )  # [draws, n, seeds]
    drawn = Resamples(counts, np.full(num_draws, 1 / num_draws))
    return drawn, [np.einsum("dns,sn->dn", weights, l) for l in arrays]


def over_documents(
    loss_sum: npt.ArrayLike, tokens: npt.ArrayLike, num_draws: int = DRAWS, seed: int = SEED
) -> Array:
    """Losses [draws, runs] when the validation documents are resampled, the same ones for every run.

    loss_sum: [runs, documents], nats; tokens: [documents].
    """
    sums, counts = np.asarray(loss_sum, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), size=num_draws)
    with np.errstate(invalid="ignore"):
        return (drawn @ sums.T) / (drawn @ counts)[:, None]


def _lines(x: Array, y: Array, w: Array) -> Curve:
    """Weighted OLS in log-log for every row of y and w, [R, n]."""
    total = w.sum(1)
    x_mean = w @ x / total
    y_mean = (w * y).sum(1) / total
    dx = x - x_mean[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = (w * dx * dx).sum(1)
        alpha = -(w * dx * (y - y_mean[:, None])).sum(1) / np.where((w > 0).sum(1) > 1, variance, np.nan)
    return Curve(y_mean + alpha * x_mean, alpha, np.where(np.isfinite(alpha), 0.0, np.nan))
