"""Training dynamics (Fig. 5): validation loss over training, magnitudes and gradients over depth.

The paper defines neither magnitude, so every norm that runs record is kept: of each sublayer's output, and of
the running tensor (the residual stream; in Block the partial sum of the open block, in Full the output
itself), as mean Euclidean norm of a token (``l2``), root mean square over all entries (``rms``) and mean
absolute value (``mean_abs``); gradients are those of the mean loss per token. The picture is in
``analysis.dynamics_figure``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from analysis.selection import RunRow
from analysis.stats import Interval, point, seed_interval
from repro.runs.table import load_arrays, load_metrics

NORMS = ("rms", "l2", "mean_abs")
TENSORS = ("stream", "output")
PAPER_BATCH = 8_388_608  # tokens per step of Fig. 5 (a): 1e12 tokens in 119,209 steps


@dataclass(frozen=True)
class Curve:
    """Validation loss (nats per token) against steps and tokens, each [K]."""

    steps: np.ndarray
    tokens: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True)
class ArmDynamics:
    """One arm: a curve and depth series per model (seed). series: name -> [L] values at the end of training.

    A name is tensor, ``_grad`` or nothing, and norm, as recorded (``stream_grad_rms``); the paper's are
    ``stream_paper`` and ``stream_grad_paper``, one value per transformer block.
    """

    arm: str
    label: str
    curves: tuple[Curve, ...]
    series: tuple[dict[str, np.ndarray], ...]
    runs: tuple[RunRow, ...] = field(default=())

    def mean_curve(self) -> Curve:
        """The curve averaged over seeds (same steps in each)."""
        first = self.curves[0]
        return Curve(first.steps, first.tokens, np.mean([curve.loss for curve in self.curves], axis=0))

    def blocks(self, name: str) -> np.ndarray:
        """A series after each transformer block, [models, L_b]: the value at its second sublayer."""
        found = [model[name] for model in self.series]
        return np.stack(found if name.endswith("_paper") else [values[1::2] for values in found])

    def shape(self, name: str, measure: str) -> Interval | None:
        """One of ``MEASURES`` of a series over transformer blocks, with its interval over seeds."""
        if not self.series or name not in self.series[0]:
            return None
        values = [MEASURES[measure](row) for row in self.blocks(name)]
        if not np.isfinite(values).all():
            return None
        return seed_interval(values) if len(values) > 1 else point(values[0])


def growth(values: np.ndarray) -> float:
    """Last over first value."""
    return float(values[-1] / values[0])


def spread(values: np.ndarray) -> float:
    """Largest over smallest value."""
    return float(values.max() / values.min())


def largest(values: np.ndarray) -> float:
    """The largest value."""
    return float(values.max())


def evenness(values: np.ndarray) -> float:
    """(sum x)^2 / (n sum x^2): 1 where all values are equal, 1 / n where one holds everything."""
    return float(values.sum() ** 2 / (len(values) * (values**2).sum()))


MEASURES = {"growth": growth, "spread": spread, "largest": largest, "evenness": evenness}


def resets(values: np.ndarray) -> list[int]:
    """Indices at which a series falls below its previous value: where a partial sum starts anew."""
    return [int(i) for i in np.flatnonzero(np.diff(values) < 0) + 1]


def period(values: np.ndarray) -> tuple[int, float] | None:
    """Commonest distance between neighbouring resets, and the share of distances that are so long.

    The start of the series counts as a reset.  None where no distance makes up more than half of them.
    """
    distances = np.diff([0, *resets(values)])
    lengths, counts = np.unique(distances, return_counts=True)
    if len(distances) < 2 or 2 * counts.max() <= len(distances):
        return None
    return int(lengths[counts.argmax()]), float(counts.max() / counts.sum())


def read_runs(arm: str, label: str, runs: Sequence[RunRow]) -> ArmDynamics:
    """Validation curves (the subset of each snapshot) and the last snapshot of all norms of finished runs."""
    done = [run for run in sorted(runs, key=lambda run: run.seeds) if run.status == "done"]
    curves, series = [], []
    for run in done:
        metrics = load_metrics(run.directory)
        rows = metrics[metrics["kind"] == "val"]
        curves.append(Curve(*(rows[key].to_numpy(dtype=np.float64) for key in ("step", "tokens", "loss"))))
        arrays = load_arrays(run.directory, "depth_norms")
        for norm in NORMS:
            # A partial sum that a run adds up for the record alone gets no gradient of its own. Its newest
            # output acts through it only, so the two gradients are the same.
            name, same = f"stream_grad_{norm}", f"output_grad_{norm}"
            if name in arrays and same in arrays:
                arrays[name] = np.where(np.isfinite(arrays[name]), arrays[name], arrays[same])
        series.append(
            {
                name: arrays[name][-1]
                for name in (f"{t}{g}_{n}" for t in TENSORS for g in ("", "_grad") for n in NORMS)
                if name in arrays and np.isfinite(arrays[name][-1]).all()
            }
        )
    return ArmDynamics(arm, label, tuple(curves), tuple(series), tuple(done))


def read_published(arm: str, label: str, losses: Path, depth: Path) -> ArmDynamics:
    """The digitised curves of one arm; losses: csv of Fig. 5 (a), depth: of (b) and (c)."""
    with losses.open(newline="") as file:
        rows = [(float(row["step_thousands"]), float(row[arm])) for row in csv.DictReader(file)]
    steps = 1000 * np.array([step for step, _ in rows])
    curve = Curve(steps, steps * PAPER_BATCH, np.array([loss for _, loss in rows]))
    with depth.open(newline="") as file:
        found = list(csv.DictReader(file))
    series = {
        "stream_paper": np.array([float(row[f"output_{arm}"]) for row in found]),
        "stream_grad_paper": 1e-5 * np.array([float(row[f"grad_{arm}_e-5"]) for row in found]),
    }
    return ArmDynamics(arm, label, (curve,), (series,))


def gap(arm: ArmDynamics, reference: ArmDynamics) -> tuple[float, float]:
    """Validation loss of an arm minus the reference's, nats: at the first and at the last common step.

    Seeds that both have; NaN where they share no step after initialisation.
    """
    a, b = arm.mean_curve(), reference.mean_curve()
    shared = [step for step in a.steps if step > 0 and step in b.steps]
    if not shared:
        return math.nan, math.nan

    def at(step: float) -> float:
        return float(a.loss[a.steps == step][0] - b.loss[b.steps == step][0])

    return at(shared[0]), at(shared[-1])
