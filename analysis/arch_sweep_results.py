"""What became of the cells of Fig. 7: loss of PreNorm and AttnRes, gain, and where each is lowest."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analysis.arch_sweep import SHAPE_KEYS, Cell, Plan
from analysis.selection import RunRow, departures
from analysis.stats import Interval, point, seed_interval

PRENORM = "prenorm"
Seeds = tuple[int, int, int]


@dataclass(frozen=True)
class Sweep:
    """Losses (nats per token) by arm and cell, one per seed (the paper's have the key None).

    Cells without a result are absent.

    attnres: name of the arm beside PreNorm.  plans: of the cells at a trained scale.  runs: those behind the
    losses and those that have none.  states: what became of the latest run of an arm and cell.
    """

    scale: str
    attnres: str
    cells: tuple[Cell, ...]
    losses: Mapping[tuple[str, Cell], Mapping[Any, float]]
    plans: tuple[Plan, ...] = ()
    runs: tuple[RunRow, ...] = ()
    notes: tuple[str, ...] = ()
    states: Mapping[tuple[str, Cell], str] = field(default_factory=dict)

    def loss(self, arm: str, cell: Cell) -> float | None:
        """Mean over seeds (those that every finished cell has), None where no run is done."""
        found = self.losses.get((arm, cell))
        return float(np.mean(list(found.values()))) if found else None

    def gain(self, cell: Cell) -> Interval | None:
        """PreNorm's loss minus AttnRes's over the seeds that both have; positive where AttnRes is better."""
        base, own = (self.losses.get((arm, cell), {}) for arm in (PRENORM, self.attnres))
        gains = [base[key] - own[key] for key in base if key in own]
        if len(gains) > 1:
            return seed_interval(gains)
        return point(gains[0]) if gains else None

    def optimum(self, arm: str) -> Cell | None:
        """Cell of the lowest loss; None until every cell has one, since a missing one might be it."""
        losses = [self.loss(arm, cell) for cell in self.cells]
        if any(loss is None for loss in losses):
            return None
        return self.cells[int(np.argmin(np.array(losses, dtype=np.float64)))]

    def optima_by_seed(self, arm: str) -> dict[Any, Cell]:
        """The same for each seed that has all cells."""
        per_cell = [self.losses.get((arm, cell), {}) for cell in self.cells]
        shared = set(per_cell[0]).intersection(*per_cell[1:])
        return {key: self.cells[int(np.argmin([found[key] for found in per_cell]))] for key in shared}

    @property
    def seeds(self) -> list[str]:
        """Labels of the seeds behind the losses."""
        return sorted({run.seed_label for run in self.runs if run.status == "done"})


def read_published(path: Path, attnres: str) -> Sweep:
    """The paper's heatmaps: csv of panel, d_model_over_blocks, heads_over_blocks, loss."""
    losses: dict[tuple[str, Cell], dict[Any, float]] = {}
    cells: dict[Cell, None] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            cell = Cell(float(row["d_model_over_blocks"]), float(row["heads_over_blocks"]))
            cells[cell] = None
            arm = PRENORM if row["panel"] == PRENORM else attnres
            losses[arm, cell] = {None: float(row["loss"])}
    return Sweep("published", attnres, tuple(cells), losses)


def sweep(
    scale: str,
    attnres: str,
    plans: Sequence[Plan],
    runs: Sequence[RunRow],
    problems: Sequence[str] = (),
) -> Sweep:
    """The runs that have a cell's shape, all under one setting: the one with most cells, then closest to the
    scale's file. Runs of other shapes (other tables) are ignored."""
    by_shape = {tuple(getattr(p.shape, name) for name in SHAPE_KEYS.values()): p.cell for p in plans}
    groups: dict[str, list[tuple[Cell, RunRow]]] = {}
    for run in runs:
        cell = by_shape.get(tuple(run.setting.get(key) for key in SHAPE_KEYS))
        if cell is not None and run.arm in (PRENORM, attnres):
            rest = {key: value for key, value in run.setting.items() if key not in SHAPE_KEYS}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append((cell, run))
    if not groups:
        return Sweep(scale, attnres, tuple(p.cell for p in plans), {}, tuple(plans))

    def rank(group: Sequence[tuple[Cell, RunRow]]) -> tuple[int, int, int]:
        places = len({(cell, run.arm) for cell, run in group})
        return -places, len(set(departures(group[0][1], scale)) - set(SHAPE_KEYS)), -len(group)

    ranked = sorted(groups.values(), key=rank)
    losses: dict[tuple[str, Cell], dict[Any, float]] = {}
    states: dict[tuple[str, Cell], str] = {}
    for cell, run in ranked[0]:
        states[run.arm, cell] = run.status
        if run.status == "done":
            losses.setdefault((run.arm, cell), {})[run.seeds] = run.val_loss
    shared = set.intersection(*(set(found) for found in losses.values())) if losses else set()
    dropped = sum(len(set(found) - shared) for found in losses.values()) if shared else 0
    if dropped:  # a mean over three seeds beside one seed would be a difference of seeds, not of shapes
        problems = (*problems, f"{dropped} runs with seeds that not every cell has are left out.")
        losses = {place: {key: found[key] for key in shared} for place, found in losses.items()}
    used = [run for _, run in ranked[0] if not dropped or run.status != "done" or run.seeds in shared]
    others = sum(map(len, ranked[1:]))
    left = (f"{others} runs of the same shapes under other settings left out.",) if others else ()
    return Sweep(
        scale,
        attnres,
        tuple(p.cell for p in plans),
        losses,
        tuple(plans),
        tuple(used),
        (*problems, *left),
        states,
    )
