"""What was chosen under PreNorm before any arm was compared: initialisation and learning rate of a scale.

The paper tunes on its baseline and gives every variant the same settings. A sweep here is a grid of settings
that differ in a few config keys only; the best value is the one with the lowest PreNorm loss, and the gap of
an arm is shown at every value, since a badly chosen one flatters the alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.figure import Figure

from analysis import style
from analysis.ablation import BASELINE
from analysis.selection import RunRow, departures
from analysis.tables import Column, Table

Value = tuple[Any, ...]


@dataclass(frozen=True)
class Choices:
    """Mean loss over seeds for each value of the swept keys and each arm.

    keys: dotted config keys.  values: their values, ordered by PreNorm's loss.  losses: (value, arm) -> nats
    per token, None where the run diverged.  runs: all that stand behind it.  left_out: runs of the arms that
    differ in other keys.
    """

    scale: str
    keys: tuple[str, ...]
    arms: tuple[str, ...]
    values: tuple[Value, ...]
    losses: Mapping[tuple[Value, str], float | None]
    runs: tuple[RunRow, ...]
    left_out: int

    @property
    def best(self) -> Value | None:
        """The value with PreNorm's lowest loss."""
        finished = [v for v in self.values if self.losses.get((v, BASELINE)) is not None]
        return finished[0] if finished else None

    def gap(self, value: Value, arm: str) -> float | None:
        """Loss of an arm minus PreNorm's at the same value."""
        own, base = self.losses.get((value, arm)), self.losses.get((value, BASELINE))
        return None if own is None or base is None else own - base


def choices(scale: str, runs: Sequence[RunRow], keys: Sequence[str], arms: Sequence[str]) -> Choices:
    """Group finished runs by the swept keys; all other settings are those that most of them share.

    Where several sets of other settings were swept, the one closest to the scale's file is taken; where
    values were trained with different seeds, those they share.
    """
    finished = [run for run in runs if run.arm in arms and run.status in ("done", "diverged")]
    groups: dict[str, list[RunRow]] = {}
    for run in finished:
        rest = {key: value for key, value in run.setting.items() if key not in keys}
        groups.setdefault(json.dumps(rest, sort_keys=True), []).append(run)

    def rank(group: Sequence[RunRow]) -> tuple[int, int]:
        return -len({_value(run, keys) for run in group}), len(set(departures(group[0], scale)) - set(keys))

    chosen = _same_seeds(min(groups.values(), key=rank), keys) if groups else []
    cells: dict[tuple[Value, str], list[float | None]] = {}
    for run in chosen:
        loss = run.val_loss if run.status == "done" else None
        cells.setdefault((_value(run, keys), run.arm), []).append(loss)
    losses = {
        cell: None
        if any(loss is None for loss in found)
        else mean(loss for loss in found if loss is not None)
        for cell, found in cells.items()
    }
    swept = {value for value, _ in losses}

    def by_baseline(value: Value) -> tuple[bool, float, str]:
        loss = losses.get((value, BASELINE))
        return loss is None, loss or 0.0, str(value)

    return Choices(
        scale=scale,
        keys=tuple(keys),
        arms=tuple(arm for arm in arms if any(a == arm for _, a in losses)),
        values=tuple(sorted(swept, key=by_baseline)),
        losses=losses,
        runs=tuple(chosen),
        left_out=len(finished) - len(chosen),
    )


def _same_seeds(runs: Sequence[RunRow], keys: Sequence[str]) -> list[RunRow]:
    """The runs of those seeds that every value of an arm was trained with (all, where there is none).

    A value that was trained with more seeds (the one in use) would otherwise be compared over other draws.
    """
    kept: list[RunRow] = []
    for arm in sorted({run.arm for run in runs}):
        own = [run for run in runs if run.arm == arm]
        per_value: dict[Value, set[object]] = {}
        for run in own:
            per_value.setdefault(_value(run, keys), set()).add(run.seeds)
        common = set.intersection(*per_value.values())
        kept += [run for run in own if run.seeds in common] if common else own
    return kept


def _value(run: RunRow, keys: Sequence[str]) -> Value:
    return tuple(run.setting.get(key) for key in keys)


def records(data: Choices) -> list[dict[str, object]]:
    """One csv row per value: the swept keys, each arm's loss, and its gap to PreNorm."""
    rows: list[dict[str, object]] = []
    for value in data.values:
        row: dict[str, object] = dict(zip(data.keys, value, strict=True))
        for arm in data.arms:
            row[f"{arm}_loss"] = data.losses.get((value, arm))
            if arm != BASELINE:
                row[f"{arm}_minus_prenorm"] = data.gap(value, arm)
        row["chosen_under_prenorm"] = value == data.best
        rows.append(row)
    return rows


def table(data: Choices, title: str) -> Table:
    """The grid as text, best value first."""
    columns = [Column(key, key, numeric=False) for key in data.keys]
    for arm in data.arms:
        columns.append(Column(arm, arm))
        if arm != BASELINE:
            columns.append(Column(f"{arm}_gap", "minus PreNorm"))
    rows = []
    for value in data.values:
        row = {
            key: f"{v:g}" if isinstance(v, float) else str(v) for key, v in zip(data.keys, value, strict=True)
        }
        for arm in data.arms:
            if (value, arm) in data.losses:
                loss, gap = data.losses[value, arm], data.gap(value, arm)
                row[arm] = "diverged" if loss is None else f"{loss:.3f}"
                if gap is not None:
                    row[f"{arm}_gap"] = f"{gap:+.3f}"
        rows.append(row)
    seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in data.runs}))
    notes = [
        f"Scale: {data.scale}; seed {seeds}. Validation loss in nats per token; the first row is what "
        "PreNorm prefers. Arms are compared under one row only, the one in the scale's config.",
    ]
    if data.left_out:
        notes.append(f"{data.left_out} runs that differ in other settings are left out.")
    return Table(title, columns, rows, notes)


def figure(data: Choices) -> Figure:
    """One line of dots per value, one marker per arm; loss to the right."""
    marks = ("o", "s", "D", "^", "v")
    colors = (style.PRENORM, style.OURS, style.FULL, style.PURPLE, style.ORANGE)
    with style.styled():
        drawing, (axes,) = style.new_figure(7.6, 1.6 + 0.42 * max(1, len(data.values)))
        for arm, mark, color in zip(data.arms, marks, colors, strict=False):
            found = [(data.losses.get((value, arm)), y) for y, value in enumerate(data.values)]
            points = [(loss, y) for loss, y in found if loss is not None]
            axes.plot(*zip(*points, strict=True), mark, color=color, label=arm) if points else None
        seeds = ", ".join(str(seed) for seed in sorted({run.seed for run in data.runs}))
        axes.set_title(f"Scale {data.scale}, seed {seeds}; best PreNorm on top")
        axes.set_yticks(range(len(data.values)), [_label(value) for value in data.values])
        axes.invert_yaxis()
        axes.set_xlabel("validation loss (nats per token)")
        axes.set_ylabel(", ".join(key.removeprefix("model.") for key in data.keys))
        drawing.legend(loc="lower center", ncols=len(data.arms))
        drawing.tight_layout(rect=(0, 0.45 / drawing.get_figheight(), 1, 1))
        return drawing


def _label(value: Value) -> str:
    return ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in value)
