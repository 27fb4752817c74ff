"""Profile-likelihood intervals of a curve's coefficients: all values of one at which the rest still fit.

For the two least-squares estimators, whose likelihood is that of normal residuals with one unknown variance:
theta is in the interval where min RSS(theta, rest) <= min RSS (1 + t^2 / df), with t the Student quantile at
df = n - number of parameters. In the linear case (OLS in log-log) that is the usual t interval, exactly. Five
points leave three degrees of freedom (t = 3.18), so that the factor is 4.4. Sum-Huber is no likelihood of
such points and has no profile here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq, least_squares
from scipy.special import stdtrit

from analysis.scaling import Array, Curve, fit

LEVEL = 0.95
COEFFICIENTS = ("log_a", "alpha", "e")


def profile_interval(
    compute: npt.ArrayLike,
    loss: npt.ArrayLike,
    coefficient: str,
    estimator: str = "ols",
    *,
    irreducible: bool = False,
    level: float = LEVEL,
) -> tuple[float, float]:
    """The interval of ``log_a``, ``alpha`` or ``e`` (natural log of A, exponent, nats).

    compute, loss: [n].  An end is infinite where the fit never gets worse enough; E ends at 0 and at the
    lowest loss, so an interval that reaches one of them is open there.  NaN without a degree of freedom to
    spare.
    """
    if estimator not in ("ols", "ls"):
        raise ValueError(f"estimator {estimator!r}: a profile needs ols or ls")
    c, l = np.asarray(compute, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    parameters = COEFFICIENTS[: 2 + irreducible]
    if coefficient not in parameters:
        raise ValueError(f"coefficient {coefficient!r}: must be one of {', '.join(parameters)}")
    df = len(c) - len(parameters)
    if df < 1:
        return math.nan, math.nan
    best = fit(c, l, estimator, irreducible=irreducible)
    rest = [name for name in parameters if name != coefficient]
    scale = float(stdtrit(df, 0.5 + level / 2))
    minimum = float((_residuals(best, c, l, estimator) ** 2).sum())
    if minimum < 1e-18 * len(c):  # points on a curve: nothing to spread
        return float(getattr(best, coefficient)), float(getattr(best, coefficient))
    limit = minimum * (1 + scale**2 / df)
    excess = _profile(best, c, l, estimator, coefficient, rest, limit)
    value = float(getattr(best, coefficient))
    bounds = (0.0, 0.999 * float(l.min())) if coefficient == "e" else (-math.inf, math.inf)
    unit = {"log_a": 0.01, "alpha": 0.005, "e": 0.05}[coefficient]
    return _end(excess, value, -unit, bounds[0]), _end(excess, value, unit, bounds[1])


def _profile(
    best: Curve, c: Array, l: Array, estimator: str, name: str, rest: list[str], limit: float
) -> Callable[[float], float]:
    """How far the best fit at a fixed value of ``name`` is above the limit (RSS, relative)."""
    start = {key: float(getattr(best, key)) for key in ("log_a", "alpha", "e")}
    middle = float(np.log(c).mean())

    def excess(value: float) -> float:
        fixed = {**start, name: value}
        # Keep the curve in the middle of the points when one coefficient is moved.
        if name == "alpha":
            fixed["log_a"] = start["log_a"] + (value - start["alpha"]) * middle
        if name == "log_a" and abs(middle) > 1e-6:
            fixed["alpha"] = start["alpha"] + (value - start["log_a"]) / middle
        if name == "e":
            level = math.log(math.exp(start["log_a"] - start["alpha"] * middle) + start["e"] - value)
            fixed["alpha"] = start["alpha"] * math.exp(start["log_a"] - start["alpha"] * middle - level)
            fixed["log_a"] = level + fixed["alpha"] * middle

        def residuals(values: Array) -> Array:
            found = {**fixed, **dict(zip(rest, values, strict=True))}
            curve = Curve(*(np.float64(found[key]) for key in ("log_a", "alpha", "e")))  # type: ignore[arg-type]
            return _residuals(curve, c, l, estimator)

        low = [0.0 if key == "e" else -np.inf for key in rest]
        high = [0.999 * float(l.min()) if key == "e" else np.inf for key in rest]
        solved = least_squares(
            residuals, [fixed[key] for key in rest], bounds=(low, high), x_scale="jac", xtol=1e-13, ftol=1e-13
        )
        return float(2 * solved.cost / limit - 1)

    return excess


def _residuals(curve: Curve, c: Array, l: Array, estimator: str) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        predicted = curve.loss(c)
    residuals = predicted - l if estimator == "ls" else np.log(predicted) - np.log(l)
    return np.clip(residuals, -1e6, 1e6)


def _end(excess: Callable[[float], float], value: float, step: float, bound: float) -> float:
    """Walk away from the best value in doubling steps until the limit is crossed, then find the crossing."""
    inside = value
    for _ in range(24):
        outside = value + step
        if (step < 0 and outside <= bound) or (step > 0 and outside >= bound):
            return bound if excess(bound) < 0 else _crossing(excess, inside, bound)
        if excess(outside) >= 0:
            return _crossing(excess, inside, outside)
        inside, step = outside, 2 * step
    return math.copysign(math.inf, step)


def _crossing(excess: Callable[[float], float], inside: float, outside: float) -> float:
    return float(brentq(excess, inside, outside, xtol=1e-9)) if inside != outside else inside
