"""What came of starting AttnRes from a trained PreNorm run: loss before, just after, and after some steps.

A converted run and the continued PreNorm run of the same parent make a pair: the same weights, batches,
schedule. Runs are those of ``repro.convert``, at scale ``<scale>/convert``; what a conversion did at once is
in their ``convert.json``, the losses on the way in ``metrics.jsonl`` (the fixed subset of validation).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.ablation import BASELINE, ArmRow, ArmSpec, compare
from analysis.selection import RunRow
from analysis.stats import Interval, point, seed_interval
from repro.errors import DataError
from repro.runs.reading import read_json
from repro.runs.table import load_metrics

RECORD = "convert.json"
_OWN = ("start.run", "start.method", "model.eps_by_sources")  # what two runs of one comparison may differ in


@dataclass(frozen=True)
class Pair:
    """One converted run beside the continued PreNorm run of the same parent; None: not trained.

    before, after: validation loss of all documents at the conversion, nats per token.  deviation: of float64
    logits, relative to the largest.  curve, control_curve: step -> loss on the validation subset.
    """

    run: RunRow
    control: RunRow | None
    before: float
    after: float
    deviation: float
    curve: Mapping[int, float]
    control_curve: Mapping[int, float]


@dataclass(frozen=True)
class Row:
    """All seeds of one arm and method; the continued PreNorm run itself is a row too."""

    arm: str
    method: str
    label: str
    pairs: tuple[Pair, ...]

    @property
    def done(self) -> tuple[Pair, ...]:
        """The pairs whose converted run has its final loss."""
        return tuple(pair for pair in self.pairs if pair.run.status == "done")

    @property
    def seeds(self) -> tuple[str, ...]:
        """Seeds of the finished ones."""
        return tuple(pair.run.seed_label for pair in self.done)

    @property
    def status(self) -> str:
        """``done`` where a seed has a final loss, else what became of the first."""
        return "done" if self.done else self.pairs[0].run.status

    @property
    def jump(self) -> Interval:
        """Loss just after the conversion minus just before it; no interval for one seed."""
        return _over_seeds([pair.after - pair.before for pair in self.pairs])

    @property
    def deviation(self) -> float:
        """The largest over seeds."""
        return max(pair.deviation for pair in self.pairs)

    @property
    def before(self) -> float:
        """Mean over seeds."""
        return float(np.mean([pair.before for pair in self.pairs]))

    @property
    def loss(self) -> float | None:
        """Mean final loss over seeds."""
        return float(np.mean([pair.run.val_loss for pair in self.done])) if self.done else None

    @property
    def gain(self) -> Interval | None:
        """Final loss minus the continued PreNorm's; None for that row itself or without a finished pair.

        One seed: over validation documents alone (``documents``).
        """
        pairs = [p for p in self.done if p.control is not None and p.control.status == "done"]
        if self.arm == BASELINE or not pairs:
            return None
        spec = ArmSpec(self.arm, self.label, BASELINE, 0.0)
        own = ArmRow(spec, "done", tuple(p.run for p in pairs), None, None)
        base = ArmRow(ArmSpec(BASELINE, "", None, 0.0), "done", tuple(p.control for p in pairs if p.control),
                      None, None)  # fmt: skip
        return compare(own, base).ours

    def differences(self, seed: int) -> dict[int, float]:
        """Step -> loss minus the continued PreNorm's on the subset, of one pair."""
        pair = self.pairs[seed]
        return {k: v - pair.control_curve[k] for k, v in pair.curve.items() if k in pair.control_curve}


@dataclass(frozen=True)
class ConvertData:
    """All rows at one scale, continued PreNorm first; steps: of adaptation, parent_steps: before it."""

    scale: str
    rows: tuple[Row, ...]
    steps: int
    parent_steps: int
    notes: tuple[str, ...] = ()

    @property
    def num_seeds(self) -> int:
        """Parents behind the continued PreNorm row."""
        return max((len(row.done) for row in self.rows), default=0)

    @property
    def runs(self) -> list[RunRow]:
        """Every run of a row, controls once."""
        return [pair.run for row in self.rows for pair in row.pairs]

    def row(self, arm: str, method: str) -> Row | None:
        """The row of an arm and method."""
        return next((row for row in self.rows if (row.arm, row.method) == (arm, method)), None)


def convert_data(
    scale: str, runs: Sequence[RunRow], labels: Mapping[str, str], notes: Sequence[str], setting: str | None
) -> ConvertData:
    """Rows from the runs of one comparison: same steps, optimizer, schedule, corpus and parent's setting.

    setting: prefix of a setting id of one of its runs; without it the comparison with most runs, then steps.
    """
    groups: dict[str, list[RunRow]] = {}
    for run in runs:
        groups.setdefault(_comparison(run), []).append(run)
    if setting is not None:
        groups = {k: g for k, g in groups.items() if any(r.setting_id.startswith(setting) for r in g)}
        if len(groups) != 1:
            known = ", ".join(sorted({run.setting_id for run in runs}))
            raise DataError(f"--setting {setting}: must begin one of {known}")
    chosen = max(groups.values(), key=lambda group: (len(group), _steps(group[0]), group[0].setting_id))
    if left := sum(map(len, groups.values())) - len(chosen):
        notes = [*notes, f"{left} converted runs of other steps, rates or corpora left out."]
    controls = {_parent(run): run for run in chosen if run.arm == BASELINE}
    by_row: dict[tuple[str, str], list[Pair]] = {}
    for run in sorted(chosen, key=lambda run: run.seeds):
        key = run.arm, str(run.setting["start.method"])
        pair = _pair(run, controls.get(_parent(run)))
        if pair is None:
            notes = [*notes, f"{run.arm}: run {run.run_id} left out (no {RECORD} yet)."]
        else:
            by_row.setdefault(key, []).append(pair)
    order = sorted(by_row, key=lambda key: (key[0] != BASELINE, key))
    rows = tuple(Row(*key, labels.get(key[0], key[0]), tuple(by_row[key])) for key in order)
    return ConvertData(scale, rows, _steps(chosen[0]), int(chosen[0].setting["start.step"]), tuple(notes))


def _pair(run: RunRow, control: RunRow | None) -> Pair | None:
    try:
        record: dict[str, Any] = read_json(run.directory / RECORD)
        before, after = float(record["val_loss_before"]), float(record["val_loss_after"])
        deviation = float(record["logit_deviation"])
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{run.directory / RECORD}: not the record of a conversion ({error})") from None
    return Pair(run, control, before, after, deviation, _curve(run), _curve(control) if control else {})


def _curve(run: RunRow) -> dict[int, float]:
    """Step -> validation loss on the subset, nats per token."""
    try:
        rows = load_metrics(run.directory)
    except DataError:
        return {}
    rows = rows[rows["kind"] == "val"] if "kind" in rows else rows[:0]
    return {int(step): float(loss) for step, loss in zip(rows["step"], rows["loss"], strict=True)}


def _parent(run: RunRow) -> str:
    return str(run.setting.get("start.run"))


def _steps(run: RunRow) -> int:
    budget = run.config["budget"]
    return int(budget["tokens"]) // (int(budget["batch_size"]) * int(budget["context"]))


def _comparison(run: RunRow) -> str:
    return json.dumps({k: v for k, v in run.setting.items() if k not in _OWN}, sort_keys=True)


def _over_seeds(values: Sequence[float]) -> Interval:
    return seed_interval(values) if len(values) > 1 else point(values[0])
