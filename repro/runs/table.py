"""All runs under a directory as one table, and the contents of one run as frames and arrays.

Works on ``runs/`` and on the small records committed as ``results/<scale>/runs/<arm>/<run_id>/``. Nothing is
executed, resolved or changed by reading; a run that is unfinished or damaged is a row that says so.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from repro.errors import ConfigError, DataError
from repro.runs import arrays as npz
from repro.runs import jsonl, reading
from repro.runs.atomic import replace_atomically
from repro.runs.identity import run_id
from repro.runs.status import Status

RUN_ID = re.compile(r"[0-9a-f]{12}")
RECORDS = (".yaml", ".json", ".jsonl", ".npz")
SORTED_BY = ["scale", "arm", "seed", "init_seed", "data_seed", "run_id"]

# Column -> pandas type. Integers are nullable.
COLUMNS = {
    "run_id": "str",
    "scale": "str",
    "arm": "str",
    "label": "str",
    "parent": "str",
    "seed": "Int64",
    "init_seed": "Int64",
    "data_seed": "Int64",
    "status": "str",
    "step": "Int64",
    "tokens": "Int64",
    "val_loss": "float64",
    "val_bpb": "float64",
    "diverged_at_step": "Int64",
    "parameters": "Int64",
    "mixer_parameters": "Int64",
    "flops_per_token": "float64",
    "device": "str",
    "precision": "str",
    "compile": "str",
    "backend": "str",
    "depth_execution": "str",
    "threads": "Int64",
    "data": "str",
    "data_fingerprint": "str",
    "semantics": "Int64",
    "git_sha": "str",
    "problem": "str",
    "path": "str",
}


def load_runs(root: str | Path, scale: str | None = None) -> pd.DataFrame:
    """One row per run directory under `root`, in a fixed order, with the columns of `COLUMNS`.

    scale: keep the runs of one scale only.  Losses (nats per token, bits per byte) and the final step are
    given for finished runs only (done or diverged); `step` is otherwise the last one reported.  `problem`
    names what could not be read, or an id that is not that of the config beside it.  Never raises for what
    it finds.
    """
    root = Path(root)
    rows = [_row(directory, root) for directory in _run_directories(root)]
    rows = [row for row in rows if scale is None or row["scale"] == scale]
    frame = pd.DataFrame(
        {name: _column([row.get(name) for row in rows], kind) for name, kind in COLUMNS.items()}
    )
    return frame.sort_values([*SORTED_BY, "path"], kind="stable", ignore_index=True)


def load_metrics(path: str | Path) -> pd.DataFrame:
    """metrics.jsonl of the run directory `path`, one row per line; nested values become ``by_source.x.loss``.

    Raises DataError where it is missing or a line is damaged.
    """
    return _load_rows(Path(path) / "metrics.jsonl")


def load_timings(path: str | Path) -> pd.DataFrame:
    """timings.jsonl of the run directory `path`, one row per line; raises DataError as `load_metrics`."""
    return _load_rows(Path(path) / "timings.jsonl")


def load_arrays(path: str | Path, name: str) -> npz.Arrays:
    """The arrays of ``<name>.npz`` in the run directory `path`; raises DataError where it cannot be read."""
    file = Path(path) / (name if name.endswith(".npz") else f"{name}.npz")
    try:
        return npz.read_npz(file)
    except FileNotFoundError:
        raise DataError(f"{file}: missing; the run is not finished") from None


def load_val_losses(path: str | Path) -> pd.DataFrame:
    """val_losses.npz of the run directory `path`: one row per validation document, in recorded order.

    Columns are the recorded arrays: loss_sum (nats), tokens, bytes, source, ...
    """
    found = load_arrays(path, "val_losses")
    if len({array.shape for array in found.values()}) > 1 or any(array.ndim != 1 for array in found.values()):
        raise DataError(f"{path}/val_losses.npz: not one value per document")
    return pd.DataFrame({name: found[name] for name in sorted(found)})


def copy_records(run_directory: str | Path, destination: str | Path, without: Sequence[str] = ()) -> Path:
    """Copies the small records of a run to ``<destination>/<arm>/<run_id>`` and returns that directory.

    without: names of records that are left out, unless the copy has them. Everything else but checkpoints,
    the lock, logs and files kept aside is copied, and what the run no longer has is
    removed from the copy. Raises DataError where there is no such run or the disk refuses.
    """
    source = Path(run_directory)
    target = Path(destination) / source.parent.name / source.name
    records = sorted(r for r in _records(source) if r.name not in without or (target / r.name).exists())
    if not any(record.name == "config.yaml" for record in records):
        raise DataError(f"{source}: not a run directory (no config.yaml)")
    for record in records:
        replace_atomically(target / record.name, partial(shutil.copyfile, record))
    for stale in {path.name for path in _records(target)} - {record.name for record in records}:
        (target / stale).unlink()
    return target


def _run_directories(root: Path) -> Iterator[Path]:
    for directory, names, _ in os.walk(root):
        here = Path(directory)
        if RUN_ID.fullmatch(here.name):
            names.clear()
            yield here
        else:
            names[:] = sorted(name for name in names if not name.startswith("."))


def _row(directory: Path, root: Path) -> dict[str, Any]:
    problems: list[str] = []

    def read(name: str, reader: Callable[[Path], Any], absent: Any) -> Any:
        try:
            return reader(directory / name)
        except FileNotFoundError:
            return absent
        except DataError as error:
            problems.append(str(error).replace(f"{directory}{os.sep}", ""))
            return None

    config = read("config.yaml", reading.read_config, None)
    status = read("status.json", reading.read_status, Status()) or Status("failed")
    meta = _mapping(read("meta.json", reading.read_json, None))
    final = _mapping(read("final.json", reading.read_json, None)) if status.finished else {}
    if config is None:
        config = {}
        problems.append("no readable config.yaml")
    else:
        try:
            if run_id(config) != directory.name:
                problems.append(f"config.yaml is that of run {run_id(config)}")
        except ConfigError as error:
            problems.append(f"config.yaml: {error}")
    arm, data, runtime = (_mapping(config.get(key)) for key in ("arm", "data", "runtime"))

    def recorded(key: str) -> Any:
        return final.get(key, meta.get(key))

    return {
        "run_id": directory.name,
        "scale": config.get("scale") or _scale_of_place(directory, root),
        "arm": arm.get("name") or directory.parent.name,
        "label": arm.get("label"),
        "parent": arm.get("parent"),
        "seed": config.get("seed"),
        "init_seed": _first(config.get("init_seed"), config.get("seed")),
        "data_seed": _first(config.get("data_seed"), config.get("seed")),
        "status": status.state,
        "step": _first(final.get("step"), status.step),
        **{key: final.get(key) for key in ("tokens", "val_loss", "val_bpb", "diverged_at_step")},
        **{key: recorded(key) for key in ("parameters", "mixer_parameters", "flops_per_token")},
        **{
            key: _first(meta.get(key), runtime.get(key))
            for key in ("compile", "backend", "depth_execution", "threads")
        },
        "device": meta.get("device"),
        "precision": _first(meta.get("precision"), config.get("precision")),
        "data": data.get("name"),
        "data_fingerprint": data.get("fingerprint"),
        "semantics": config.get("semantics"),
        "git_sha": _first(meta.get("git_sha"), _mapping(meta.get("git")).get("sha")),
        "problem": "; ".join(problems) or None,
        "path": str(directory),
    }


def _scale_of_place(directory: Path, root: Path) -> str | None:
    parts = directory.relative_to(root).parts[:-2]
    return "/".join(parts[:-1] if parts[-1:] == ("runs",) else parts) or None


def _column(values: list[Any], kind: str) -> pd.Series:
    if kind == "str":
        return pd.Series([None if value is None else str(value) for value in values], dtype="object")
    return pd.Series([_number(value, whole=kind == "Int64") for value in values], dtype=kind)


def _number(value: Any, whole: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if whole:
        return int(value) if math.isfinite(value) and value == int(value) and abs(value) < 2**63 else None
    return float(value)


def _load_rows(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise DataError(f"{path}: missing; the run has not started")
    return pd.json_normalize(jsonl.read_rows(path), sep=".")


def _records(directory: Path) -> Iterator[Path]:
    for path in directory.glob("*"):
        if (
            path.suffix in RECORDS
            and not path.name.startswith(".")
            and path.is_file()
            and not path.is_symlink()
        ):
            yield path


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)
