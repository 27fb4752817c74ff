"""Scaling fits: known curves are found, the paper's coefficients come out, NaN where none is defined."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.compute_axis import PFLOPS_DAY, paper_account, six_nd
from analysis.scaling import ESTIMATORS, Array, Curve, fit, fit_shared

ROOT = Path(__file__).resolve().parents[1]
ROWS = list(csv.DictReader((ROOT / "experiments/published/table2_scaling.csv").read_text().splitlines()))
STARS = np.array([0.6916, 1.0405, 1.6937, 3.3527, 5.5972])
COMPUTE = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])


def column(name: str) -> Array:
    return np.array([float(row[name]) for row in ROWS])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_known_curve_is_found(estimator: str) -> None:
    loss = 2.7 * COMPUTE**-0.08
    curve = fit(COMPUTE, loss, estimator)
    assert float(curve.a) == pytest.approx(2.7, rel=1e-6)
    assert float(curve.alpha) == pytest.approx(0.08, rel=1e-5)
    assert float(curve.e) == 0.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_known_irreducible_loss_is_found(estimator: str) -> None:
    compute = np.geomspace(1e-3, 1e3, 9)
    curve = fit(compute, 1.5 + 0.9 * compute**-0.3, estimator, irreducible=True)
    assert float(curve.e) == pytest.approx(1.5, abs=2e-3)
    assert float(curve.a) == pytest.approx(0.9, abs=2e-3)
    assert float(curve.alpha) == pytest.approx(0.3, abs=1e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("unit", [1e-9, 1.0, 86400e15])
def test_the_unit_of_compute_moves_a_alone(estimator: str, unit: float) -> None:
    noise = np.array([3, -2, 1, -1, 2, -3]) * 1e-3
    loss = 2.7 * COMPUTE**-0.08 + noise
    here, there = fit(COMPUTE, loss, estimator), fit(COMPUTE * unit, loss, estimator)
    assert float(there.alpha) == pytest.approx(float(here.alpha), rel=1e-4)
    assert float(there.loss(3.0 * unit)) == pytest.approx(float(here.loss(3.0)), rel=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_exponent_is_shared(estimator: str) -> None:
    scales = (2.7, 2.6, 2.5)
    loss = np.stack([a * COMPUTE**-0.08 for a in scales])
    curves = fit_shared(np.tile(COMPUTE, (3, 1)), loss, estimator)
    assert [float(c.a) for c in curves] == pytest.approx(scales, rel=1e-5)
    assert [float(c.alpha) for c in curves] == pytest.approx([0.08] * 3, rel=1e-5)


def test_the_shared_exponent_is_that_of_one_regression_with_dummies() -> None:
    rng = np.random.default_rng(0)
    loss = np.stack([a * COMPUTE**-0.08 for a in (2.7, 2.6)]) * np.exp(rng.normal(0, 0.01, (2, 6)))
    design = np.zeros((12, 3))
    design[:6, 0] = design[6:, 1] = 1
    design[:, 2] = np.tile(np.log(COMPUTE), 2)
    expected = np.linalg.lstsq(design, np.log(loss).ravel(), rcond=None)[0]
    curves = fit_shared(np.tile(COMPUTE, (2, 1)), loss)
    assert [float(c.log_a) for c in curves] == pytest.approx(list(expected[:2]), rel=1e-10)
    assert float(curves[0].alpha) == pytest.approx(-expected[2], rel=1e-10)


def test_sum_huber_ignores_one_point_far_away() -> None:
    """With five points on a line and one far off it, the sum of Huber losses keeps the five."""
    loss = 2.7 * COMPUTE**-0.08
    loss[3] *= 1.2
    assert float(fit(COMPUTE, loss, "huber").alpha) == pytest.approx(0.08, abs=1e-3)
    assert abs(float(fit(COMPUTE, loss, "ols").alpha) - 0.08) > 5e-3


def test_a_weight_is_a_repetition() -> None:
    loss = 2.7 * COMPUTE**-0.08 + np.array([3, -2, 1, -1, 2, -3]) * 1e-3
    counts = np.array([2, 0, 1, 1, 1, 1])
    repeated = np.repeat(np.arange(6), counts)
    for estimator in ESTIMATORS:
        weighted = fit(COMPUTE, loss, estimator, weights=counts)
        plain = fit(COMPUTE[repeated], loss[repeated], estimator)
        assert float(weighted.alpha) == pytest.approx(float(plain.alpha), rel=1e-5), estimator


# Refits of the printed table on the stars, as computed when the figure was digitised (to 1e-4 in A).
REFITS = {
    ("ols", "loss_prenorm"): (1.8921, 0.0566),
    ("ols", "loss_block"): (1.8716, 0.0582),
    ("ols", "loss_full"): (1.8653, 0.0574),
    ("ols", "loss_mhc_lite"): (1.8680, 0.0566),
    ("ls", "loss_prenorm"): (1.8922, 0.05665),
    ("ls", "loss_block"): (1.8716, 0.05818),
    ("ls", "loss_full"): (1.8654, 0.05744),
}
PRINTED = {"loss_prenorm": (1.891, 0.057), "loss_block": (1.870, 0.058), "loss_full": (1.865, 0.057)}


@pytest.mark.parametrize(("estimator", "name"), REFITS)
def test_refits_of_the_printed_table(estimator: str, name: str) -> None:
    a, alpha = REFITS[estimator, name]
    curve = fit(STARS, column(name), estimator)
    assert float(curve.a) == pytest.approx(a, abs=6e-5)
    assert float(curve.alpha) == pytest.approx(alpha, abs=6e-5)


@pytest.mark.parametrize("name", PRINTED)
def test_ols_is_near_the_printed_coefficients(name: str) -> None:
    curve = fit(STARS, column(name))
    assert abs(float(curve.a) - PRINTED[name][0]) <= 0.002
    assert abs(float(curve.alpha) - PRINTED[name][1]) <= 0.001


def test_huber_moves_fulls_a_by_half_a_hundredth() -> None:
    loss = column("loss_full")
    moved = float(fit(STARS, loss, "ols").a - fit(STARS, loss, "huber").a)
    assert moved == pytest.approx(0.005, abs=0.001)


def test_inverse_of_a_curve() -> None:
    curve = Curve.of(1.870, 0.058)
    assert float(np.exp(curve.log_compute(curve.loss(5.6)))) == pytest.approx(5.6)
    assert math.isnan(float(Curve.of(1.0, 0.1, e=1.5).log_compute(1.4)))  # below the irreducible loss
    assert math.isnan(float(Curve.of(1.0, -0.1).log_compute(0.9)))  # a curve that rises


def test_what_has_no_slope_is_nan() -> None:
    curve = fit(COMPUTE, 2.7 * COMPUTE**-0.08, weights=[6, 0, 0, 0, 0, 0])
    assert math.isnan(float(curve.alpha))
    assert math.isnan(float(curve.log_compute(2.0)))


@pytest.mark.parametrize("loss", [[1.0, math.nan, 1.0], [1.0, -1.0, 1.0]])
def test_what_is_no_loss_is_refused(loss: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        fit([1.0, 2.0, 3.0], loss)
    with pytest.raises(ValueError, match="ols, ls, huber"):
        fit([1.0, 2.0], [2.0, 1.0], "median")


def test_compute_axes_of_the_paper() -> None:
    """6ND falls short of the stars by 21 to 27 %; the account meets them to 0.4 %."""
    n, d = column("active_params_M") * 1e6, column("tokens_B") * 1e9
    short = 1 - six_nd(n, d) / PFLOPS_DAY / STARS
    assert 0.20 < short.min() < 0.21
    assert 0.26 < short.max() < 0.271
    assert six_nd(n, d)[0] / PFLOPS_DAY == pytest.approx(0.521, abs=5e-4)
    account = paper_account(n, d, column("num_transformer_blocks"), column("heads")) / PFLOPS_DAY
    error = account / STARS - 1
    assert np.abs(error[:4]).max() < 0.0008
    assert error[4] == pytest.approx(-0.0039, abs=2e-4)
