"""What an arm gains against what it costs: loss minus PreNorm beside step time, memory, I/O or parameters.

A point is on the front if no other point is as low in one and lower in the other. Only points that can be
compared take part: arms with all of PreNorm's seeds. A difference of one seed against a mean of three would
otherwise win or lose by which seed it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.ablation import BASELINE, AblationTable, ArmRow


@dataclass(frozen=True)
class Cost:
    """What an arm costs, with quartiles where it was measured repeatedly (else NaN)."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class CostAxis:
    """One kind of cost: ``key`` in csv columns, ``label`` on the axis with its unit, arm -> cost.

    absent: what to do, or why, where there is no cost at all.  form: of a value in tables.  scale: of the
    axis, linear, log, or symlog (linear up to 1000) where zero is a value.
    """

    key: str
    header: str
    label: str
    costs: Mapping[str, Cost]
    absent: str
    form: str = ".2f"
    scale: str = "linear"


@dataclass(frozen=True)
class Point:
    """An arm on one axis: cost, loss minus PreNorm in nats per token with its interval (NaN where none)."""

    arm: str
    label: str
    cost: Cost
    gain: float
    low: float
    high: float
    comparable: bool
    on_front: bool = False


@dataclass(frozen=True)
class TradeOff:
    """The rows with their losses, and each kind of cost."""

    table: AblationTable
    axes: tuple[CostAxis, ...]

    def points(self, axis: CostAxis) -> list[Point]:
        """The arms that have both a loss and this cost, in row order, with the front marked."""
        baseline = self.table.row(BASELINE)
        found = []
        for row in self.table.rows:
            gain = self.gain(row)
            if gain is not None and row.spec.name in axis.costs:
                estimate, low, high = gain
                comparable = self.is_published or set(row.seeds) >= set(baseline.seeds)
                found.append(
                    Point(
                        row.spec.name,
                        row.spec.label,
                        axis.costs[row.spec.name],
                        estimate,
                        low,
                        high,
                        comparable,
                    )
                )
        front = pareto([(p.cost.value, p.gain) if p.comparable else None for p in found])
        return [
            Point(p.arm, p.label, p.cost, p.gain, p.low, p.high, p.comparable, on)
            for p, on in zip(found, front, strict=True)
        ]

    @property
    def is_published(self) -> bool:
        """Whether these are the paper's numbers."""
        return self.table.scale == "published"

    def gain(self, row: ArmRow) -> tuple[float, float, float] | None:
        """Loss minus PreNorm with its interval's ends (NaN where there is none); None without a result."""
        if row.spec.name == BASELINE:
            return (0.0, math.nan, math.nan) if self.is_published or row.done else None
        if row.to_prenorm is None:
            return None
        if self.is_published:
            return row.to_prenorm.paper, math.nan, math.nan
        ours = row.to_prenorm.ours
        return (ours.estimate, ours.low, ours.high) if ours else None


def pareto(points: Sequence[tuple[float, float] | None]) -> list[bool]:
    """Which of these pairs no other pair beats (as low in both, lower in one); None takes no part."""
    known = [point for point in points if point is not None]

    def beaten(point: tuple[float, float]) -> bool:
        return any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in known)

    return [point is not None and not beaten(point) for point in points]
