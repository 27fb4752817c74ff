"""What decides a sentence about scaling: tests of a ``Study`` that give (holds | None, evidence).

None means open: a statement about the paper's own numbers at a trained scale, or an interval that is too
wide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from analysis.ablation_view import interval_text, signed
from analysis.advantage import Place
from analysis.ladder_table import difference
from analysis.scaling import Curve
from analysis.scaling_study import Study
from analysis.stats import MIN_SEEDS

StudyCheck = Callable[[Study], tuple[bool | None, str]]
_ABOUT_THE_PAPER = "a statement about the published numbers"


def lower_at_every_size(arm: str, reference: str) -> StudyCheck:
    """``arm`` has the lower loss at each size: by sign in print, by intervals over paired seeds in runs."""

    def test(study: Study) -> tuple[bool | None, str]:
        ladder = study.ladder
        k, j = ladder.arms.index(arm), ladder.arms.index(reference)
        if ladder.by_seed is None:
            gaps = np.round(ladder.losses[k] - ladder.losses[j], 4)
            wrong = [
                f"{signed(float(g))} at {s.name}" for s, g in zip(ladder.sizes, gaps, strict=True) if g >= 0
            ]
            return not wrong, ", ".join(
                wrong
            ) or f"{signed(float(gaps.min()))} to {signed(float(gaps.max()))}"
        found = [(size.name, difference(ladder, k, j, i)) for i, size in enumerate(ladder.sizes)]
        done = [(name, interval) for name, interval in found if interval is not None]
        if len(done) < len(found):
            return None, f"{len(done)} of {len(found)} sizes finished"
        name, worst = max(done, key=lambda pair: pair[1].estimate)
        evidence = f"least at size {name}: {interval_text(worst)}"
        if any(i.kind != "seeds" or i.n < MIN_SEEDS for _, i in done):
            return None, f"{evidence}, no verdict under {MIN_SEEDS} seeds"
        if any(i.low > 0 for _, i in done):
            return False, evidence
        return (True, evidence) if all(i.high < 0 for _, i in done) else (None, f"{evidence}, underpowered")

    return test


def close_to_printed(printed: Mapping[tuple[str, str], Curve], a: float, alpha: float) -> StudyCheck:
    """OLS coefficients of the printed losses are within ``a`` and ``alpha`` of the printed ones."""

    def test(study: Study) -> tuple[bool | None, str]:
        if study.ladder.scale != "published":
            return None, _ABOUT_THE_PAPER
        gaps = {
            arm: (float(study.curve(arm).a - curve.a), float(study.curve(arm).alpha - curve.alpha))
            for (source, arm), curve in printed.items()
            if source == "printed"
        }
        evidence = ", ".join(f"{arm} A {da:+.4f} alpha {dalpha:+.4f}" for arm, (da, dalpha) in gaps.items())
        return all(abs(da) <= a and abs(dalpha) <= alpha for da, dalpha in gaps.values()), evidence

    return test


def ratio_of_printed(
    printed: Mapping[tuple[str, str], Curve],
    source: str,
    pair: tuple[str, str],
    place: Place,
    expected: float,
) -> StudyCheck:
    """The advantage from the paper's own coefficients is ``expected`` to its last digit (0.01)."""

    def test(study: Study) -> tuple[bool | None, str]:
        if study.ladder.scale != "published":
            return None, _ABOUT_THE_PAPER
        ratio = place.ratio(printed[source, pair[0]], printed[source, pair[1]])
        return abs(ratio - expected) <= 0.005, f"{ratio:.3f}"

    return test


def less_compute(arm: str) -> StudyCheck:
    """The advantage at the arm's largest compute excludes 1: over seeds in runs, over the points in print."""

    def test(study: Study) -> tuple[bool | None, str]:
        if study.fitted is None:
            return None, "no fit"
        row = study.advantage(arm, "method")
        if row.interval is None or not math.isfinite(row.interval[0][0]):
            return None, f"{row.ratio:.3f}, no interval"
        (low, high), over = row.interval
        evidence = f"{row.ratio:.3f} [{low:.2f}, {high:.2f}], {over}"
        few = study.ladder.by_seed is not None and len(study.ladder.seeds) < MIN_SEEDS
        if few:
            return None, f"{evidence}, no verdict under {MIN_SEEDS} seeds"
        return (True if low > 1 else False if high < 1 else None), evidence

    return test


def holds_value(arm: str, value: float) -> StudyCheck:
    """The interval of the advantage at the arm's largest compute holds the paper's value."""

    def test(study: Study) -> tuple[bool | None, str]:
        if study.fitted is None:
            return None, "no fit"
        row = study.advantage(arm, "method")
        if row.interval is None or (study.ladder.by_seed is not None and len(study.ladder.seeds) < MIN_SEEDS):
            return None, f"{row.ratio:.3f}, no verdict under {MIN_SEEDS} seeds"
        (low, high), over = row.interval
        return low <= value <= high, f"{row.ratio:.3f} [{low:.2f}, {high:.2f}], {over}"

    return test
