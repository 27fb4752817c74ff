"""Compute advantage: how many times the baseline's compute a method's loss would have cost (Fig. 4, 1.25x).

With L_b and L_m the fitted curves, the advantage at a loss l is C_b(l) / C_m(l). It may be asked for at a
loss, at a compute of the method (l = L_m(C): the paper's 1.25x, at 5.6 PFLOP/s-days) or at a compute of the
baseline (l = L_b(C)); they differ where the exponents do.

The interval of one fit: the points of the two curves are paired by size, and what a size does to both (its
shape, its learning rate, its place on the compute axis) is in both residuals. With OLS in log-log, that the
advantage is exp(r) at the method's compute C is the linear statement
    a_b - alpha_b (log C + r) - (a_m - alpha_m log C) = 0,
whose profile over all coefficients, with the covariance of the paired residuals, is a quadratic in r
(Fieller). Student's t with n - 2 degrees of freedom.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from analysis.scaling import Array, Curve, fit

LEVEL = 0.95
STEP = 0.001  # nats: the last digit of a printed loss


@dataclass(frozen=True)
class Place:
    """Where an advantage is asked for: ``at`` a ``loss``, a ``method`` compute or a ``baseline`` compute."""

    at: str
    value: float

    def log_ratio(self, baseline: Curve, method: Curve) -> Array:
        """The log of the advantage, for as many curves as the fields hold; NaN where it is undefined."""
        if self.at == "loss":
            return baseline.log_compute(self.value) - method.log_compute(self.value)
        if self.at == "method":
            own = method.log_compute(method.loss(self.value))  # NaN where the curve does not fall
            return baseline.log_compute(method.loss(self.value)) - own
        if self.at == "baseline":
            own = baseline.log_compute(baseline.loss(self.value))
            return own - method.log_compute(baseline.loss(self.value))
        raise ValueError(f"place {self.at!r}: must be loss, method or baseline")

    def ratio(self, baseline: Curve, method: Curve) -> float:
        """The advantage of one pair of curves."""
        return float(np.exp(self.log_ratio(baseline, method)))


def paired_interval(
    compute: tuple[npt.ArrayLike, npt.ArrayLike],
    loss: tuple[npt.ArrayLike, npt.ArrayLike],
    place: Place,
    level: float = LEVEL,
) -> tuple[float, float]:
    """The interval of the advantage from the scatter of the points about their two OLS lines.

    compute, loss: (baseline [n], method [n]), paired by size, n >= 3.  An end is 0 or infinite where the data
    do not bound it.  At a loss, the interval is that at the method's fitted compute for this loss.
    """
    xs = [np.log(np.asarray(c, dtype=np.float64)) for c in compute]
    ys = [np.log(np.asarray(l, dtype=np.float64)) for l in loss]
    n = len(xs[0])
    if n < 3:
        return math.nan, math.nan
    curves = [fit(c, l) for c, l in zip(compute, loss, strict=True)]
    if place.at == "loss":
        place = Place("method", float(np.exp(curves[1].log_compute(place.value))))
    where = math.log(place.value)
    # Rows map the n log losses of an arm to its (log A, -alpha).
    designs = [np.linalg.pinv(np.stack([np.ones(n), x], axis=1)) for x in xs]
    residuals = np.stack([np.log(c.loss(np.exp(x))) - y for c, x, y in zip(curves, xs, ys, strict=True)])
    covariance = residuals @ residuals.T / (n - 2)
    # The statement is (c0 + r c1) . coefficients = 0, baseline minus method.
    base, moved = np.array([1.0, where]), np.array([0.0, 1.0])
    zero = np.zeros(2)
    c0, c1 = (base, -base), ((moved, zero) if place.at == "method" else (zero, moved))
    p0, p1 = (np.stack([c @ d for c, d in zip(cs, designs, strict=True)]) for cs in (c0, c1))
    u0, u1 = (sum(float(p @ y) for p, y in zip(ps, ys, strict=True)) for ps in (p0, p1))

    def product(a: Array, b: Array) -> float:
        return float((covariance * (a @ b.T)).sum())

    square = float(stdtrit(n - 2, 0.5 + level / 2)) ** 2
    quadratic = u1 * u1 - square * product(p1, p1)
    linear = u0 * u1 - square * product(p0, p1)
    constant = u0 * u0 - square * product(p0, p0)
    if quadratic <= 0:  # an exponent that is not told from zero
        return 0.0, math.inf
    root = math.sqrt(max(linear * linear - quadratic * constant, 0.0))
    return math.exp((-linear - root) / quadratic), math.exp((-linear + root) / quadratic)


@dataclass(frozen=True)
class Sensitivity:
    """The largest change of an advantage when one loss moves by ``STEP`` nats, and which loss it is.

    curve: 0 baseline, 1 method; index: the point.
    """

    change: float
    curve: int
    index: int


def sensitivity(
    compute: tuple[npt.ArrayLike, npt.ArrayLike],
    loss: tuple[npt.ArrayLike, npt.ArrayLike],
    place: Place,
    estimator: str = "ols",
    step: float = STEP,
) -> Sensitivity:
    """What the last printed digit of one loss does to the advantage; arguments as ``paired_interval``."""
    losses = [np.asarray(l, dtype=np.float64) for l in loss]
    curves = [fit(c, l, estimator) for c, l in zip(compute, losses, strict=True)]
    whole = place.ratio(*curves)
    worst = Sensitivity(0.0, 0, 0)
    for which in (0, 1):
        for index in range(len(losses[which])):
            for sign in (-step, step):
                moved = losses[which].copy()
                moved[index] += sign
                refit = list(curves)
                refit[which] = fit(compute[which], moved, estimator, start=curves[which])
                change = abs(place.ratio(*refit) - whole)
                if change > worst.change:
                    worst = Sensitivity(change, which, index)
    return worst
