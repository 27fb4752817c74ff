"""What decides a sentence about Fig. 8: exact statistics of the digitised panels, and signs of differences.

A test gives (holds | None, evidence). On the paper's own panels, one model each, a sign is taken as it is; on
runs the 95 % t interval over seeds must exclude zero, in every comparison of the sentence; None means open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.depth_weights import PANELS, ArmWeights, statistics
from analysis.stats import MIN_SEEDS, seed_interval

Outcome = tuple[bool | None, str]
Test = Callable[["DepthWeightsData"], Outcome]
Side = tuple[str, int, str]  # arm, panel, name of a statistic


@dataclass(frozen=True)
class DepthWeightsData:
    """The paper's panels and, at a trained scale, ours; arm -> weights."""

    scale: str
    paper: Mapping[str, ArmWeights]
    ours: Mapping[str, ArmWeights]

    @property
    def is_published(self) -> bool:
        """Whether only the paper's panels are looked at."""
        return not self.ours

    @property
    def shown(self) -> Mapping[str, ArmWeights]:
        """What the item is about at this scale."""
        return self.paper if self.is_published else self.ours


def digitised(expected: Mapping[Side, float], tolerance: float, rows: int | None = None) -> Test:
    """Statistics of the paper's panels are the expected ones; rows: they are counts out of so many rows."""

    def test(data: DepthWeightsData) -> Outcome:
        found = {
            side: statistics(data.paper[side[0]].mean, side[1])[side[2]] * (rows or 1) for side in expected
        }
        worst = max(abs(found[side] - value) for side, value in expected.items())
        form = "{:.0f}" if rows else "{:.3f}"
        return worst <= tolerance, ", ".join(form.format(value) for value in found.values())

    return test


def digitised_cells(cells: Mapping[tuple[str, int, int, int], float], tolerance: float) -> Test:
    """Single weights of the paper's panels: (arm, panel, transformer block from 1, source) -> weight."""

    def test(data: DepthWeightsData) -> Outcome:
        found = {
            cell: data.paper[cell[0]].mean.weights[2 * (cell[2] - 1) + cell[1], cell[3]] for cell in cells
        }
        worst = max(abs(found[cell] - weight) for cell, weight in cells.items())
        return bool(worst <= tolerance), ", ".join(
            f"{block} from {source}: {weight:.3f}" for (_, _, block, source), weight in found.items()
        )

    return test


def larger(pairs: Sequence[tuple[Side, Side | float]]) -> Test:
    """In each pair the first statistic is larger than the second, or than a constant; over paired seeds."""

    def test(data: DepthWeightsData) -> Outcome:
        outcomes, evidence = [], []
        for side, other in pairs:
            first = _by_seed(data, side)
            second = dict.fromkeys(first, other) if isinstance(other, float) else _by_seed(data, other)
            shared = [seeds for seeds in first if seeds in second]
            differences = [first[s] - second[s] for s in shared]
            if not differences or not np.isfinite(differences).all():
                return None, f"no finished runs of {side[0]} to compare"
            outcome, text = _sign(differences, data.is_published)
            outcomes.append(outcome)
            against = f"{other:g}" if isinstance(other, float) else _name(other, unlike=side)
            evidence.append(f"{_name(side)} minus {against} {text}")
        holds = False if False in outcomes else None if None in outcomes else True
        return holds, "; ".join(evidence)

    return test


def _sign(differences: Sequence[float], published: bool) -> Outcome:
    mean = float(np.mean(differences))
    if published:
        return mean > 0, f"{mean:+.3f}"
    if len(differences) < MIN_SEEDS:
        return None, f"{mean:+.3f} (under {MIN_SEEDS} seeds)"
    interval = seed_interval(differences)
    text = f"{mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
    return (True if interval.low > 0 else False if interval.high < 0 else None), text


def _by_seed(data: DepthWeightsData, side: Side) -> dict[object, float]:
    arm, panel, name = side
    found = data.shown.get(arm)
    if found is None:
        return {}
    keys: Sequence[object] = [run.seeds for run in found.runs] or [None]
    return dict(zip(keys, found.values(panel, name), strict=True))


def _name(side: Side, unlike: Side | None = None) -> str:
    arm, panel, _ = side
    parts = [arm] if unlike is None or unlike[0] != arm else []
    if unlike is None or unlike[1] != panel:
        parts.append(PANELS[panel])
    return " ".join(parts)
