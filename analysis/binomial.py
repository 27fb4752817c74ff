"""Intervals of an accuracy: one proportion, and two that answer the same or different questions."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, ndtri

from analysis.stats import LEVEL, Interval, document_interval


def wilson(correct: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval of a proportion. correct: of n questions; a ``ValueError`` unless 0 <= correct
    <= n.
    """
    if not 0 <= correct <= n or n < 1:
        raise ValueError(f"{correct} of {n} is no proportion")
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    p = correct / n
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def unpaired_half_width(a: float, b: float, n: int, level: float = LEVEL) -> float:
    """Half the normal interval of a - b, two proportions of n questions each, taken as independent."""
    return float(ndtri(0.5 + level / 2)) * math.sqrt((a * (1 - a) + b * (1 - b)) / n)


def paired(a: np.ndarray, b: np.ndarray) -> Interval:
    """Accuracy of a minus that of b on the same items [n], bootstrap over items (kind ``items``)."""
    found = document_interval(a.astype(float), b.astype(float), np.ones(len(a)))
    return Interval(found.estimate, found.low, found.high, "items", len(a))


def mcnemar(a: np.ndarray, b: np.ndarray) -> float:
    """Exact two-sided p of McNemar's test: were the items that only one gets right a fair coin's?"""
    return sign_test(int((a & ~b).sum()), int((~a & b).sum()))


def sign_test(wins: int, losses: int) -> float:
    """Exact two-sided p that wins and losses are a fair coin's; ties are left out, 1 where nothing is
    left.
    """
    n = wins + losses
    return min(1.0, 2 * float(bdtr(min(wins, losses), n, 0.5))) if n else 1.0
