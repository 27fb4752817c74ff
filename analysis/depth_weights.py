"""Depth weights (Fig. 8): which sources each sublayer reads, and the numbers behind what the paper says.

A model's weights are a matrix [L + 1 reads, C columns], NaN where a read has no such source: row l is the
read of sublayer l (even: attention, odd: MLP, two per transformer block), row L the output read; column 0 is
the embedding, column c a sublayer output (Full) or a block sum with its partial sum (Block). Weights are
means over tokens. Tables are in ``depth_weights_table``, the picture is in ``depth_weights_figure``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.selection import RunRow
from analysis.stats import Interval, point, seed_interval
from repro.errors import DataError
from repro.runs.table import load_arrays

PRE_ATTENTION, PRE_MLP = 0, 1  # parity of the sublayer that reads
PANELS = {PRE_ATTENTION: "pre-attention", PRE_MLP: "pre-MLP"}


@dataclass(frozen=True)
class DepthWeights:
    """One model. entropy: mean over tokens of each read's entropy in nats, [L + 1]; norms: RMS of what column
    sums hold after each sublayer (running sum of the open block, or the output itself in Full), [L]."""

    weights: np.ndarray
    entropy: np.ndarray | None = None
    norms: np.ndarray | None = None

    @property
    def num_sublayers(self) -> int:
        """L."""
        return len(self.weights) - 1

    @cached_property
    def starts(self) -> list[int]:
        """First sublayer whose output each column holds: the one before the first read that sees it; -1 for
        the embedding. One entry more, L, closes the last column."""
        seen = np.isfinite(self.weights)
        firsts = [int(seen[:, c].argmax()) - 1 for c in range(1, self.weights.shape[1])]
        return [-1, *firsts, self.num_sublayers]

    def columns(self, read: int) -> np.ndarray:
        """Columns that have a source in this read, ascending; the last is the immediate predecessor."""
        return np.flatnonzero(np.isfinite(self.weights[read]))

    def last_sublayer(self, read: int, column: int) -> int:
        """The newest sublayer output that the source holds (-1: none, the embedding)."""
        return -1 if column == 0 else min(self.starts[column + 1], read) - 1

    def shares(self, read: int) -> np.ndarray:
        """Weights of the available columns, divided by their sum (digitised rows sum to one only nearly)."""
        row = self.weights[read, self.columns(read)]
        return row / row.sum()

    @property
    def is_full(self) -> bool:
        """Whether every column is one sublayer output, so that it is an attention's or an MLP's."""
        return self.starts[1:-1] == list(range(self.weights.shape[1] - 1))

    def rows(self, panel: int) -> list[int]:
        """Reads of a panel, transformer block 1 first."""
        return list(range(panel, self.num_sublayers, 2))


def statistics(model: DepthWeights, panel: int) -> dict[str, float]:
    """The numbers of one panel; NaN where a quantity does not exist.

    Shares of rows count every row (the first pre-attention row has one source and counts). All means are over
    the rows of transformer blocks 2 and later, of weights that sum to one in each row.  ``previous block``:
    the row's largest source holds an output of the preceding transformer block or of its own.  ``entropy``:
    of the mean weights, over that of uniform weights; ``token entropy``: mean over tokens instead.
    ``contribution``: weight times RMS of the source, embedding left out, since its RMS is not recorded.
    """
    rows = model.rows(panel)
    later = rows[1:]
    largest = [int(model.columns(l)[model.shares(l).argmax()]) for l in rows]
    pairs = list(zip(rows, largest, strict=True))
    result = {
        "predecessor": float(np.mean([c == model.columns(l)[-1] for l, c in pairs])),
        "previous block": float(np.mean([model.last_sublayer(l, c) >= 2 * (l // 2) - 2 for l, c in pairs])),
        "embedding": _mean(model.shares(l)[0] for l in later),
        "last source": _mean(model.shares(l)[-1] for l in later),
        "largest": _mean(model.shares(l).max() for l in later),
        "attention": math.nan,
        "mlp": math.nan,
        "entropy": _mean(_entropy(model.shares(l)) / math.log(len(model.columns(l))) for l in later),
        "token entropy": math.nan,
        "contribution predecessor": math.nan,
        "contribution attention": math.nan,
    }
    if model.is_full:
        result["attention"] = _mean(_of_parity(model, l, model.shares(l), 0) for l in later)
        result["mlp"] = _mean(_of_parity(model, l, model.shares(l), 1) for l in later)
    if model.entropy is not None:
        result["token entropy"] = _mean(model.entropy[l] / math.log(len(model.columns(l))) for l in later)
    if model.norms is not None:
        parts = [contributions(model, l) for l in later]
        result["contribution predecessor"] = _mean(float(part.argmax() == len(part) - 1) for part in parts)
        if model.is_full:
            result["contribution attention"] = _mean(
                _of_parity(model, l, np.append(0.0, part), 0) for l, part in zip(later, parts, strict=True)
            )
    return result


def output_statistics(model: DepthWeights) -> dict[str, float]:
    """The same numbers of the output read, one row; NaN throughout where it is not known."""
    read = model.num_sublayers
    if not model.columns(read).size:
        return {}
    shares = model.shares(read)
    uniform = math.log(len(shares))
    return {
        "embedding": float(shares[0]),
        "last source": float(shares[-1]),
        "largest": float(shares.max()),
        "attention": _of_parity(model, read, shares, 0) if model.is_full else math.nan,
        "mlp": _of_parity(model, read, shares, 1) if model.is_full else math.nan,
        "entropy": _entropy(shares) / uniform,
        "token entropy": math.nan if model.entropy is None else float(model.entropy[read]) / uniform,
    }


def contributions(model: DepthWeights, read: int) -> np.ndarray:
    """Weight times RMS of each source but the embedding, divided by their sum."""
    assert model.norms is not None
    columns = [int(c) for c in model.columns(read) if c > 0]
    part = np.array([model.weights[read, c] * model.norms[model.last_sublayer(read, c)] for c in columns])
    return part / part.sum()


def sinks(model: DepthWeights, panel: int, count: int = 3) -> list[tuple[int, int, float]]:
    """Largest single weights that fall on neither the embedding nor the immediate predecessor.

    Transformer block (from 1), source column and weight, largest first; weights as recorded.
    """
    cells = [
        (l // 2 + 1, int(c), float(model.weights[l, c]))
        for l in model.rows(panel)
        for c in model.columns(l)[1:-1]
    ]
    return sorted(cells, key=lambda cell: -cell[2])[:count]


@dataclass(frozen=True)
class ArmWeights:
    """The models of one arm, one per seed, and the mean over them."""

    arm: str
    label: str
    models: tuple[DepthWeights, ...]
    runs: tuple[RunRow, ...] = ()

    @cached_property
    def mean(self) -> DepthWeights:
        """Weights averaged over seeds."""
        return DepthWeights(np.mean([m.weights for m in self.models], axis=0))

    @cached_property
    def spread(self) -> np.ndarray:
        """Standard deviation of each weight over seeds (n - 1), NaN for one seed."""
        stacked = np.stack([m.weights for m in self.models])
        return stacked.std(axis=0, ddof=1) if len(stacked) > 1 else np.full(stacked.shape[1:], np.nan)

    def values(self, panel: int | None, name: str) -> list[float]:
        """One number of each model (panel None: of the output read), NaN where it does not exist."""
        return [
            (output_statistics(m) if panel is None else statistics(m, panel)).get(name, math.nan)
            for m in self.models
        ]

    def statistic(self, panel: int | None, name: str) -> Interval | None:
        """The same with its interval over seeds; None where it does not exist."""
        found = self.values(panel, name)
        if not found or not np.isfinite(found).all():
            return None
        return seed_interval(found) if len(found) > 1 else point(found[0])


def read_runs(arm: str, label: str, runs: Sequence[RunRow]) -> ArmWeights:
    """The weights at the last snapshot of each finished run, averaged over depth heads."""
    done = [run for run in sorted(runs, key=lambda run: run.seeds) if run.status == "done"]
    models = []
    for run in done:
        arrays = load_arrays(run.directory, "depth_weights")
        try:
            weights, entropy = arrays["mean"][-1].mean(-1), arrays["entropy"][-1].mean(-1)
        except (KeyError, IndexError) as error:
            raise DataError(f"{run.directory}/depth_weights.npz: no mean and entropy ({error})") from None
        norms = load_arrays(run.directory, "depth_norms").get("stream_rms")
        usable = norms is not None and np.isfinite(norms[-1]).all()
        models.append(DepthWeights(weights, entropy, norms[-1] if norms is not None and usable else None))
    return ArmWeights(arm, label, tuple(models), tuple(done))


def read_published(arm: str, label: str, files: Mapping[int, Path]) -> ArmWeights:
    """The paper's digitised panels as one model without output read.

    files: panel -> csv of layer (transformer block, from 1), source and weight.
    """
    cells = []
    for panel, path in files.items():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                cells.append((2 * (int(row["layer"]) - 1) + panel, int(row["source"]), float(row["weight"])))
    weights = np.full((2 + max(l for l, _, _ in cells), 1 + max(c for _, c, _ in cells)), np.nan)
    for l, c, weight in cells:
        weights[l, c] = weight
    return ArmWeights(arm, label, (DepthWeights(weights),))


def _of_parity(model: DepthWeights, read: int, shares: np.ndarray, parity: int) -> float:
    columns = model.columns(read)
    return float(sum(w for c, w in zip(columns, shares, strict=True) if c > 0 and (c - 1) % 2 == parity))


def _entropy(shares: np.ndarray) -> float:
    positive = shares[shares > 0]
    return float(-(positive * np.log(positive)).sum())


def _mean(values: object) -> float:
    return float(np.mean(list(values)))  # type: ignore[call-overload]
