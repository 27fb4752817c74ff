"""Everything that is fitted to a ladder: curves by axis and estimator, and compute advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.advantage import Place, Sensitivity, paired_interval, sensitivity
from analysis.ladder import Ladder
from analysis.scaling import ESTIMATORS, Array, Curve, fit, fit_shared
from analysis.scaling_bootstrap import (
    Resamples,
    Spread,
    over_documents,
    over_seeds,
    refits,
    resamples,
    spread,
)
from analysis.scaling_profile import profile_interval
from analysis.stats import Interval, seed_interval
from repro.errors import DataError

Ends = tuple[float, float]


@dataclass(frozen=True)
class CurveRow:
    """One arm's curve. kind: ``free`` exponent, ``shared`` among the arms, or ``irreducible`` (E fitted).

    a, alpha, e: profile intervals (None where there is no likelihood, or it was not asked for); points: the
    bootstrap of (A, alpha) over points, None where not asked for.
    """

    arm: int
    axis: str
    estimator: str
    kind: str
    curve: Curve
    a: Ends | None = None
    alpha: Ends | None = None
    e: Ends | None = None
    points: tuple[Spread, Spread] | None = None


@dataclass(frozen=True)
class AdvantageRow:
    """An arm's compute advantage over the baseline at one place, by one axis and estimator.

    paired: t interval of the paired residuals (OLS only); points, both, documents: bootstraps over points,
    over points and seeds, over validation documents; seeds: t interval over seeds, of one ladder per seed;
    None where it does not apply.
    """

    arm: int
    axis: str
    estimator: str
    kind: str
    place: Place
    ratio: float
    paired: Ends | None
    points: Spread | None
    seeds: Interval | None
    both: Spread | None
    documents: Spread | None
    step: Sensitivity | None

    @property
    def interval(self) -> tuple[Ends, str] | None:
        """The interval to quote and what it is over: seeds if there are, else the scatter of the points."""
        if self.seeds is not None:
            return (self.seeds.low, self.seeds.high), f"t over {self.seeds.n} seeds"
        return (self.paired, "t, scatter of the points") if self.paired is not None else None


@dataclass(frozen=True)
class Study:
    """A ladder with its fits; ``why_not`` says why there are none."""

    ladder: Ladder
    fitted: Ladder | None
    curves: tuple[CurveRow, ...] = ()
    advantages: tuple[AdvantageRow, ...] = ()
    why_not: str = ""

    @property
    def axis(self) -> str:
        """The compute axis that is drawn."""
        return self.ladder.axes[0]

    def curve(self, arm: str, axis: str | None = None, estimator: str = "ols", kind: str = "free") -> Curve:
        """One fitted curve."""
        k, axis = self.ladder.arms.index(arm), axis or self.axis
        return next(
            row.curve
            for row in self.curves
            if (row.arm, row.axis, row.estimator, row.kind) == (k, axis, estimator, kind)
        )

    def advantage(self, arm: str, at: str, axis: str | None = None, estimator: str = "ols") -> AdvantageRow:
        """One advantage; at: ``method`` or ``baseline`` (at their largest compute), or ``loss``."""
        k, axis = self.ladder.arms.index(arm), axis or self.axis
        return next(
            row
            for row in self.advantages
            if (row.arm, row.place.at, row.axis, row.estimator, row.kind) == (k, at, axis, estimator, "free")
        )


def study(ladder: Ladder, loss: float | None = None) -> Study:
    """All fits; loss: where the curves are compared, by default the baseline's at the mean log C."""
    try:
        fitted = ladder.fitted()
    except DataError as error:
        return Study(ladder, None, why_not=str(error))
    curves, advantages = [], []
    drawn = resamples(len(fitted.sizes))
    for axis in ladder.axes:
        compute = fitted.compute[axis]
        for estimator in ESTIMATORS:
            free = [fit(c, l, estimator) for c, l in zip(compute, fitted.losses, strict=True)]
            # Of the other axes and estimators together, the estimates are enough: a refit is a search.
            known = estimator == "ols" or axis == ladder.axes[0]
            draws = [
                refits(c, l, drawn, estimator) if known else None
                for c, l in zip(compute, fitted.losses, strict=True)
            ]
            for k, curve in enumerate(free):
                curves.append(_curve_row(fitted, k, axis, estimator, curve, draws[k], drawn.probability))
            shared = fit_shared(compute, fitted.losses, estimator)
            curves += [CurveRow(k, axis, estimator, "shared", curve) for k, curve in enumerate(shared)]
            places = _places(fitted, axis, free[0], loss)
            for k in range(1, len(free)):
                advantages += [
                    _advantage(fitted, k, axis, estimator, place, free, draws, drawn.probability)
                    for place in places(k)
                ]
                place = places(k)[0]
                ratio = place.ratio(shared[0], shared[k])
                advantages.append(
                    AdvantageRow(k, axis, estimator, "shared", place, ratio, *[None] * 6)  # type: ignore[arg-type]
                )
    curves += _irreducible(fitted, ladder.axes[0])
    return Study(ladder, fitted, tuple(curves), tuple(advantages))


def _places(fitted: Ladder, axis: str, baseline: Curve, loss: float | None):  # type: ignore[no-untyped-def]
    compute = fitted.compute[axis]
    middle = float(baseline.loss(np.exp(np.log(compute[0]).mean()))) if loss is None else loss
    return lambda k: (
        Place("method", float(compute[k].max())),
        Place("baseline", float(compute[0].max())),
        Place("loss", middle),
    )


def _curve_row(
    fitted: Ladder, k: int, axis: str, estimator: str, curve: Curve, draws: Curve | None, probability: Array
) -> CurveRow:
    c, l = fitted.compute[axis][k], fitted.losses[k]
    a: Ends | None = None
    alpha: Ends | None = None
    if estimator != "huber":
        low, high = profile_interval(c, l, "log_a", estimator)
        a, alpha = (math.exp(low), math.exp(high)), profile_interval(c, l, "alpha", estimator)
    points = (spread(draws.a, probability), spread(draws.alpha, probability)) if draws else None
    return CurveRow(k, axis, estimator, "free", curve, a, alpha, None, points)


def _irreducible(fitted: Ladder, axis: str) -> list[CurveRow]:
    """OLS with E on the drawn axis: what the points say about a loss that no compute removes."""
    rows = []
    for k, (c, l) in enumerate(zip(fitted.compute[axis], fitted.losses, strict=True)):
        curve = fit(c, l, "ols", irreducible=True)
        ends = profile_interval(c, l, "e", irreducible=True) if len(c) > 3 else None
        rows.append(CurveRow(k, axis, "ols", "irreducible", curve, e=ends))
    return rows


def _advantage(
    fitted: Ladder,
    k: int,
    axis: str,
    estimator: str,
    place: Place,
    free: Sequence[Curve],
    draws: Sequence[Curve | None],
    probability: Array,
) -> AdvantageRow:
    compute, losses = fitted.compute[axis], fitted.losses
    pair = (compute[0], compute[k]), (losses[0], losses[k])
    base, own = draws[0], draws[k]
    points = spread(np.exp(place.log_ratio(base, own)), probability) if base and own else None
    seeds = both = documents = None
    if estimator == "ols" and fitted.by_seed is not None:
        seeds, both = _over_seeds(fitted, k, compute, place)
        documents = _over_documents(fitted, k, compute, place)
    return AdvantageRow(
        k, axis, estimator, "free", place, place.ratio(free[0], free[k]),
        paired_interval(*pair, place) if estimator == "ols" else None,
        points, seeds, both, documents, sensitivity(*pair, place, estimator) if points else None,
    )  # fmt: skip


def _over_seeds(
    fitted: Ladder, k: int, compute: Array, place: Place
) -> tuple[Interval | None, Spread | None]:
    """One ladder per seed, t over their log advantages; and the bootstrap over points and seeds together."""
    by_seed = fitted.by_seed
    if by_seed is None or len(by_seed) < 2:
        return None, None
    logs = [float(place.log_ratio(fit(compute[0], l[0]), fit(compute[k], l[k]))) for l in by_seed]
    interval = None
    if np.isfinite(logs).all():
        found = seed_interval(logs)
        estimate, low, high = (math.exp(v) for v in (found.estimate, found.low, found.high))
        interval = Interval(estimate, low, high, found.kind, found.n)
    drawn, losses = over_seeds([by_seed[:, 0], by_seed[:, k]])
    curves = [refits(compute[i], l, drawn) for i, l in zip((0, k), losses, strict=True)]
    return interval, spread(np.exp(place.log_ratio(*curves)), drawn.probability)


def _over_documents(fitted: Ladder, k: int, compute: Array, place: Place) -> Spread | None:
    """The validation documents resampled, the same for every run; None where they are not recorded."""
    if fitted.cells is None:
        return None
    n = len(fitted.sizes)
    sums, tokens = [], None
    for arm in (0, k):
        for i in range(n):
            frames = [run.documents() for run in fitted.cells[arm, i]]
            if any(frame is None for frame in frames):
                return None
            sums.append(np.mean([frame["loss_sum"] for frame in frames if frame is not None], axis=0))
            own = next(frame["tokens"].to_numpy() for frame in frames if frame is not None)
            if tokens is not None and not np.array_equal(own, tokens):
                return None
            tokens = own
    if tokens is None or len(tokens) < 2:
        return None
    losses = over_documents(np.stack(sums), tokens)
    ones = np.ones((len(losses), n))
    uniform = np.full(len(losses), 1 / len(losses))
    curves = [
        refits(compute[arm], losses[:, start : start + n], Resamples(ones, uniform))
        for arm, start in ((0, 0), (k, n))
    ]
    return spread(np.exp(place.log_ratio(*curves)), uniform)
