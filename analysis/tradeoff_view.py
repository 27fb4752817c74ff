"""The trade-off as text table and csv records."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.ablation import BASELINE
from analysis.number_text import interval_text, signed
from analysis.stats import Interval
from analysis.tables import EMPTY, Column, Table
from analysis.tradeoff import Cost, CostAxis, TradeOff


def tables(data: TradeOff, title: str, notes: Sequence[str]) -> list[Table]:
    """One row per arm: loss minus PreNorm, each cost, and the costs on whose front it stands."""
    gain = "minus PreNorm" if data.is_published else "minus PreNorm [95 %]"
    columns = [Column("label", "Arm", numeric=False)]
    columns += [] if data.is_published else [Column("n", "n")]
    columns += [Column("gain", gain), *(Column(axis.key, axis.header) for axis in data.axes)]
    columns.append(Column("front", "front", numeric=False))
    fronts = _fronts(data)
    rows = []
    for row in data.table.rows:
        cells = {"label": row.spec.label, "n": str(len(row.done)), "front": ", ".join(fronts[row.spec.name])}
        found = data.gain(row)
        if found and row.spec.name != BASELINE:
            cells["gain"] = _gain_text(found)
        elif not data.is_published and row.status != "done":
            cells["gain"] = row.status
        cells |= {axis.key: _cost_text(axis, axis.costs.get(row.spec.name)) for axis in data.axes}
        rows.append(cells)
    return [Table(title, columns, rows, notes)]


def records(data: TradeOff) -> list[dict[str, object]]:
    """One csv record per row, every digit kept; empty where a cost is unknown."""
    fronts = _fronts(data)
    found = []
    for row in data.table.rows:
        gain = data.gain(row)
        ours = row.to_prenorm.ours if row.to_prenorm else None
        record: dict[str, object] = {
            "arm": row.spec.name,
            "row": row.spec.label,
            "status": row.status,
            "seeds": " ".join(row.seeds),
            "minus_prenorm": gain[0] if gain else None,
            "minus_prenorm_low": _finite(gain[1]) if gain else None,
            "minus_prenorm_high": _finite(gain[2]) if gain else None,
            "minus_prenorm_interval": ours.kind if ours else None,
        }
        for axis in data.axes:
            cost = axis.costs.get(row.spec.name)
            record |= {
                axis.key: cost.value if cost else None,
                f"{axis.key}_lower_quartile": _finite(cost.low) if cost else None,
                f"{axis.key}_upper_quartile": _finite(cost.high) if cost else None,
                f"{axis.key}_front": axis.header in fronts[row.spec.name] if cost else None,
            }
        record["run_ids"] = " ".join(run.run_id for run in row.done)
        found.append(record)
    return found


def _fronts(data: TradeOff) -> dict[str, list[str]]:
    fronts: dict[str, list[str]] = {row.spec.name: [] for row in data.table.rows}
    for axis in data.axes:
        for point in data.points(axis):
            if point.on_front:
                fronts[point.arm].append(axis.header)
    return fronts


def _gain_text(gain: tuple[float, float, float]) -> str:
    return interval_text(Interval(*gain, "", 0)) if math.isfinite(gain[1]) else signed(gain[0])


def _cost_text(axis: CostAxis, cost: Cost | None) -> str:
    if cost is None:
        return EMPTY
    text = format(cost.value, axis.form)
    if math.isfinite(cost.low):
        text += f" [{format(cost.low, axis.form)}, {format(cost.high, axis.form)}]"
    return text


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
