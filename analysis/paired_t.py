"""The paired t test: the p-value that belongs to the t interval over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtr


def standard_deviation(differences: Sequence[float]) -> float:
    """Of the paired differences (n - 1): the spread that decides how many seeds are needed."""
    return float(np.std(np.asarray(differences, np.float64), ddof=1))


def t_statistic(differences: Sequence[float], value: float = 0.0) -> float:
    """(mean - value) / standard error; infinite where there is no spread, NaN where mean is value too."""
    d = np.asarray(differences, np.float64)
    distance, error = float(d.mean()) - value, standard_deviation(differences) / math.sqrt(d.size)
    if error > 0:
        return distance / error
    return math.copysign(math.inf, distance) if distance else math.nan


def p_value(differences: Sequence[float]) -> float:
    """Two-sided, of a mean of zero; differences: [n >= 2], one per seed.  1 where all of them are zero."""
    if len(differences) < 2:
        raise ValueError(f"a p-value needs two or more paired differences, got {differences!r}")
    t = t_statistic(differences)
    return 1.0 if math.isnan(t) else float(2 * stdtr(len(differences) - 1, -abs(t)))
