"""Downstream accuracy of our checkpoints (beside Table 3): per task and arm, and paired against PreNorm.

An accuracy has Wilson's interval over items. A difference is paired: over seeds (t) from two seeds on, over
items (bootstrap) for one, with McNemar's exact p. *chance* is one over the number of choices; *constant* is
what the most frequent right answer would score if it were always given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from analysis import style
from analysis.ablation import BASELINE
from analysis.binomial import mcnemar, paired, wilson
from analysis.probes import Probed
from analysis.selection import RunRow
from analysis.stats import MIN_SEEDS, Interval, seed_interval
from analysis.tables import Column, Table
from repro.errors import DataError


@dataclass(frozen=True)
class Cell:
    """One task under one arm, proportions: pooled over seeds; interval over items of one run.

    to_prenorm: difference of `accuracy`, None for PreNorm.  p: McNemar's, one seed only.
    """

    task: str
    arm: str
    seeds: tuple[str, ...]
    items: int
    accuracy: float
    low: float
    high: float
    accuracy_raw: float
    chance: float
    constant: float
    truncated: float
    to_prenorm: Interval | None
    p: float | None


@dataclass(frozen=True)
class Downstream:
    """All cells of a scale, tasks in recorded order."""

    scale: str
    cells: tuple[Cell, ...]
    runs: tuple[RunRow, ...]
    notes: tuple[str, ...]

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return list(dict.fromkeys(cell.task for cell in self.cells))

    @property
    def arms(self) -> list[str]:
        """Names of the arms."""
        return list(dict.fromkeys(cell.arm for cell in self.cells))


def downstream(scale: str, found: Sequence[Probed], arms: Sequence[str], notes: Sequence[str]) -> Downstream:
    """The cells from the records; a ``DataError`` where two runs answered different items."""
    settings = {str(record["settings"]) for _, record in found}
    if len(settings) > 1:
        raise DataError(
            f"downstream.npz of scale {scale} were made with {' and '.join(sorted(settings))}: "
            f"python -m repro.probe downstream scale={scale} with one setting"
        )
    tasks = list(dict.fromkeys(str(t) for _, record in found for t in record["task"]))
    cells = []
    for task in tasks:
        for arm in arms:
            own = [
                (run, record) for run, record in found if run.arm == arm and (record["task"] == task).any()
            ]
            if own:
                cells.append(_cell(task, arm, own, [pair for pair in found if pair[0].arm == BASELINE]))
    return Downstream(scale, tuple(cells), tuple(run for run, _ in found), tuple(notes))


def _cell(task: str, arm: str, own: Sequence[Probed], baseline: Sequence[Probed]) -> Cell:
    def of(record: dict[str, np.ndarray], name: str) -> np.ndarray:
        return record[name][record["task"] == task]

    first = own[0][1]
    n = len(of(first, "correct"))
    accuracies = [float(of(record, "correct").mean()) for _, record in own]
    low, high = wilson(round(float(np.mean(accuracies)) * n), n)
    choices = of(first, "num_choices")
    pairs = []
    for run, record in own if arm != BASELINE else ():
        for other, reference in baseline:
            if other.seeds == run.seeds:
                if not np.array_equal(of(record, "key"), of(reference, "key")):
                    raise DataError(
                        f"runs {run.run_id} and {other.run_id} answered different items of {task}"
                    )
                pairs.append((of(record, "correct"), of(reference, "correct")))
    contrast = p = None
    if len(pairs) > 1:
        contrast = seed_interval([float(a.mean() - b.mean()) for a, b in pairs])
    elif pairs:
        contrast, p = paired(*pairs[0]), mcnemar(*pairs[0])
    counts = np.unique(of(first, "answer"), return_counts=True)[1]
    return Cell(
        task,
        arm,
        tuple(run.seed_label for run, _ in own),
        n,
        float(np.mean(accuracies)),
        low,
        high,
        float(np.mean([of(record, "correct_raw").mean() for _, record in own])),
        float(np.where(choices > 1, 1 / choices, 0).mean()),
        float(counts.max() / n),
        float(of(first, "truncated").mean()),
        contrast,
        p,
    )


def records(data: Downstream) -> list[dict[str, object]]:
    """One csv row per task and arm."""
    return [
        {
            "scale": data.scale,
            "task": cell.task,
            "model": cell.arm,
            "seeds": ";".join(cell.seeds),
            "items": cell.items,
            "accuracy": cell.accuracy,
            "wilson_low": cell.low,
            "wilson_high": cell.high,
            "accuracy_not_normalised": cell.accuracy_raw,
            "chance": cell.chance,
            "constant_answer": cell.constant,
            "truncated": cell.truncated,
            "minus_prenorm": cell.to_prenorm.estimate if cell.to_prenorm else None,
            "low": cell.to_prenorm.low if cell.to_prenorm else None,
            "high": cell.to_prenorm.high if cell.to_prenorm else None,
            "interval_over": cell.to_prenorm.kind if cell.to_prenorm else None,
            "mcnemar_p": cell.p,
        }
        for cell in data.cells
    ]


def table(data: Downstream, title: str) -> Table:
    """Task by arm with intervals, in percent."""
    rows = []
    for cell in data.cells:
        row = {
            "task": cell.task,
            "arm": cell.arm,
            "seeds": ", ".join(cell.seeds),
            "items": f"{cell.items:,}",
            "accuracy": f"{100 * cell.accuracy:.1f} [{100 * cell.low:.1f}, {100 * cell.high:.1f}]",
            "raw": f"{100 * cell.accuracy_raw:.1f}",
            "chance": f"{100 * cell.chance:.1f}",
            "constant": f"{100 * cell.constant:.1f}",
            "cut": f"{100 * cell.truncated:.0f}",
        }
        if (d := cell.to_prenorm) is not None:
            values = (f"{100 * x:+.1f}".replace("-", "−") for x in (d.estimate, d.low, d.high))
            row["difference"] = "{} [{}, {}]".format(*values)
        if cell.p is not None:
            row["p"] = f"{cell.p:.2f}"
        rows.append(row)
    over = sorted({c.to_prenorm.kind for c in data.cells if c.to_prenorm})
    above = sorted({c.task for c in data.cells if c.low > max(c.chance, c.constant)})
    notes = [
        f"Scale: {data.scale}. Accuracy in percent with Wilson's 95 % interval over the items of one run "
        "(mean "
        "over seeds); by log-probability per byte, raw: not divided. A single-choice task (chance 0) is "
        "right "
        "where every token is the most likely one. cut: items whose context did not fit and lost its "
        "beginning.",
        "constant: always the most frequent right answer. Above both chance and constant with the whole "
        f"interval: {', '.join(above) or 'no task'}.",
        f"minus PreNorm: paired, 95 % over {' and '.join(over) or 'nothing'}; p: McNemar, exact, one seed. "
        f"Under {MIN_SEEDS} seeds there is no verdict, and no correction for the number of tasks is made. "
        "Subsets: no number compares with a leaderboard or with Table 3's model.",
        *data.notes,
    ]
    columns = [
        Column("task", "task", numeric=False),
        Column("arm", "arm", numeric=False),
        Column("seeds", "seeds"),
        Column("items", "items"),
        Column("accuracy", "accuracy [95 %]"),
        Column("raw", "raw"),
        Column("chance", "chance"),
        Column("constant", "constant"),
        Column("cut", "cut"),
        Column("difference", "minus PreNorm [95 %]"),
        Column("p", "p"),
    ]
    return Table(title, columns, rows, notes)


def figure(data: Downstream) -> Figure:
    """Accuracy per task and arm, with the chance line and the constant answer."""
    marks, colors = ("o", "D", "s", "^"), (style.PRENORM, style.FULL, style.OURS, style.PURPLE)
    with style.styled():
        drawing, (axes,) = style.new_figure(8.2, 1.8 + 0.55 * len(data.tasks))
        for y, task in enumerate(data.tasks):
            cells = [cell for cell in data.cells if cell.task == task]
            for x, line, label in (
                (cells[0].chance, "-", "chance"),
                (cells[0].constant, ":", "always the most frequent answer"),
            ):
                axes.plot(
                    [100 * x] * 2, [y - 0.38, y + 0.38], line, color="black", label=label if y == 0 else ""
                )
            for cell in cells:
                k = data.arms.index(cell.arm)
                place = y + 0.2 * (k - (len(data.arms) - 1) / 2)
                axes.errorbar(
                    100 * cell.accuracy,
                    place,
                    xerr=[[100 * (cell.accuracy - cell.low)], [100 * (cell.high - cell.accuracy)]],
                    fmt=marks[k % 4],
                    color=colors[k % 4],
                    label=cell.arm if y == 0 else "",
                )
        axes.set_yticks(
            range(len(data.tasks)),
            [f"{t} ({next(c.items for c in data.cells if c.task == t):,})" for t in data.tasks],
        )
        axes.invert_yaxis()
        axes.set_xlim(left=min(0.0, math.floor(axes.get_xlim()[0])))
        axes.set_xlabel("accuracy (percent), Wilson's 95 % interval over items")
        seeds = sorted({seed for cell in data.cells for seed in cell.seeds})
        axes.set_title(f"Scale {data.scale}, seed {', '.join(seeds)}; number of items in brackets")
        drawing.legend(loc="lower center", ncols=5)
        drawing.tight_layout(rect=(0, 0.4 / drawing.get_figheight(), 1, 1))
        return drawing
