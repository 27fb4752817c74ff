"""The file of the step bench: which races it holds, and how one of them is exchanged or summed up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from repro.bench.entrants import SWEEPS, Setting
from repro.errors import DataError

KEY = ["sweep", "blocks", "width", "mode"]


def kept(table: pd.DataFrame, setting: Setting, marks: Mapping[str, Any], noisy: bool) -> bool:
    """Whether the file holds this race under these marks (and quiet, unless `noisy` will do)."""
    rows = table[_same_race(table, setting)] if len(table) else table
    same = all(key in rows and (rows[key].astype(str) == str(value)).all() for key, value in marks.items())
    return bool(len(rows) and same and (noisy or rows["quiet"].all()))


def replace_race(table: pd.DataFrame, setting: Setting, rows: pd.DataFrame) -> pd.DataFrame:
    """The table with the rows of one race exchanged; sweeps in their order, races by depth and width."""
    others = table[~_same_race(table, setting)] if len(table) else table
    joined = pd.concat([others, rows], ignore_index=True) if len(others) else rows
    order = joined["sweep"].map({sweep: i for i, sweep in enumerate(SWEEPS)})
    return (
        joined.assign(order=order)
        .sort_values(["order", "blocks", "width"], kind="stable")
        .drop(columns="order")
    )


def _same_race(table: pd.DataFrame, setting: Setting) -> pd.Series[bool]:
    key = (setting.sweep, setting.blocks, setting.width, setting.mode)
    return pd.Series([tuple(row) == key for row in table[KEY].itertuples(index=False)], index=table.index)


def read(path: Path) -> pd.DataFrame:
    """The earlier file, or an empty table; DataError where it is something else."""
    if not path.exists():
        return pd.DataFrame()
    try:
        table = pd.read_csv(path)
        return table if set(KEY) | {"quiet"} <= set(table) else _refuse(path)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
        return _refuse(path)


def _refuse(path: Path) -> pd.DataFrame:
    raise DataError(f"{path}: not a table of the step bench; remove it and measure again")


def summary(rows: pd.DataFrame) -> str:
    """The step of each entrant of one race, and whether the machine was quiet."""
    lines = []
    for row in rows[rows["quantity"] == "step"].to_dict("records"):
        way = (
            "" if row["execution"] == row["backend"] == "auto" else f" ({row['execution']}, {row['backend']})"
        )
        quartiles = f"[{row['ratio_lower_quartile']:.3f}, {row['ratio_upper_quartile']:.3f}]"
        ratio = f"x {row['ratio_median']:.3f} {quartiles}"
        lines.append(f"  {row['label'] + way:44}{row['median']:9.1f} ms  {ratio}")
    first = rows.iloc[0]
    state = "quiet" if first["quiet"] else "NOT QUIET, measured again by the next call"
    lines.append(
        f"  {state}: PreNorm spread {first['prenorm_spread']:.3f}, others {first['other_cores']} cores"
    )
    return "\n".join(lines)
