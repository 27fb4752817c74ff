"""p-values, power, equivalence, Holm, bootstrap, variance components: hand computation and literals."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from analysis.ablation_view import records, tables
from analysis.bootstrap import (
    bca_interval,
    document_bounds,
    effective_documents,
    hierarchical_draws,
    percentile_interval,
    ratio_draws,
    ratio_jackknife,
)
from analysis.equivalence import equivalence_p
from analysis.joint import components, joint_interval
from analysis.multiplicity import holm
from analysis.paired_t import p_value, standard_deviation, t_statistic
from analysis.power import power, seeds_needed, seeds_needed_with_range, smallest_visible, spread_interval
from analysis.statistics_view import needed_text, p_text, sd_text
from analysis.stats import seed_interval
from analysis.tables import to_text
from tests.synthetic_runs import table_of, three_seeds, write_run


def test_paired_t_by_hand() -> None:
    # Mean 0.02, s 0.01: t = 0.02 sqrt(3) / 0.01 = 3.4641. With 2 degrees of freedom the two-sided p is
    # 1 - t / sqrt(2 + t^2) = 1 - 3.4641 / sqrt(14) = 0.0741799.
    d = [0.01, 0.02, 0.03]
    assert standard_deviation(d) == pytest.approx(0.01)
    assert t_statistic(d) == pytest.approx(3.4641016, abs=1e-7)
    assert p_value(d) == pytest.approx(0.0741799, abs=1e-7)
    assert p_value([-x for x in d]) == pytest.approx(0.0741799, abs=1e-7)


def test_p_is_below_5_percent_where_the_interval_excludes_zero() -> None:
    rng = np.random.default_rng(1)
    for row in rng.normal(0.03, 0.03, (200, 4)):
        interval = seed_interval(list(row))
        assert (p_value(list(row)) < 0.05) == (interval.low > 0 or interval.high < 0)


def test_differences_without_spread() -> None:
    assert p_value([0.5, 0.5, 0.5]) == 0
    assert p_value([0.0, 0.0, 0.0]) == 1
    assert equivalence_p([0.0, 0.0, 0.0]) == 0
    assert equivalence_p([0.5, 0.5, 0.5]) == 1
    assert seeds_needed(0.1, 0.0) == 2
    with pytest.raises(ValueError, match="two or more"):
        p_value([0.1])


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_the_textbook_sample_sizes(effect: float, pairs: int) -> None:
    """Cohen's small, medium, large and one: pairs for 80 % at 5 % two-sided (G*Power, paired t test)."""
    assert seeds_needed(effect, 1.0) == pairs
    assert seeds_needed(-effect * 0.03, 0.03) == pairs  # sign and unit do not matter
    assert power(pairs, effect, 1.0) >= 0.8 > power(pairs - 1, effect, 1.0)


def test_power_by_literals() -> None:
    assert power(34, 0.5, 1.0) == pytest.approx(0.8077775, abs=1e-6)  # G*Power: 0.8077775
    assert power(20, 0.0, 1.0) == pytest.approx(0.05, abs=1e-9)  # no difference: the level itself
    assert power(10_000, 5.0, 1.0) == 1.0
    assert seeds_needed(0.001, 1.0) is None
    assert seeds_needed(0.0, 1.0) is None


def test_the_spread_of_three_seeds_is_known_within_a_factor_of_twelve() -> None:
    # chi-square with 2 degrees of freedom is exponential: its quantile at p is -2 log(1 - p).
    low, high = spread_interval(1.0, 3)
    assert low == pytest.approx(math.sqrt(2 / (-2 * math.log(0.025))), abs=1e-9)  # 0.5207
    assert high == pytest.approx(math.sqrt(2 / (-2 * math.log(0.975))), abs=1e-9)  # 6.285
    needed = seeds_needed_with_range(0.5, 1.0, 3)
    assert needed.at_measured == 34
    assert needed.at_low == 11  # effect 0.960
    assert needed.at_high == 1242  # effect 0.0796; (1.96 + 0.8416)^2 / 0.0796^2 + 2 = 1242
    assert needed_text(needed) == "34 [11, 1242]"
    assert needed_text(None) == "–"


def test_the_smallest_visible_difference_inverts_the_power() -> None:
    assert power(3, smallest_visible(0.02, 3), 0.02) == pytest.approx(0.8, abs=1e-9)
    assert smallest_visible(1.0, 34) == pytest.approx(0.495, abs=0.002)  # a little below 0.5


def test_equivalence_by_hand() -> None:
    # Mean 0.001, s 0.001, n 3: t against +0.005 is -4 sqrt(3) = -6.9282, against -0.005 6 sqrt(3). The larger
    # tail is that of the nearer end: (1 - 6.9282 / sqrt(50)) / 2 = 0.0101020.
    assert equivalence_p([0.0, 0.001, 0.002]) == pytest.approx(0.0101020, abs=1e-6)
    # The same around the paper's -0.020, and far from it.
    assert equivalence_p([-0.020, -0.019, -0.018], -0.020) == pytest.approx(0.0101020, abs=1e-6)
    assert equivalence_p([0.0, 0.001, 0.002], -0.020) > 0.99
    # On the margin's edge there is nothing to say: p = 1/2.
    assert equivalence_p([0.004, 0.005, 0.006]) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="margin above 0"):
        equivalence_p([0.0, 0.1], 0.0, 0.0)


def test_equivalence_at_5_percent_is_the_90_percent_interval_within_the_margin() -> None:
    rng = np.random.default_rng(2)
    outcomes = set()
    for row in rng.normal(0.001, 0.003, (300, 4)):
        interval = seed_interval(list(row), level=0.90)
        inside = interval.low > -0.005 and interval.high < 0.005
        outcomes.add(inside)
        assert (equivalence_p(list(row)) < 0.05) == inside
    assert outcomes == {True, False}


def test_holm_by_hand() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04 -> running maximum 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([0.04]) == pytest.approx([0.04])
    assert holm([]).size == 0
    with pytest.raises(ValueError, match="0 to 1"):
        holm([0.1, 1.2])


def test_holm_keeps_false_rejections_at_the_level() -> None:
    rng = np.random.default_rng(4)
    false = [holm(row).min() < 0.05 for row in rng.uniform(size=(4000, 10))]
    assert 0.035 < np.mean(false) < 0.06  # 5 % expected, 40 % without correction


# Bootstrap


def test_ratio_jackknife_by_hand() -> None:
    # (1 + 4) / (1 + 2), without each in turn: 4 / 2, 1 / 1.
    assert ratio_jackknife([1.0, 4.0], [1.0, 2.0]) == pytest.approx([2.0, 1.0])
    assert np.isnan(ratio_jackknife([1.0, 0.0], [1.0, 0.0])[0])


def test_effective_documents() -> None:
    assert effective_documents([7.0] * 12) == pytest.approx(12)
    assert effective_documents([100.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_documents([3.0, 1.0]) == pytest.approx(1.6)  # 16 / 10


def test_bca_of_symmetric_draws_is_the_percentile_interval() -> None:
    draws = np.arange(-500, 501) / 100.0
    assert bca_interval(0.0, draws, [-1.0, 0.0, 1.0]) == pytest.approx(percentile_interval(draws))


def test_bca_by_hand() -> None:
    """Bias z0 = 0.25335 (60 % of the draws below), no skewness: levels Phi(2 z0 -+ 1.95996)."""
    draws = np.linspace(0.0, 1.0, 100_001)
    # 2 z0 = 0.50669: Phi(-1.45327) = 0.07307, Phi(2.46665) = 0.99318.
    assert bca_interval(0.6, draws, [-1.0, 0.0, 1.0]) == pytest.approx((0.07307, 0.99318), abs=2e-4)


def test_bca_is_where_percentiles_are_if_it_is_undefined() -> None:
    assert bca_interval(5.0, [1.0, 2.0, 3.0], [1.0, 2.0]) == percentile_interval([1.0, 2.0, 3.0])
    assert bca_interval(2.0, [2.0, 2.0], [2.0, 2.0]) == (2.0, 2.0)


def test_bca_is_used_for_many_even_documents_only() -> None:
    rng = np.random.default_rng(6)
    values = rng.exponential(1.0, 200)
    even, few = np.ones(200), np.concatenate([np.full(5, 500.0), np.ones(195)])
    for tokens, is_percentile in ((even, False), (few, True)):
        plain = percentile_interval(ratio_draws(values * tokens, tokens))
        assert (document_bounds(values * tokens, tokens) == plain) == is_percentile
    low, high = document_bounds(values, even)
    plain = percentile_interval(ratio_draws(values, even))
    assert low > plain[0]
    assert high > plain[1]  # skewed to the right: both ends move right


def test_hierarchical_draws_resample_both() -> None:
    # One document: seeds alone, means of three picks from (0, 3, 6) per token.
    draws = hierarchical_draws([[0.0], [3.0], [6.0]], [1.0], draws=4000)
    assert set(np.unique(draws)) == {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    assert draws.var() == pytest.approx(2.0, rel=0.1)  # population variance 6 over n = 3
    # One seed: documents alone.
    alone = hierarchical_draws([[0.0, 4.0]], [1.0, 1.0], draws=4000)
    assert set(np.unique(alone)) == {0.0, 2.0, 4.0}
    with pytest.raises(ValueError, match="do not match"):
        hierarchical_draws([[1.0, 2.0]], [1.0])


# Seeds and documents


def test_components_of_equal_documents_are_the_textbook_ones() -> None:
    """Two-way analysis of variance without replication, 2 seeds by 2 documents, by hand.

    Differences per token [[0, 2], [4, 10]]: seed means 1 and 7, document means 2 and 6, grand mean 4,
    residuals +-1. Seeds: 18 / 2 = 9. Documents: variance of (2, 6) = 8, over 2: 4. Interaction: sum of
    squares 4 over (n - 1)(m - 1) = 1 gives var(c) = 4, over n m = 4: 1. Documents less interaction: 3.
    """
    found = components([[0.0, 2.0], [4.0, 10.0]], [1.0, 1.0])
    assert found.estimate == pytest.approx(4.0)
    assert found.seeds == pytest.approx(9.0)
    assert found.interaction == pytest.approx(1.0)
    assert found.documents == pytest.approx(3.0)
    assert found.variance == pytest.approx(12.0)
    assert found.freedom == pytest.approx(144 / (81 + 9))


def test_joint_interval_without_document_effects_is_the_seed_interval() -> None:
    d = np.array([0.01, 0.02, 0.03])[:, None] * np.array([100.0, 300.0, 100.0])
    joint, alone = joint_interval(d, [100, 300, 100]), seed_interval([0.01, 0.02, 0.03])
    assert (joint.kind, joint.n) == ("seeds and documents", 3)
    assert joint.estimate == pytest.approx(0.02)
    assert joint.low == pytest.approx(alone.low, abs=1e-12)
    assert joint.high == pytest.approx(alone.high, abs=1e-12)


def test_joint_interval_grows_with_either_spread() -> None:
    rng = np.random.default_rng(7)
    seed, document = rng.normal(0, 1, (4, 1)), rng.normal(0, 1, 80)
    widths = []
    for of_seed, of_document in ((0.01, 0.0), (0.01, 0.05), (0.01, 0.2), (0.05, 0.2)):
        interval = joint_interval(of_seed * seed + of_document * document, np.ones(80))
        widths.append(interval.high - interval.low)
    assert all(a < b for a, b in pairwise(widths))
    same = joint_interval(np.zeros((3, 5)), np.ones(5))
    assert (same.low, same.high) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("differences", "tokens"),
    [
        ([[1.0, 2.0]], [1, 1]),
        ([[1.0], [2.0]], [1]),
        ([[1.0, 2.0], [1.0, 2.0]], [1, 1, 1]),
        ([[1.0, math.nan], [1.0, 2.0]], [1, 1]),
        ([[1.0, 2.0], [1.0, 2.0]], [5, 0]),
    ],
)
def test_joint_interval_refuses(differences: list[list[float]], tokens: list[int]) -> None:
    with pytest.raises(ValueError):
        joint_interval(differences, tokens)


# In the table


def test_statistics_stand_beside_the_contrasts(tmp_path: Path) -> None:
    """Full minus PreNorm: -0.01, -0.02, -0.03 (p 0.0742); sigmoid minus PreNorm: 0 in each seed (p 1)."""
    three_seeds(tmp_path)
    table = table_of(tmp_path)
    prenorm, full, sigmoid = records(table)
    assert prenorm["minus_prenorm_p"] is None
    assert full["minus_prenorm_p"] == pytest.approx(0.0741799, abs=1e-6)
    assert full["minus_prenorm_p_holm"] == pytest.approx(2 * 0.0741799, abs=1e-6)  # of two contrasts
    assert sigmoid["minus_prenorm_p_holm"] == 1
    assert full["minus_parent_p_holm"] == full["minus_prenorm_p_holm"]  # one contrast, one family
    assert sigmoid["minus_parent_p_holm"] == pytest.approx(0.0741799, abs=1e-6)  # alone in its family
    assert full["minus_prenorm_sd"] == pytest.approx(0.01)
    assert full["minus_prenorm_seeds_needed"] == 4  # effect 2.9; Cohen: 4 pairs have power 0.92
    # No document effect: the joint interval is that over seeds.
    assert full["minus_prenorm_joint_low"] == pytest.approx(full["minus_prenorm_low"])
    main, parents, against_prenorm, against_parent = tables(table, "t", experiment="table4", wide=True)
    assert [row["label"] for row in against_prenorm.rows] == ["Full", "Sigmoid"]
    assert against_prenorm.rows[0]["holm"] == "0.148"
    assert [row["label"] for row in against_parent.rows] == ["Sigmoid"]
    notes = " ".join(against_parent.notes)
    assert "corrected for the 2 and 1 contrasts" in notes
    assert "as paper, p" in notes
    terminal = tables(table, "t", experiment="table4", wide=False)
    assert "as paper, p" not in " ".join(terminal[-1].notes)
    for part in terminal:
        assert max(map(len, to_text(part).splitlines())) <= 120
    assert main.notes == parents.notes == ()


def test_two_seeds_have_no_p_value(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path, "prenorm", seed, [4.0] * 3)
        write_run(tmp_path, "full", seed, [3.9 + seed / 100] * 3)
    table = table_of(tmp_path)
    assert records(table)[1]["minus_prenorm_p"] is None
    assert records(table)[1]["minus_prenorm_joint_low"] is not None
    assert len(tables(table, "t", experiment="table4", wide=True)) == 2


def test_p_text() -> None:
    assert [p_text(p) for p in (None, 0.00099, 0.001, 0.0404, 1.0)] == [
        "–",
        "<0.001",
        "0.001",
        "0.040",
        "1.000",
    ]


def test_sd_text() -> None:
    assert [sd_text(sd) for sd in (0.0, 0.0464, 0.00034, 0.00002)] == ["0.000", "0.046", "0.0003", "2e-05"]
