"""The paired bootstrap of a loss difference: over validation documents, and over seeds and documents jointly.

A difference of two runs is a ratio of sums over the documents that both saw (nats / tokens); a draw takes
documents with replacement, the same for both arms and for all seeds (the validation set is shared: seeds and
documents are crossed, not nested). Intervals: percentile, and BCa (Efron 1987), which corrects the
percentiles for bias and skewness and needs a jackknife.

Resampling seeds does not make an interval where there are few: the percentile interval of the mean of three
paired differences covers 75 to 76 % instead of 95 %, since its spread misses a factor (n - 1) / n of the
variance and its tails are those of at most ten distinct means. So ``hierarchical_draws`` is for ten seeds or
more, or for shares of draws (how often is a quantity undefined); the interval over seeds and documents that
is shown is ``analysis.joint``'s.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 5000
SEED = 2603
# BCa applies where documents of similar size are resampled: with skewed losses it covers 1 to 2 points more
# than the percentiles at 20 to 100 documents. Where a few documents hold most tokens, its acceleration hangs
# on them and it covers less (85 % instead of 90 % where nine documents hold 44 %), so the percentiles stay.
MIN_EFFECTIVE, MIN_EVENNESS = 20, 1 / 3


def ratio_draws(values: ArrayLike, tokens: ArrayLike, draws: int = DRAWS, seed: int = SEED) -> Array:
    """Draws of sum(values) / sum(tokens) with documents taken with replacement.

    values, tokens: [documents].  Returns [draws] or fewer: a draw without a token is left out.
    """
    pairs = np.stack([np.asarray(values, np.float64), np.asarray(tokens, np.float64)], axis=1)
    parts = []
    for multiplicity in _multiplicities(len(pairs), draws, np.random.default_rng(seed)):
        sums = multiplicity @ pairs
        kept = sums[sums[:, 1] > 0]
        parts.append(kept[:, 0] / kept[:, 1])
    return np.concatenate(parts)


def ratio_jackknife(values: ArrayLike, tokens: ArrayLike) -> Array:
    """sum(values) / sum(tokens) without each document in turn, [documents]; NaN where no token is left."""
    v, t = np.asarray(values, np.float64), np.asarray(tokens, np.float64)
    left = t.sum() - t
    return np.divide(v.sum() - v, left, out=np.full_like(left, np.nan), where=left > 0)


def hierarchical_draws(values: ArrayLike, tokens: ArrayLike, draws: int = DRAWS, seed: int = SEED) -> Array:
    """Draws of the pooled difference, mean over seeds, with seeds and documents both taken with replacement.

    values: [seeds, documents], paired differences of summed loss in nats; tokens: [documents].  Returns
    [draws], nats per token.
    """
    v, t = np.asarray(values, np.float64), np.asarray(tokens, np.float64)
    if v.ndim != 2 or v.shape[1:] != t.shape:
        raise ValueError(f"differences of shape {v.shape} and tokens of shape {t.shape} do not match")
    rng = np.random.default_rng(seed)
    columns = np.concatenate([v, t[None]]).T
    parts = []
    for multiplicity in _multiplicities(v.shape[1], draws, rng):
        sums = multiplicity @ columns
        sums = sums[sums[:, -1] > 0]
        picked = rng.multinomial(len(v), np.full(len(v), 1 / len(v)), size=len(sums))
        parts.append((picked * sums[:, :-1]).sum(axis=1) / len(v) / sums[:, -1])
    return np.concatenate(parts)


def percentile_interval(draws: ArrayLike, level: float = LEVEL) -> tuple[float, float]:
    """The ends that cut off (1 - level) / 2 of the draws on each side."""
    low, high = np.quantile(np.asarray(draws, np.float64), [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def bca_interval(
    estimate: float, draws: ArrayLike, jackknife: ArrayLike, level: float = LEVEL
) -> tuple[float, float]:
    """Bias-corrected and accelerated percentiles of the draws.

    jackknife: the estimate without each unit in turn, [units].  Bias z0 is the normal quantile of the share
    of draws below the estimate, acceleration a the skewness of the jackknife values over six.  Where either
    is undefined (draws without spread, or all on one side), the plain percentiles.
    """
    d, left_out = np.asarray(draws, np.float64), np.asarray(jackknife, np.float64)
    share = float(((d < estimate).sum() + 0.5 * (d == estimate).sum()) / d.size)
    deviation = left_out.mean() - left_out
    scale = float((deviation**2).sum()) ** 1.5
    if not 0 < share < 1 or not scale > 0:
        return percentile_interval(d, level)
    bias, acceleration = float(ndtri(share)), float((deviation**3).sum()) / (6 * scale)
    z = bias + ndtri(np.array([0.5 - level / 2, 0.5 + level / 2]))
    low, high = np.quantile(d, ndtr(bias + z / (1 - acceleration * z)))
    return float(low), float(high)


def effective_documents(tokens: ArrayLike) -> float:
    """(sum of tokens)^2 / sum of tokens^2: as many equal documents would weigh like these."""
    t = np.asarray(tokens, np.float64)
    return float(t.sum() ** 2 / (t**2).sum())


def document_bounds(
    values: ArrayLike, tokens: ArrayLike, level: float = LEVEL, draws: int = DRAWS, seed: int = SEED
) -> tuple[float, float]:
    """Bootstrap bounds of sum(values) / sum(tokens) over documents: BCa where it applies, else percentiles.

    It applies from ``MIN_EFFECTIVE`` effective documents on, if these are ``MIN_EVENNESS`` of all.
    """
    v, t = np.asarray(values, np.float64), np.asarray(tokens, np.float64)
    found = ratio_draws(v, t, draws, seed)
    effective = effective_documents(t)
    if effective < MIN_EFFECTIVE or effective < MIN_EVENNESS * t.size:
        return percentile_interval(found, level)
    return bca_interval(float(v.sum() / t.sum()), found, ratio_jackknife(v, t), level)


def _multiplicities(documents: int, draws: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """How often each document is in a draw, [chunk, documents] at a time (near 32 MB)."""
    chunk = max(1, 4_000_000 // documents)
    for start in range(0, draws, chunk):
        count = min(chunk, draws - start)
        yield rng.multinomial(documents, np.full(documents, 1 / documents), size=count)
