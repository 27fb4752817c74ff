"""Scaling curves L = E + A C^-alpha (Fig. 4) and the estimators that fit them to a ladder of sizes.

L: validation loss, nats per token; C: compute, in any unit (A is the loss above E at C = 1).  Letters in
shapes: K arms, n sizes.  The estimators minimise, over the points:

- ``ols``    the sum of squares of log L - log L(C): ordinary least squares in log-log where E = 0;
- ``ls``     the sum of squares of L - L(C);
- ``huber``  the sum of Huber losses of log L - log L(C), delta 0.001, by L-BFGS from a grid of starts.

Fits are made in log C minus its mean, which decouples level and slope. Huber is a sum, and residuals are
divided by delta first: with a mean, or in nats, the objective is so small that L-BFGS stops at its start. The
paper does not say how it fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares, minimize

Array = npt.NDArray[np.float64]

ESTIMATORS = ("ols", "ls", "huber")
NAMES = {"ols": "OLS, log-log", "ls": "least squares, loss", "huber": "sum-Huber, log"}
DELTA = 1e-3
_SLOPES = (0.25, 0.5, 1.0, 2.0)  # starts of the grid, relative to OLS
_LEVELS = (-0.02, 0.0, 0.02)  # added to the log of A
_SHARES = (0.02, 0.3, 0.6, 0.9)  # E relative to the lowest loss; each with the slopes up to that of OLS


@dataclass(frozen=True)
class Curve:
    """One curve, or as many as the fields have entries: log of A (natural), alpha, E."""

    log_a: Array
    alpha: Array
    e: Array

    @staticmethod
    def of(a: float, alpha: float, e: float = 0.0) -> Curve:
        """The curve of three numbers."""
        return Curve(np.log(a), np.float64(alpha), np.float64(e))  # type: ignore[arg-type]

    @property
    def a(self) -> Array:
        """A."""
        return np.exp(self.log_a)

    def loss(self, compute: npt.ArrayLike) -> Array:
        """L(C), nats per token."""
        return self.e + np.exp(self.log_a - self.alpha * np.log(np.asarray(compute, dtype=np.float64)))

    def log_compute(self, loss: npt.ArrayLike) -> Array:
        """log C at which the curve has that loss; NaN where L <= E, or where the curve does not fall."""
        above = np.asarray(loss, dtype=np.float64) - self.e
        with np.errstate(divide="ignore", invalid="ignore"):
            log_c = (self.log_a - np.log(above)) / self.alpha
        return np.where((above > 0) & (self.alpha > 0), log_c, np.nan)


def fit(
    compute: npt.ArrayLike,
    loss: npt.ArrayLike,
    estimator: str = "ols",
    *,
    weights: npt.ArrayLike | None = None,
    irreducible: bool = False,
    start: Curve | None = None,
) -> Curve:
    """The curve through one arm's points; E = 0 unless ``irreducible``, else 0 <= E < the lowest loss.

    compute, loss, weights: [n]; a weight is the number of times a point counts.  start: instead of the grid,
    for refits near a known curve.  All NaN where the points that count have fewer places than there are
    parameters.
    """
    row = None if weights is None else np.asarray(weights, dtype=np.float64)
    c, l = (np.asarray(v, dtype=np.float64)[None] for v in (compute, loss))
    return fit_shared(
        c, l, estimator, weights=row, irreducible=irreducible, start=None if start is None else [start]
    )[0]


def fit_shared(
    compute: npt.ArrayLike,
    loss: npt.ArrayLike,
    estimator: str = "ols",
    *,
    weights: npt.ArrayLike | None = None,
    irreducible: bool = False,
    start: Sequence[Curve] | None = None,
) -> list[Curve]:
    """One curve per arm, with one alpha (and one E) for all; as ``fit``, with compute and loss [K, n]."""
    c, l = np.asarray(compute, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if estimator not in ESTIMATORS:
        raise ValueError(f"estimator {estimator!r}: must be one of {', '.join(ESTIMATORS)}")
    if c.shape != l.shape or c.ndim != 2 or not (np.isfinite(l).all() and (l > 0).all() and (c > 0).all()):
        raise ValueError("compute and loss must be positive, finite and of one shape")
    w = np.ones(c.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
    if (w > 0).sum() < 2 + irreducible:
        nan = np.float64(np.nan)
        return [Curve(nan, nan, nan)] * len(c)  # type: ignore[arg-type]
    problem = _Problem(np.log(c[:, w > 0]), l[:, w > 0], w[w > 0], estimator)
    theta = problem.linear() if estimator == "ols" and not irreducible else problem.search(irreducible, start)
    return problem.curves(theta)


@dataclass(frozen=True)
class _Problem:
    """x: log C [K, n]; loss [K, n]; w: weights [n].  Parameters: log A of each arm at mean x, alpha, E."""

    x: Array
    loss: Array
    w: Array
    estimator: str

    @property
    def middle(self) -> float:
        return float((self.x @ self.w).mean() / self.w.sum())

    def curves(self, theta: Array) -> list[Curve]:
        levels, alpha, e = theta[: len(self.x)], theta[len(self.x)], theta[len(self.x) + 1]
        return [Curve(level + alpha * self.middle, alpha, e) for level in levels]

    def linear(self) -> Array:
        """OLS in log-log: within each arm for the slope, then the level of each."""
        y = np.log(self.loss)
        x_mean, y_mean = (v @ self.w / self.w.sum() for v in (self.x, y))
        dx, dy = self.x - x_mean[:, None], y - y_mean[:, None]
        alpha = -float((dx * dy * self.w).sum() / (dx * dx * self.w).sum())
        return np.array([*(y_mean + alpha * (x_mean - self.middle)), alpha, 0.0])

    def residuals(self, theta: Array) -> tuple[Array, Array]:
        """Fitted minus observed [K n], and its derivatives [K n, K + 2], in the space of the estimator."""
        k, n = self.x.shape
        z = self.x - self.middle
        power = np.exp(
            np.clip(theta[:k, None] - theta[k] * z, -700, 700)
        )  # a step of the search may overshoot
        predicted = theta[k + 1] + power
        gradient = np.zeros((k, n, k + 2))
        for arm in range(k):
            gradient[arm, :, arm] = power[arm]
        gradient[:, :, k], gradient[:, :, k + 1] = -z * power, 1.0
        if self.estimator == "ls":
            return (predicted - self.loss).ravel(), gradient.reshape(k * n, -1)
        gradient /= predicted[:, :, None]
        return (np.log(predicted) - np.log(self.loss)).ravel(), gradient.reshape(k * n, -1)

    def search(self, irreducible: bool, start: Sequence[Curve] | None) -> Array:
        """The best of all starts."""
        starts = self._grid(irreducible) if start is None else [self._from(start)]
        found = [self._descend(theta, irreducible) for theta in starts]
        return min(found, key=lambda pair: pair[0])[1]

    def _descend(self, theta: Array, irreducible: bool) -> tuple[float, Array]:
        free = slice(None) if irreducible else slice(None, -1)
        high = 0.999 * float(self.loss.min())
        weight = np.tile(self.w, len(self.x))

        def whole(values: Array) -> Array:
            return values if irreducible else np.append(values, 0.0)

        if self.estimator == "huber":

            def objective(values: Array) -> tuple[float, Array]:
                r, gradient = self.residuals(whole(values))
                r = r / DELTA
                small = np.abs(r) <= 1
                cost = np.where(small, r * r / 2, np.abs(r) - 0.5)
                slope = np.where(small, r, np.sign(r)) / DELTA
                return float(weight @ cost), (gradient.T @ (weight * slope))[free]

            bounds = [(None, None)] * (len(theta) - 1) + [(0.0, high)]
            options = {"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 20}
            result = minimize(
                objective, theta[free], jac=True, method="L-BFGS-B", bounds=bounds[free], options=options
            )
            return float(result.fun), whole(result.x)
        root = np.sqrt(weight)
        limits = np.full(len(theta), np.inf)
        lower, upper = -limits, limits.copy()
        lower[-1], upper[-1] = 0.0, high
        solved = least_squares(
            lambda values: root * self.residuals(whole(values))[0],
            theta[free],
            jac=lambda values: root[:, None] * self.residuals(whole(values))[1][:, free],
            bounds=(lower[free], upper[free]) if irreducible else (-np.inf, np.inf),
            method="trf" if irreducible else "lm",
            xtol=1e-12, ftol=1e-12, gtol=1e-12, max_nfev=300,
        )  # fmt: skip
        return float(solved.cost), whole(solved.x)

    def _grid(self, irreducible: bool) -> list[Array]:
        line = self.linear()
        starts = []
        if not irreducible and self.estimator != "huber":
            return [line]  # least squares in two parameters, nearly linear: OLS is next to it
        if not irreducible:
            for slope, level in product(_SLOPES, _LEVELS):
                theta = line.copy()
                theta[:-2] += level
                theta[-2] *= slope
                starts.append(theta)
            return starts
        for slope, share in product(_SLOPES[1:3], _SHARES):
            # The level of OLS at the middle; the part above E is smaller and falls faster.
            theta = line.copy()
            theta[-1] = share * float(self.loss.min())
            theta[:-2] = np.log(np.maximum(np.exp(line[:-2]) - theta[-1], 1e-3))
            theta[-2] *= slope * np.exp(line[0] - theta[0])
            starts.append(theta)
        return starts

    def _from(self, curves: Sequence[Curve]) -> Array:
        levels = [float(c.log_a - c.alpha * self.middle) for c in curves]
        return np.array([*levels, float(curves[0].alpha), float(curves[0].e)])
