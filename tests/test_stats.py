"""Intervals and verdicts: against hand computation, and on data with a known truth."""

import math

import numpy as np
import pytest

from analysis.stats import Interval, document_interval, point, seed_interval, verdict


def seeds(low: float, high: float, n: int = 3) -> Interval:
    return Interval((low + high) / 2, low, high, "seeds", n)


def test_t_interval_by_hand() -> None:
    # Mean 0.02, squared deviations 0.0001 + 0 + 0.0001, so s = 0.01; half width 4.302653 * 0.01 / sqrt(3).
    interval = seed_interval([0.01, 0.02, 0.03])
    assert interval.estimate == pytest.approx(0.02, abs=1e-15)
    assert interval.low == pytest.approx(0.02 - 0.0248414, abs=1e-7)
    assert interval.high == pytest.approx(0.02 + 0.0248414, abs=1e-7)
    assert (interval.kind, interval.n) == ("seeds", 3)


def test_t_interval_of_two_seeds_uses_one_degree_of_freedom() -> None:
    # s = 0.01 * sqrt(2), so half width = 12.706205 * 0.01.
    interval = seed_interval([-0.01, 0.01])
    assert interval.high == pytest.approx(0.12706205, abs=1e-8)


@pytest.mark.parametrize("differences", [[], [0.1], [0.1, math.nan], [0.1, math.inf]])
def test_t_interval_refuses(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more finite"):
        seed_interval(differences)


@pytest.mark.parametrize("num_seeds", [3, 5, 10])
def test_t_interval_covers_the_truth(num_seeds: int) -> None:
    """Two arms that share a large seed effect: the interval covers in 93 to 97 % of cases."""
    rng = np.random.default_rng(num_seeds)
    trials, truth = 4000, -0.013
    shared = rng.normal(4.5, 0.05, (trials, num_seeds))
    arm = shared + truth + rng.normal(0, 0.006, (trials, num_seeds))
    reference = shared + rng.normal(0, 0.006, (trials, num_seeds))
    intervals = [seed_interval(list(row)) for row in arm - reference]
    covered = np.mean([i.low <= truth <= i.high for i in intervals])
    assert 0.93 < covered < 0.97  # the standard error of 4000 trials is 0.0034


def test_document_estimate_is_a_ratio_of_sums() -> None:
    # Differences per token -0.1, +0.1 on 300 and 100 tokens: (-30 + 10) / 400, not the mean of the two.
    interval = document_interval([570.0, 310.0], [600.0, 300.0], [300, 100])
    assert interval.estimate == pytest.approx(-0.05, abs=1e-15)
    # Resamples hold the documents (a, a), (a, b), (b, b): the extremes are the documents' own differences.
    assert interval.low == pytest.approx(-0.1, abs=1e-12)
    assert interval.high == pytest.approx(0.1, abs=1e-12)
    assert (interval.kind, interval.n) == ("documents", 2)


def test_document_interval_matches_the_delta_method() -> None:
    """Many equal documents: the percentiles are those of a normal with the standard error."""
    rng = np.random.default_rng(1)
    d = rng.normal(-0.02, 0.1, 900)
    interval = document_interval(d * 50, np.zeros(900), np.full(900, 50))
    half = 1.96 * d.std() / 30
    assert interval.low == pytest.approx(d.mean() - half, abs=0.06 * half)
    assert interval.high == pytest.approx(d.mean() + half, abs=0.06 * half)


def test_document_interval_is_paired_and_repeatable() -> None:
    rng = np.random.default_rng(2)
    tokens = rng.integers(50, 500, 200)
    hard = rng.normal(4.5, 1.0, 200)  # documents differ by far more than the arms do
    reference, arm = hard * tokens, (hard - 0.01) * tokens
    interval = document_interval(arm, reference, tokens)
    assert interval.low == pytest.approx(-0.01, abs=1e-9)
    assert interval.high == pytest.approx(-0.01, abs=1e-9)
    noisy = arm + rng.normal(0, 5, 200)
    assert document_interval(noisy, reference, tokens) == document_interval(noisy, reference, tokens)


def test_document_interval_covers_with_few_large_documents() -> None:
    """A corpus shaped like `prose`: nine documents hold 44 % of the tokens; coverage stays near the level."""
    rng = np.random.default_rng(3)
    tokens = np.concatenate([np.full(9, 4900), np.full(100, 560)])
    covered = 0
    for _ in range(300):
        sampled = rng.choice(tokens, tokens.size)
        noise = rng.normal(0, 0.05, tokens.size)
        interval = document_interval((-0.02 + noise) * sampled, np.zeros(tokens.size), sampled, draws=400)
        covered += interval.low <= -0.02 <= interval.high
    assert 0.88 < covered / 300 < 0.98  # standard error 0.013; a percentile bootstrap is a little narrow here


def test_a_single_document_has_no_interval() -> None:
    interval = document_interval([90.0], [100.0], [50])
    assert interval.estimate == pytest.approx(-0.2)
    assert interval.kind == "none"
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)


@pytest.mark.parametrize(
    ("a", "b", "tokens"),
    [([1.0], [1.0], [1, 2]), ([1.0, math.nan], [1.0, 1.0], [1, 1]), ([1.0], [1.0], [0]), ([], [], [])],
)
def test_document_interval_refuses(a: list[float], b: list[float], tokens: list[int]) -> None:
    with pytest.raises(ValueError):
        document_interval(a, b, tokens)


@pytest.mark.parametrize(
    ("interval", "paper", "expected"),
    [
        (seeds(-0.030, -0.010), -0.020, "agrees"),
        (seeds(0.010, 0.030), 0.020, "agrees"),
        (seeds(0.010, 0.030), -0.020, "differs"),
        (seeds(-0.004, -0.001), -0.020, "agrees"),  # excluding zero is asked before the margin
        (seeds(0.001, 0.004), -0.020, "differs"),
        (seeds(-0.005, 0.005), -0.020, "no difference"),
        (seeds(-0.0051, 0.004), -0.020, "underpowered"),
        (seeds(-0.030, 0.010), -0.020, "underpowered"),
        (seeds(-0.001, 0.030), -0.020, "underpowered"),
        (seeds(0.001, 0.004), 0.0, "no difference"),
        (seeds(0.010, 0.030), 0.0, "differs"),
        # A paper's difference of up to 0.001 is within the rounding of its two numbers: no side.
        (seeds(0.010, 0.030), 0.001, "differs"),
        (seeds(0.001, 0.004), 0.001, "no difference"),
        (seeds(-0.004, -0.001), 0.001, "no difference"),
        (seeds(-0.030, -0.010), -0.001, "differs"),
        (seeds(-0.030, -0.010), 1.766 - 1.767, "differs"),  # -0.00099...9
        (seeds(-0.030, -0.010), 1.7660 - 1.7650 - 0.002, "differs"),
        (seeds(-0.030, -0.010), -0.002, "agrees"),
        (seeds(0.001, 0.004), -0.002, "differs"),
        (seeds(-0.030, -0.010, n=2), -0.020, None),
        (Interval(-0.02, -0.03, -0.01, "documents", 606), -0.020, None),
        (point(-0.02), -0.020, None),
    ],
)
def test_verdict(interval: Interval, paper: float, expected: str | None) -> None:
    assert verdict(interval, paper) == expected
