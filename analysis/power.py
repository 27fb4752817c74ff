"""How many paired seeds it takes to see a difference: power of the two-sided paired t test.

With n seeds, differences of mean delta and standard deviation s, the t statistic is noncentral t with n - 1
degrees of freedom and noncentrality sqrt(n) delta / s. Few seeds measure s badly: at three the 95 % interval
of the true spread reaches from 0.52 to 6.3 times the measured one, and the number of seeds goes with its
square. So a number of seeds comes with the two numbers at the ends of that interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri, nctdtr, stdtrit

from analysis.bootstrap import LEVEL

POWER = 0.8
MOST_SEEDS = 100_000


@dataclass(frozen=True)
class SeedsNeeded:
    """Seeds for a difference at the measured spread, and at the ends of the spread's 95 % interval.

    None: more than ``MOST_SEEDS``.
    """

    at_measured: int | None
    at_low: int | None
    at_high: int | None


def power(num_seeds: int, difference: float, sd: float, level: float = LEVEL) -> float:
    """Chance that the level (two-sided) interval of ``num_seeds`` paired differences excludes zero.

    difference, sd: mean and standard deviation of the paired differences, in the same unit.
    """
    if num_seeds < 2 or not sd > 0:
        raise ValueError(f"power needs two or more seeds and a spread above 0, got {num_seeds} and {sd}")
    freedom = num_seeds - 1
    critical = float(stdtrit(freedom, 0.5 + level / 2))
    shift = math.sqrt(num_seeds) * abs(difference) / sd
    below = float(nctdtr(freedom, shift, critical))
    wrong_side = float(nctdtr(freedom, shift, -critical))
    # Far out the series of the distribution function is lost in rounding: there it is 0, not NaN.
    return 1.0 - (0.0 if math.isnan(below) else below) + (0.0 if math.isnan(wrong_side) else wrong_side)


def seeds_needed(difference: float, sd: float, target: float = POWER, level: float = LEVEL) -> int | None:
    """The fewest paired seeds with power ``target``; None above ``MOST_SEEDS`` or for no difference."""
    if difference == 0:
        return None
    if sd == 0:
        return 2
    low, high = 1, 2
    while power(high, difference, sd, level) < target:
        low, high = high, 2 * high
        if low >= MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, difference, sd, level) >= target else (middle, high)
    return high if high <= MOST_SEEDS else None


def spread_interval(sd: float, num_seeds: int, level: float = LEVEL) -> tuple[float, float]:
    """The interval of the true standard deviation (chi-square), from that of ``num_seeds`` differences."""
    if num_seeds < 2:
        raise ValueError(f"a spread needs two or more seeds, got {num_seeds}")
    freedom = num_seeds - 1
    upper, lower = (float(chdtri(freedom, tail)) for tail in (0.5 - level / 2, 0.5 + level / 2))
    return sd * math.sqrt(freedom / upper), sd * math.sqrt(freedom / lower)


def seeds_needed_with_range(difference: float, sd: float, num_seeds: int) -> SeedsNeeded:
    """Seeds needed at the spread that ``num_seeds`` differences showed, and at the ends of its interval."""
    numbers = [seeds_needed(difference, s) for s in (sd, *spread_interval(sd, num_seeds))]
    return SeedsNeeded(*numbers)


def smallest_visible(sd: float, num_seeds: int, target: float = POWER) -> float:
    """The difference that ``num_seeds`` paired seeds show with power ``target``, in the unit of sd."""
    low, high = 0.0, sd
    while power(num_seeds, high, sd) < target:
        high *= 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if power(num_seeds, middle, sd) >= target else (middle, high)
    return float(np.float64(high))
