"""Intervals on simulated runs with a known truth: those shown cover 93 to 97 %, the others less.

Four thousand simulated studies have a standard error of 0.0034, so the band is a test of a point and more.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from analysis.bootstrap import document_bounds, hierarchical_draws, percentile_interval
from analysis.joint import joint_interval
from analysis.power import power
from analysis.stats import seed_interval

TRUTH = -0.013
# Standard deviations, nats per token, of the difference over seeds, over documents, and of what both share.
# With 60 documents of mixed length the documents' part is nothing, small, as large as the seeds', dominant.
SPREADS = [(0.03, 0.0, 0.02), (0.03, 0.05, 0.05), (0.03, 0.1, 0.03), (0.02, 0.12, 0.12), (0.01, 0.3, 0.1)]


def studies(
    rng: np.random.Generator,
    count: int,
    num_seeds: int,
    spread: tuple[float, float, float],
    documents: int = 60,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Simulated differences [studies, seeds, documents] in nats and tokens [studies, documents]."""
    of_seed, of_document, of_both = spread
    tokens = rng.lognormal(5, 0.8, (count, documents))
    per_token = (
        TRUTH
        + rng.normal(0, of_seed, (count, num_seeds, 1))
        + rng.normal(0, of_document, (count, 1, documents))
        + rng.normal(0, of_both, (count, num_seeds, documents))
    )
    return per_token * tokens[:, None], tokens


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_the_seed_interval_covers_other_seeds_on_this_text(num_seeds: int) -> None:
    """Documents are fixed: the truth is the pooled difference of endless seeds on the same documents."""
    rng = np.random.default_rng(100 + num_seeds)
    tokens = rng.lognormal(5, 0.8, 60)
    document = rng.normal(0, 0.1, 60)
    truth = TRUTH + float((document * tokens).sum() / tokens.sum())
    covered = 0
    for _ in range(4000):
        d = TRUTH + document + rng.normal(0, 0.03, (num_seeds, 1)) + rng.normal(0, 0.02, (num_seeds, 60))
        interval = seed_interval(list((d * tokens).sum(axis=1) / tokens.sum()))
        covered += interval.low <= truth <= interval.high
    assert 0.93 < covered / 4000 < 0.97


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_the_joint_interval_covers_other_seeds_and_other_text(
    num_seeds: int, spread: tuple[float, float, float]
) -> None:
    differences, tokens = studies(np.random.default_rng(num_seeds), 4000, num_seeds, spread)
    intervals = [joint_interval(d, t) for d, t in zip(differences, tokens, strict=True)]
    covered = np.mean([i.low <= TRUTH <= i.high for i in intervals])
    assert 0.93 < covered < 0.97


def test_the_seed_interval_alone_does_not_cover_other_text() -> None:
    """Documents that differ more than seeds do: leaving them out of the interval is not cautious."""
    differences, tokens = studies(np.random.default_rng(1), 1000, 5, (0.01, 0.3, 0.1))
    per_seed = differences.sum(axis=2) / tokens.sum(axis=1)[:, None]
    intervals = [seed_interval(list(d)) for d in per_seed]
    assert np.mean([i.low <= TRUTH <= i.high for i in intervals]) < 0.6


def test_the_percentile_bootstrap_over_three_seeds_covers_three_quarters() -> None:
    """Why no interval here resamples three seeds.

    Of 27 equally likely resamples of 3 values one is three times the least (3.7 %), so the percentiles at 2.5
    and 97.5 % are the extreme values; from the least to the greatest of three covers with 1 - 2 / 8 = 75 %.
    """
    rng = np.random.default_rng(3)
    picks = np.array([[a, b, c] for a in range(3) for b in range(3) for c in range(3)])
    values = rng.normal(TRUTH, 0.03, (4000, 3))
    means = values[:, picks].mean(axis=2)
    low, high = np.quantile(means, [0.025, 0.975], axis=1, method="inverted_cdf")
    assert np.mean((low <= TRUTH) & (high >= TRUTH)) == pytest.approx(0.755, abs=0.02)
    # The resampling code itself, one document so that only seeds are drawn.
    found = [percentile_interval(hierarchical_draws(v[:, None], [1.0], draws=500)) for v in values[:1000]]
    assert np.mean([low <= TRUTH <= high for low, high in found]) == pytest.approx(0.755, abs=0.035)


@pytest.mark.parametrize(("num_seeds", "at_most"), [(3, 0.82), (5, 0.90)])
def test_the_hierarchical_bootstrap_covers_too_little_at_few_seeds(num_seeds: int, at_most: float) -> None:
    differences, tokens = studies(np.random.default_rng(num_seeds), 300, num_seeds, (0.03, 0.02, 0.02))
    covered = 0
    for d, t in zip(differences, tokens, strict=True):
        low, high = percentile_interval(hierarchical_draws(d, t, draws=300))
        covered += low <= TRUTH <= high
    assert covered / 300 < at_most


def test_document_bounds_cover_with_many_documents_of_one_size() -> None:
    """Where BCa applies; losses skewed as those of text are (gamma, skewness 1)."""
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        v = TRUTH + 0.05 * (rng.gamma(4, 1, 200) - 4)
        low, high = document_bounds(v * 50, np.full(200, 50), draws=400)
        covered += low <= TRUTH <= high
    assert 0.92 < covered / 400 < 0.98  # standard error 0.01


@pytest.mark.parametrize(
    ("num_seeds", "difference", "sd"), [(3, 0.05, 0.02), (10, 0.029, 0.03), (34, 0.5, 1.0)]
)
def test_power_is_the_share_of_studies_that_see_the_difference(
    num_seeds: int, difference: float, sd: float
) -> None:
    rng = np.random.default_rng(num_seeds)
    seen = 0
    for row in rng.normal(difference, sd, (4000, num_seeds)):
        interval = seed_interval(list(row))
        seen += interval.low > 0 or interval.high < 0
    assert seen / 4000 == pytest.approx(power(num_seeds, difference, sd), abs=0.025)  # 3 standard errors
