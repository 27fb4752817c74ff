"""Which runs stand behind a table: one per arm and seeds, all trained under one setting.

A *setting* is everything in a run's identity but the arm and the seeds. A scale may hold several (a sweep of
learning rates, another corpus, an older ``semantics``); a table uses one and says what it left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from repro.errors import DataError
from repro.runs.identity import identity
from repro.runs.places import shown
from repro.runs.reading import read_config
from repro.runs.table import load_runs, load_val_losses

CONF = Path(__file__).resolve().parents[1] / "conf"
_PER_RUN = ("arm", "seed", "init_seed", "data_seed")


@dataclass(frozen=True)
class RunRow:
    """A row of ``repro.runs.table.load_runs`` with its config; losses are NaN unless the run is done."""

    run_id: str
    directory: Path
    arm: str
    seed: int
    data_seed: int
    init_seed: int
    fingerprint: str | None
    status: str
    val_loss: float
    val_bpb: float
    parameters: int | None
    diverged_at_step: int | None
    device: str | None
    precision: str | None
    compile: str | None
    config: Mapping[str, Any]

    @property
    def seeds(self) -> tuple[int, int, int]:
        """Seed, initialisation seed and data seed: what two runs must share to be a pair."""
        return self.seed, self.init_seed, self.data_seed

    @property
    def seed_label(self) -> str:
        """The seed, and in brackets those that were set apart from it; without spaces or commas."""
        apart = [
            f"{name}={value}"
            for name, value in (("init_seed", self.init_seed), ("data_seed", self.data_seed))
            if value != self.seed
        ]
        return f"{self.seed}" + (f"({';'.join(apart)})" if apart else "")

    @property
    def num_sublayers(self) -> int | None:
        """L, two per transformer block; None where the config does not say."""
        blocks = (self.config.get("model") or {}).get("num_transformer_blocks")
        return 2 * blocks if isinstance(blocks, int) else None

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The part of the config that decides the numbers."""
        return identity(self.config)

    @cached_property
    def setting(self) -> dict[str, Any]:
        """The identity without arm and seeds, flat: dotted key -> value."""
        return _flat({key: value for key, value in self.identity.items() if key not in _PER_RUN})

    @cached_property
    def setting_id(self) -> str:
        """Eight hexadecimal digits that name the setting."""
        return hashlib.sha256(json.dumps(self.setting, sort_keys=True).encode()).hexdigest()[:8]

    def documents(self) -> pd.DataFrame | None:
        """One row per validation document (loss_sum in nats, tokens, ...); None if not recorded."""
        return load_val_losses(self.directory) if (self.directory / "val_losses.npz").exists() else None


def load(
    root: Path, scale: str, arms: Sequence[str], *, committed: Path | None = None
) -> tuple[list[RunRow], list[str]]:
    """The runs of some arms under ``root`` at one scale; notes name those whose records cannot be used.

    committed: a second root, from which come the runs that the first one does not have.
    """
    runs, notes = [], []
    known: set[str] = set()
    roots = [place for place in (root, committed) if place is not None and place.is_dir()]
    for row in (row for place in roots for row in load_runs(place, scale).to_dict("records")):
        if row["arm"] not in arms or row["run_id"] in known:
            continue
        problem = row["problem"]
        if not problem and row["status"] == "done" and not math.isfinite(row["val_loss"]):
            problem = "done, but no validation loss in final.json"
        if problem:
            notes.append(f"{row['arm']}: run {row['run_id']} left out ({problem}).")
            continue
        known.add(row["run_id"])
        runs.append(_run_row(row))
    return runs, notes


def _run_row(row: Mapping[Hashable, Any]) -> RunRow:
    def whole(name: str) -> int | None:
        return None if pd.isna(row[name]) else int(row[name])

    path = Path(row["path"])
    same = ("run_id", "arm", "status", "val_loss", "val_bpb", "device", "precision", "compile")
    return RunRow(
        **{name: row[name] for name in same},
        directory=path,
        seed=int(row["seed"]),
        data_seed=int(row["data_seed"]),
        init_seed=int(row["init_seed"]),
        fingerprint=row["data_fingerprint"],
        parameters=whole("parameters"),
        diverged_at_step=whole("diverged_at_step"),
        config=read_config(path / "config.yaml"),
    )


def select(runs: Sequence[RunRow], scale: str, setting: str | None = None) -> tuple[list[RunRow], list[str]]:
    """One run per arm and seeds under one setting, and a note on each kind of run left out.

    setting: prefix of a setting id. Without it: the newest semantics, then the setting with most arms, then
    the one closest to ``conf/scale/<scale>.yaml``, then the one with most runs; a ``DataError`` where that
    does not decide.
    """
    groups: dict[str, list[RunRow]] = {}
    for run in runs:
        groups.setdefault(run.setting_id, []).append(run)
    chosen = _choose_setting(groups, scale, setting)
    notes = []
    if len(groups) > 1:
        others = sum(map(len, groups.values())) - len(groups[chosen])
        keys = ", ".join(_differing(groups.values()))
        notes.append(f"Setting {chosen}; {others} runs of other settings left out (they differ in {keys}).")
    kept: list[RunRow] = []
    by_cell: dict[tuple[str, tuple[int, int, int]], list[RunRow]] = {}
    for run in groups[chosen]:
        by_cell.setdefault((run.arm, run.seeds), []).append(run)
    for (arm, _), cell in by_cell.items():
        seed = cell[0].seed_label
        best = _closest_to_arm(cell)
        if len(best) > 1:
            ids = ", ".join(run.run_id for run in best)
            raise DataError(f"arm {arm}, seed {seed}: runs {ids} fit equally well; move all but one away")
        kept += best
        if len(cell) > 1:
            notes.append(f"{arm}, seed {seed}: {len(cell) - 1} runs with other options of the arm left out.")
    return kept, notes


def with_checkpoint(root: Path, scale: str, arms: Sequence[str], setting: str | None, how: str) -> list[Path]:
    """Directories of the finished runs that a table of these arms shows and whose weights are here.

    root: all runs.  how: arguments of ``repro.train`` that would train them, for the ``DataError`` that none
    is there.
    """
    found, _ = load(root / scale, scale, arms)
    chosen = select(found, scale, setting)[0] if found else []
    done = [run.directory for run in chosen if run.status == "done"]
    here = [path for path in done if (path / "checkpoints" / "last.ckpt").exists()]
    if not here:
        raise DataError(
            f"{shown(root / scale)}: no finished run of {', '.join(arms)} with a checkpoint; train: "
            f"python -m repro.train {how}"
        )
    return here


def departures(run: RunRow, scale: str) -> dict[str, Any]:
    """Where a run's setting differs from ``conf/scale/<scale>.yaml``: dotted key -> the run's value.

    What the scale does not set is that of ``conf/model/decoder.yaml``, where it is a number there (eps).
    """
    model = _flat({"model": _yaml(CONF / "model" / "decoder.yaml")})
    numbers = {key: value for key, value in model.items() if _is_number(value)}
    expected = {**numbers, **_flat(_yaml(CONF / "scale" / f"{scale}.yaml"))}
    setting = run.setting
    return {
        key: setting[key]
        for key, value in expected.items()
        if key in setting and not _same(setting[key], value)
    }


def _choose_setting(groups: Mapping[str, list[RunRow]], scale: str, wanted: str | None) -> str:
    if wanted is not None:
        fits = [name for name in groups if name.startswith(wanted)]
        if len(fits) != 1:
            raise DataError(f"--setting {wanted}: must begin one of {', '.join(sorted(groups))}")
        return fits[0]

    def rank(name: str) -> tuple[int, int, int, int]:
        group = groups[name]
        misses = len(departures(group[0], scale))
        return -int(group[0].setting["semantics"]), -len({run.arm for run in group}), misses, -len(group)

    ranked = sorted(groups, key=rank)
    if len(ranked) > 1 and rank(ranked[0]) == rank(ranked[1]):
        tied = [name for name in ranked if rank(name) == rank(ranked[0])]
        keys = ", ".join(_differing(groups[name] for name in tied))
        raise DataError(
            f"scale {scale}: settings {', '.join(tied)} fit equally well (they differ in {keys}); "
            f"choose one with --setting {tied[0]}"
        )
    return ranked[0]


def _closest_to_arm(cell: Sequence[RunRow]) -> list[RunRow]:
    if len(cell) == 1:
        return list(cell)
    expected = _flat(_yaml(CONF / "arm" / f"{cell[0].arm}.yaml"))

    def distance(run: RunRow) -> int:
        own = _flat(run.identity["arm"])
        keys = {key for key in {*own, *expected} if key not in ("label", "parent")}
        return sum(not _same(own.get(key), expected.get(key)) for key in keys)

    least = min(map(distance, cell))
    return [run for run in cell if distance(run) == least]


def _differing(groups: Iterable[Sequence[RunRow]]) -> list[str]:
    settings = [group[0].setting for group in groups]
    keys = sorted({key for setting in settings for key in setting})
    return [key for key in keys if len({json.dumps(setting.get(key)) for setting in settings}) > 1]


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True


def _same(a: object, b: object) -> bool:
    try:
        return float(a) == float(b)  # type: ignore[arg-type]  # YAML reads 3e-3 as text, OmegaConf as a number
    except (TypeError, ValueError):
        return a == b


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return flat


def _yaml(path: Path) -> dict[str, Any]:
    value = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None
    return value if isinstance(value, dict) else {}
