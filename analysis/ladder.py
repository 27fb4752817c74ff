"""A ladder: sizes by arms, each cell a loss and its compute; from the paper's Table 2 or from runs here.

Shapes: K arms (the baseline first), n sizes, R seeds.  Of runs, a size is one of
``conf/ladder/sizes/<scale>.yaml``, found by what it sets, so a run that was trained for another table is a
point too.  A size counts where every arm has a loss for the same seeds: otherwise it is shown, and is in no
fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.ablation import read_published
from analysis.compute_axis import PFLOPS_DAY, TFLOP, paper_account, six_nd
from analysis.grid_runs import runs_by_place, table_of_scale
from analysis.scaling import Array
from analysis.selection import RunRow
from repro.errors import DataError
from repro.runs.reading import read_json

# What a size sets -> the config key.
KEYS = {
    "width": "model.width",
    "num_transformer_blocks": "model.num_transformer_blocks",
    "num_heads": "model.num_heads",
    "mlp_width": "model.mlp_width",
    "tokens": "budget.tokens",
    "batch_size": "budget.batch_size",
    "lr": "optim.lr",
}


@dataclass(frozen=True)
class Size:
    """One row: its name, parameters without embeddings (of the baseline), tokens, shape."""

    name: str
    parameters: float
    tokens: float
    num_transformer_blocks: int
    width: int
    heads: int
    mlp_width: int
    lr: float


@dataclass(frozen=True)
class Ladder:
    """losses: [K, n], mean over seeds, NaN where there is none; compute: axis -> [K, n], in ``unit``.

    by_seed: [R, K, n] over the seeds that all arms share, None for published numbers; status: [K][n],
    ``done``, ``published`` or what became of the cell; runs: those behind the losses.
    """

    scale: str
    unit: str
    arms: tuple[str, ...]
    labels: tuple[str, ...]
    sizes: tuple[Size, ...]
    losses: Array
    compute: Mapping[str, Array]
    status: tuple[tuple[str, ...], ...]
    by_seed: Array | None = None
    seeds: tuple[str, ...] = ()
    runs: tuple[RunRow, ...] = ()
    cells: Mapping[tuple[int, int], tuple[RunRow, ...]] | None = None
    notes: tuple[str, ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """The compute axes there are; the first is the one that is drawn."""
        return tuple(self.compute)

    @property
    def complete(self) -> npt.NDArray[np.bool_]:
        """Which sizes have a loss for every arm: [n], bool."""
        return np.asarray(np.isfinite(self.losses).all(0))

    def fitted(self) -> Ladder:
        """The complete sizes alone; a ``DataError`` where fewer than three are, which fit nothing."""
        keep = self.complete
        if keep.sum() < 3:
            raise DataError(
                f"scale {self.scale}: {int(keep.sum())} of {len(self.sizes)} sizes have a loss for all of "
                f"{', '.join(self.arms)} and the same seed; a curve needs three"
            )
        return replace(
            self,
            sizes=tuple(size for size, kept in zip(self.sizes, keep, strict=True) if kept),
            losses=self.losses[:, keep],
            compute={axis: values[:, keep] for axis, values in self.compute.items()},
            status=tuple(tuple(s for s, kept in zip(row, keep, strict=True) if kept) for row in self.status),
            by_seed=None if self.by_seed is None else self.by_seed[:, :, keep],
            cells=None if self.cells is None else _renumbered(self.cells, np.flatnonzero(keep)),
        )


def published_ladder(path: Path, columns: Mapping[str, tuple[str, str]]) -> Ladder:
    """Table 2; columns: csv column -> (arm, label), the baseline first.  Compute in PFLOP/s-days."""
    rows = read_published(path)
    n, d, blocks, heads = (
        np.array([float(row[name]) for row in rows])
        for name in ("active_params_M", "tokens_B", "num_transformer_blocks", "heads")
    )
    n, d = n * 1e6, d * 1e9
    axes = {
        "digitised": np.array([float(row["pflops_days_digitised"]) for row in rows]),
        "6nd": six_nd(n, d) / PFLOPS_DAY,
        "account": paper_account(n, d, blocks, heads) / PFLOPS_DAY,
    }
    sizes = tuple(
        Size(
            f"{row['active_params_M']}M", n[i], d[i], int(row["num_transformer_blocks"]),
            int(row["d_model"]), int(row["heads"]), int(row["d_ff"]), float(row["lr"]),
        )
        for i, row in enumerate(rows)
    )  # fmt: skip
    return Ladder(
        scale="published",
        unit="PFLOP/s-days",
        arms=tuple(arm for arm, _ in columns.values()),
        labels=tuple(label for _, label in columns.values()),
        sizes=sizes,
        losses=np.array([[float(row[column]) for row in rows] for column in columns]),
        compute={axis: np.tile(values, (len(columns), 1)) for axis, values in axes.items()},
        status=(("published",) * len(rows),) * len(columns),
    )


def ladder_of_runs(
    scale: str, labels: Mapping[str, str], runs: Sequence[RunRow], problems: Sequence[str] = ()
) -> Ladder:
    """The runs of ``conf/experiment/table2.yaml``; labels: arm -> text, baseline first.  Compute in TFLOP.

    problems: notes on runs that could not be read.
    """
    wanted = table_of_scale("ladder/sizes", scale)
    arms = tuple(labels)
    places = {name: {key: row[what] for what, key in KEYS.items()} for name, row in wanted.items()}
    per_size, notes = runs_by_place("table2", scale, places, [run for run in runs if run.arm in arms])
    found = {
        (k, i): [run for run in per_size.get(name, ()) if run.arm == arm]
        for k, arm in enumerate(arms)
        for i, name in enumerate(wanted)
    }
    shared = _shared_seeds(found)
    cells = {
        place: tuple(
            sorted((r for r in cell if r.status == "done" and r.seeds in shared), key=lambda r: r.seeds)
        )
        for place, cell in found.items()
    }
    shape = (len(arms), len(wanted))
    losses, account, nd = (np.full(shape, np.nan) for _ in range(3))
    by_seed = np.full((len(shared), *shape), np.nan)
    for (k, i), cell in cells.items():
        for run in found[k, i]:
            parameters, flops = recorded_account(run)
            tokens = float(run.setting["budget.tokens"])
            nd[k, i], account[k, i] = six_nd(parameters, tokens) / TFLOP, flops * tokens / TFLOP
        if len(cell) == len(shared):
            by_seed[:, k, i] = [run.val_loss for run in cell]
            losses[k, i] = np.mean(by_seed[:, k, i]) if shared else np.nan
    used = [run for cell in cells.values() for run in cell]
    dropped = sum(run.status == "done" for cell in found.values() for run in cell) - len(used)
    if dropped:
        notes.append(f"{dropped} runs with seeds that not every cell has are left out.")
    return Ladder(
        scale=scale,
        unit="TFLOP",
        arms=arms,
        labels=tuple(labels.values()),
        sizes=tuple(_size(name, row, found, i) for i, (name, row) in enumerate(wanted.items())),
        losses=losses,
        compute={"account": account, "6nd": nd},
        status=tuple(
            tuple(_status(found[k, i], cells[k, i]) for i in range(len(wanted))) for k in range(len(arms))
        ),
        by_seed=by_seed,
        seeds=tuple(dict.fromkeys(r.seed_label for r in sorted(used, key=lambda r: r.seeds))),
        runs=tuple(used),
        cells=cells,
        notes=(*problems, *notes),
    )


def _shared_seeds(found: Mapping[tuple[int, int], Sequence[RunRow]]) -> list[tuple[int, int, int]]:
    """Seeds that every cell with a finished run has."""
    sets = [{run.seeds for run in cell if run.status == "done"} for cell in found.values()]
    sets = [seeds for seeds in sets if seeds]
    return sorted(set.intersection(*sets)) if sets else []


def recorded_account(run: RunRow) -> tuple[float, float]:
    """Parameters without embedding and head, and training FLOPs per token; NaN where not recorded."""
    try:
        meta = read_json(run.directory / "meta.json")
        embeddings = 2 * int(run.config["model"]["vocab_size"]) * int(run.config["model"]["width"])
        return float(meta["parameters"]) - embeddings, float(meta["flops_per_token"])
    except (FileNotFoundError, KeyError, TypeError):
        return math.nan, math.nan


def _size(
    name: str, row: Mapping[str, Any], found: Mapping[tuple[int, int], Sequence[RunRow]], i: int
) -> Size:
    baseline = found[0, i]
    parameters = recorded_account(baseline[0])[0] if baseline else math.nan
    return Size(
        name, parameters, float(row["tokens"]), int(row["num_transformer_blocks"]), int(row["width"]),
        int(row["num_heads"]), int(row["mlp_width"]), float(row["lr"]),
    )  # fmt: skip


def _status(found: Sequence[RunRow], used: Sequence[RunRow]) -> str:
    if used:
        return "done"
    if not found:
        return "missing"
    return "other seeds" if any(run.status == "done" for run in found) else found[0].status


def _renumbered(
    cells: Mapping[tuple[int, int], tuple[RunRow, ...]], kept: npt.NDArray[np.intp]
) -> dict[tuple[int, int], tuple[RunRow, ...]]:
    places = {int(old): new for new, old in enumerate(kept)}
    return {(k, places[i]): cell for (k, i), cell in cells.items() if i in places}
