"""Intervals of scaling fits: against textbook formulas, and how often they hold a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.advantage import Place, paired_interval, sensitivity
from analysis.scaling import Array, Curve, fit
from analysis.scaling_bootstrap import Resamples, over_documents, over_seeds, refits, resamples, spread
from analysis.scaling_profile import profile_interval
from tests.test_scaling import STARS, column

BASE, METHOD = Curve.of(1.89, 0.057), Curve.of(1.87, 0.058)
TRUTH = 1.24217  # at the method's 5.6: exp((ln 1.89 - ln 1.87 + 0.058 ln 5.6) / 0.057) / 5.6


def noisy(rng: np.random.Generator, sigma: float = 0.002, common: float = 0.004) -> tuple[Array, Array]:
    """Two arms of five points: noise of each, and noise of a size that both share."""
    shared = rng.normal(0, common, 5)
    return tuple(  # type: ignore[return-value]
        curve.loss(STARS) * np.exp(shared + rng.normal(0, sigma, 5)) for curve in (BASE, METHOD)
    )


def test_the_profile_of_a_line_is_the_t_interval() -> None:
    loss = column("loss_prenorm")
    line = stats.linregress(np.log(STARS), np.log(loss))
    t = stats.t.ppf(0.975, 3)
    low, high = profile_interval(STARS, loss, "alpha")
    assert (low, high) == pytest.approx(
        (-line.slope - t * line.stderr, -line.slope + t * line.stderr), rel=1e-5
    )
    low, high = profile_interval(STARS, loss, "log_a")
    half = t * line.intercept_stderr
    assert (low, high) == pytest.approx((line.intercept - half, line.intercept + half), rel=1e-5)


def test_the_profile_in_loss_is_nearly_that_in_log_loss() -> None:
    loss = column("loss_block")
    assert profile_interval(STARS, loss, "alpha", "ls") == pytest.approx(
        profile_interval(STARS, loss, "alpha"), abs=5e-4
    )


def test_five_points_do_not_show_an_irreducible_loss_but_many_do() -> None:
    low, high = profile_interval(STARS, column("loss_prenorm"), "e", irreducible=True)
    assert low == 0.0
    assert high > 1.5
    compute = np.geomspace(1e-3, 1e3, 25)
    noise = np.exp(np.random.default_rng(1).normal(0, 1e-3, 25))
    low, high = profile_interval(compute, (1.5 + 0.9 * compute**-0.3) * noise, "e", irreducible=True)
    assert 1.45 < low < 1.5 < high < 1.55


def test_points_on_a_curve_have_no_spread_and_two_points_no_interval() -> None:
    loss = BASE.loss(STARS)
    assert profile_interval(STARS, loss, "alpha") == pytest.approx((0.057, 0.057))
    assert all(math.isnan(end) for end in profile_interval(STARS[:2], loss[:2], "alpha"))
    with pytest.raises(ValueError, match="ols or ls"):
        profile_interval(STARS, loss, "alpha", "huber")


# 1.25x


@pytest.mark.parametrize(
    ("base", "method", "place", "expected"),
    [
        ((1.891, 0.057), (1.870, 0.058), Place("method", 5.6), 1.254),
        ((1.8909, 0.05643), (1.8700, 0.05773), Place("method", 5.6), 1.267),
        ((1.891, 0.057), (1.870, 0.058), Place("baseline", 5.6), 1.249),
        ((1.891, 0.057), (1.870, 0.058), Place("loss", 1.8), 1.231),
    ],
)
def test_the_papers_multiplier(
    base: tuple[float, float], method: tuple[float, float], place: Place, expected: float
) -> None:
    assert place.ratio(Curve.of(*base), Curve.of(*method)) == pytest.approx(expected, abs=5e-4)


def test_the_places_agree_where_they_name_the_same_point() -> None:
    loss = float(METHOD.loss(5.6))
    ratio = Place("method", 5.6).ratio(BASE, METHOD)
    assert Place("loss", loss).ratio(BASE, METHOD) == pytest.approx(ratio)
    assert Place("baseline", 5.6 * ratio).ratio(BASE, METHOD) == pytest.approx(ratio)
    assert ratio == pytest.approx(TRUTH, abs=5e-5)


def test_the_printed_table_gives_an_interval_around_its_estimate() -> None:
    losses = column("loss_prenorm"), column("loss_block")
    low, high = paired_interval((STARS, STARS), losses, Place("method", 5.6))
    ratio = Place("method", 5.6).ratio(*(fit(STARS, l) for l in losses))
    assert 1.1 < low < ratio < high < 1.5


def test_what_a_size_does_to_both_arms_widens_nothing() -> None:
    """A method that is the baseline times a constant has its residuals: hardly any spread is left."""
    loss = column("loss_prenorm")
    low, high = paired_interval((STARS, STARS), (loss, 0.99 * loss), Place("baseline", 1.9))
    ratio = Place("baseline", 1.9).ratio(fit(STARS, loss), fit(STARS, 0.99 * loss))
    unpaired = profile_interval(STARS, loss, "log_a")
    assert high - low < 0.06 < (unpaired[1] - unpaired[0]) / 0.057
    assert low < ratio < high


def test_an_exponent_near_zero_bounds_nothing() -> None:
    flat = np.array([2.0, 2.1, 1.9, 2.05, 1.99])
    assert paired_interval((STARS, STARS), (flat, flat * 0.99), Place("method", 2.0)) == (0.0, math.inf)


@pytest.mark.parametrize(("at", "value"), [("method", 5.6), ("baseline", 5.6), ("loss", 1.8)])
def test_the_paired_interval_covers(at: str, value: float) -> None:
    """1500 ladders of five points: 95 % less three standard errors; more where a size moves both arms."""
    rng = np.random.default_rng(5)
    place = Place(at, value)
    truth = place.ratio(BASE, METHOD)
    held = 0
    for _ in range(1500):
        low, high = paired_interval((STARS, STARS), noisy(rng), place)
        held += low <= truth <= high
    assert 0.933 < held / 1500 < 0.985


def test_the_percentile_bootstrap_over_five_points_is_too_narrow() -> None:
    rng = np.random.default_rng(6)
    drawn = resamples(5)
    place, held = Place("method", 5.6), 0
    for _ in range(600):
        curves = [refits(STARS, loss, drawn) for loss in noisy(rng)]
        found = spread(np.exp(place.log_ratio(*curves)), drawn.probability)
        held += found.low <= TRUTH <= found.high
    assert 0.60 < held / 600 < 0.92


def test_sensitivity_is_the_largest_change() -> None:
    losses = column("loss_prenorm"), column("loss_block")
    place = Place("method", 5.6)
    whole = place.ratio(*(fit(STARS, l) for l in losses))
    moved = losses[0].copy()
    moved[4] += 0.001
    found = sensitivity((STARS, STARS), losses, place)
    by_hand = abs(place.ratio(fit(STARS, moved), fit(STARS, losses[1])) - whole)
    assert found.change >= by_hand
    assert found.change == pytest.approx(by_hand, rel=0.1)  # up and down differ in second order
    assert (found.curve, found.index) == (0, 4)


# Resampling


def test_all_resamples_of_five_points() -> None:
    drawn = resamples(5)
    assert drawn.counts.shape == (126, 5)
    assert drawn.probability.sum() == pytest.approx(1.0, abs=1e-12)
    assert (drawn.counts.sum(1) == 5).all()
    assert drawn.probability @ drawn.counts == pytest.approx([1.0] * 5)
    assert drawn.probability @ drawn.counts**2 == pytest.approx([1.8] * 5)  # 1 + (1 - 1/5)
    assert resamples(9).counts.shape == (2000, 9)


def test_a_resample_of_one_size_is_undefined() -> None:
    curve = refits(STARS, column("loss_block"), resamples(5))
    found = spread(curve.alpha, resamples(5).probability)
    assert found.undefined == pytest.approx(5 / 5**5)
    assert found.low < 0.058 < found.high
    everything = spread(np.full(126, math.nan), resamples(5).probability)
    assert everything.undefined == 1.0
    assert math.isnan(everything.low)


def test_refits_are_the_fits_one_by_one() -> None:
    drawn, loss = resamples(5), column("loss_full")
    for estimator in ("ols", "ls"):
        curves = refits(STARS, loss, drawn, estimator)
        for r in (3, 60, 100):
            one = fit(STARS, loss, estimator, weights=drawn.counts[r])
            assert float(curves.alpha[r]) == pytest.approx(float(one.alpha), rel=1e-6)
            assert float(curves.log_a[r]) == pytest.approx(float(one.log_a), rel=1e-6)


def test_weighted_percentiles() -> None:
    found = spread(np.array([3.0, 1.0, 2.0]), np.array([0.02, 0.03, 0.95]), level=0.9)
    assert (found.low, found.high) == (2.0, 2.0)
    assert spread(np.array([3.0, 1.0, 2.0]), np.array([0.02, 0.03, 0.95]), level=0.95).low == 1.0


def test_seeds_are_drawn_alike_for_both_arms() -> None:
    by_seed = np.random.default_rng(2).normal(2.0, 0.1, (3, 5))
    drawn, (one, two) = over_seeds([by_seed, by_seed + 0.01], num_draws=200)
    assert one.shape == (200, 5)
    assert two - one == pytest.approx(np.full((200, 5), 0.01))
    assert one.std(0) == pytest.approx(by_seed.std(0) / math.sqrt(3), rel=0.25)
    assert isinstance(drawn, Resamples)


def test_documents_are_drawn_alike_for_all_runs() -> None:
    tokens = np.array([100, 300, 100, 50])
    sums = np.stack([4.0 * tokens, 3.9 * tokens])
    losses = over_documents(sums, tokens, num_draws=50)
    assert losses == pytest.approx(np.tile([4.0, 3.9], (50, 1)))
