"""Two one-sided tests (Schuirmann 1987): is a difference within a margin of a value?

A wide interval that holds zero is no evidence of equality. Equality is claimed where both "below value -
margin" and "above value + margin" are rejected; the p-value is the larger of the two, and p < 0.05 is the
same as the 90 % interval lying inside. The verdict *no difference* (``analysis.stats``) asks that of the 95 %
interval, which is stricter: p < 0.025 with value 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtr

from analysis.paired_t import t_statistic
from analysis.stats import MARGIN


def equivalence_p(differences: Sequence[float], value: float = 0.0, margin: float = MARGIN) -> float:
    """p of two one-sided paired t tests of |mean - value| >= margin.

    differences: [n >= 2], nats per token, one per seed; margin > 0, in nats.  Value 0 asks whether two arms
    are equal, value = the paper's difference whether ours has the same size.
    """
    if len(differences) < 2 or margin <= 0:
        raise ValueError(f"needs two or more differences and a margin above 0, got {differences!r}, {margin}")
    freedom = len(differences) - 1

    def tail(t: float) -> float:
        return 1.0 if math.isnan(t) else float(stdtr(freedom, t))

    below = tail(-t_statistic(differences, value - margin))  # rejects where the mean is well above its end
    above = tail(t_statistic(differences, value + margin))
    return max(below, above)
