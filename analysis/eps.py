"""The eps confound (not in the paper): what the norms' eps does to AttnRes, untrained and trained.

Averaging n sources divides the mean square of the stream by up to n^2, so an eps that a sum does not notice
attenuates a mean. Deviations come from ``repro.train.eps_deviation``, losses from a sweep over
``model.norm_eps``.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.ablation import BASELINE
from analysis.choices import Choices
from analysis.stats import Interval, point, seed_interval
from analysis.tables import EMPTY, Column, Table
from repro.errors import DataError

KEY = "model.norm_eps"
Init = tuple[str, float]  # scheme, standard deviation of the embedding
COLUMNS = (
    "arm",
    "num_transformer_blocks",
    "init_scheme",
    "embedding_std",
    "norm_eps",
    "init_seed",
    "deviation",
)


@dataclass(frozen=True)
class Deviations:
    """Deviation from PreNorm at initialisation: (initialisation, arm, transformer blocks, eps) -> seeds."""

    values: Mapping[tuple[Init, str, int, float], tuple[float, ...]]

    def levels(self, place: int) -> list:  # type: ignore[type-arg]
        """What occurs at a place of the key, in the order of the file."""
        return list(dict.fromkeys(key[place] for key in self.values))

    def mean(self, init: Init, arm: str, depth: int, eps: float) -> float:
        """Geometric mean over seeds."""
        return float(np.exp(np.mean(np.log(self.values[init, arm, depth, eps]))))


@dataclass(frozen=True)
class EpsData:
    """Deviations, losses, or both; own_depth: transformer blocks of the scale's model."""

    scale: str
    deviations: Deviations | None
    losses: Choices | None
    own_depth: int | None
    notes: tuple[str, ...] = ()

    @property
    def eps(self) -> list[float]:
        """Values of eps that were trained, ascending."""
        return sorted(float(value[0]) for value in self.losses.values) if self.losses else []

    def loss(self, arm: str, eps: float) -> Interval | None:
        """Mean final loss over seeds, as a number without interval; None where it is not there."""
        found = self._by_seed(arm, eps)
        return point(float(np.mean(list(found.values())))) if found else None

    def gap(self, arm: str, eps: float) -> Interval | None:
        """Loss minus PreNorm's at the same eps, over the seeds that both have."""
        own, base = self._by_seed(arm, eps), self._by_seed(BASELINE, eps)
        return _over_seeds([own[key] - base[key] for key in own if key in base])

    def change(self, arm: str, eps: float) -> Interval | None:
        """Loss minus that of the same arm at the smallest eps, over shared seeds."""
        own, least = self._by_seed(arm, eps), self._by_seed(arm, self.eps[0])
        return _over_seeds([own[key] - least[key] for key in own if key in least])

    def _by_seed(self, arm: str, eps: float) -> dict[object, float]:
        runs = self.losses.runs if self.losses else ()
        return {
            run.seeds: run.val_loss
            for run in runs
            if run.arm == arm and run.status == "done" and float(run.setting[KEY]) == eps
        }


def _over_seeds(values: Sequence[float]) -> Interval | None:
    if len(values) > 1:
        return seed_interval(values)
    return point(values[0]) if values else None


def read_deviations(path: Path) -> Deviations | None:
    """The csv of ``repro.train.eps_deviation``; None where there is none, a ``DataError`` for another one."""
    if not path.exists():
        return None
    values: dict[tuple[Init, str, int, float], list[float]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            try:
                init = row["init_scheme"], float(row["embedding_std"])
                key = init, row["arm"], int(row["num_transformer_blocks"]), float(row["norm_eps"])
                values.setdefault(key, []).append(float(row["deviation"]))
            except (KeyError, ValueError) as error:
                raise DataError(f"{path}: not the columns {', '.join(COLUMNS)} ({error})") from None
    return Deviations({key: tuple(found) for key, found in values.items()})


def tables(data: EpsData, title: str, labels: Mapping[str, str]) -> list[Table]:
    """Deviations by depth and eps; final losses by eps, where they were trained."""
    found = []
    if data.deviations:
        found.append(_deviation_table(data, data.deviations, title, labels))
    if data.losses:
        found.append(_loss_table(data, title if not found else "Final loss against eps", labels))
    return found


def records(data: EpsData) -> list[dict[str, object]]:
    """Deviations, then losses: one record each."""
    rows: list[dict[str, object]] = []
    empty = dict.fromkeys(
        ("quantity", "model", "init_scheme", "embedding_std", "num_transformer_blocks", "norm_eps", "value",
         "low", "high", "seeds")
    )  # fmt: skip
    deviations = data.deviations or Deviations({})
    for (init, arm, depth, eps), found in deviations.values.items():
        row = {"quantity": "deviation", "model": arm, "init_scheme": init[0], "embedding_std": init[1]}
        row |= {"num_transformer_blocks": depth, "norm_eps": eps, "seeds": len(found)}
        row |= {"value": deviations.mean(init, arm, depth, eps), "low": min(found), "high": max(found)}
        rows.append({**empty, **row})
    for arm in data.losses.arms if data.losses else ():
        for eps in data.eps:
            for quantity, value in (("loss", data.loss(arm, eps)), ("minus prenorm", data.gap(arm, eps))):
                if value is None or (arm == BASELINE and quantity != "loss"):
                    continue
                bounded = value if math.isfinite(value.low) else None
                row = {"quantity": quantity, "model": arm, "norm_eps": eps, "value": value.estimate}
                row |= {"num_transformer_blocks": data.own_depth, "seeds": len(data._by_seed(arm, eps))}
                row |= {"low": bounded.low if bounded else None, "high": bounded.high if bounded else None}
                rows.append({**empty, **row})
    return rows


def _deviation_table(data: EpsData, found: Deviations, title: str, labels: Mapping[str, str]) -> Table:
    columns = [
        Column("init", "initialisation", numeric=False),
        Column("arm", "arm", numeric=False),
        Column("depth", "transformer blocks"),
        *(Column(f"{eps:g}", f"eps {eps_label(eps)}") for eps in found.levels(3)),
    ]
    rows = []
    for init in found.levels(0):
        for arm in found.levels(1):
            for depth in found.levels(2):
                row = {"init": init_label(init), "arm": labels[arm], "depth": str(depth)}
                for eps in found.levels(3):
                    if (init, arm, depth, eps) in found.values:
                        row[f"{eps:g}"] = f"{found.mean(init, arm, depth, eps):.1e}"
                rows.append(row)
    seeds = max(len(values) for values in found.values.values())
    widest = max(max(values) / min(values) for values in found.values.values())
    note = (
        f"Scale {data.scale}; deviation of an untrained model's logits from PreNorm's at the same eps, in "
        f"standard deviations of PreNorm's logits, float64; geometric mean over {seeds} initialisation "
        f"seeds, which differ by a factor of at most {widest:.2g}. Not in the paper, which states no eps."
    )
    return Table(f"{title}: deviation from PreNorm at initialisation", columns, rows, [note])


def _loss_table(data: EpsData, title: str, labels: Mapping[str, str]) -> Table:
    assert data.losses is not None
    columns = [Column("eps", "eps")]
    for arm in data.losses.arms:
        columns.append(Column(arm, labels[arm]))
        if arm != BASELINE:
            columns.append(Column(f"{arm} gap", "minus PreNorm"))
    rows = []
    for eps in data.eps:
        row = {"eps": eps_label(eps)}
        for arm in data.losses.arms:
            loss, gap = data.loss(arm, eps), data.gap(arm, eps)
            diverged = data.losses.losses.get(((eps,), arm), 0.0) is None
            row[arm] = f"{loss.estimate:.3f}" if loss else "diverged" if diverged else EMPTY
            if arm != BASELINE and gap:
                row[f"{arm} gap"] = interval_text(gap)
        rows.append(row)
    seeds = ", ".join(dict.fromkeys(run.seed_label for run in data.losses.runs))
    notes = [
        f"Scale {data.scale}, seed {seeds}; validation loss in nats per token at the end of training. Under "
        "three seeds a difference is a number without a verdict.",
        *data.notes,
    ]
    return Table(title, columns, rows, notes)


def eps_label(eps: float) -> str:
    """As 1e-5."""
    return f"{eps:.0e}".replace("e-0", "e-")


def init_label(init: Init) -> str:
    """As shown: scheme and standard deviation of the embedding."""
    return f"{init[0]}, embedding std {init[1]:g}"


def interval_text(value: Interval) -> str:
    """A difference with its 95 % interval, where it has one."""
    bounds = f" [{value.low:+.3f}, {value.high:+.3f}]" if math.isfinite(value.low) else ""
    return f"{value.estimate:+.3f}{bounds}"
