"""What each arm's training step costs beside PreNorm's: tables and a figure from the file of the step bench.

python -m analysis.bench            results/bench/steps.{md,svg,png} from results/bench/steps.csv
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import style, tables
from analysis.bench_figure import overhead_figure
from analysis.tables import Column, Table
from repro.errors import DataError
from repro.runs.atomic import write_bytes
from repro.runs.places import project_root, shown

BASELINE, BLOCK, FULL = "prenorm", "block_s4", "full"
NEEDED = {"sweep", "blocks", "width", "mode", "arm", "label", "execution", "backend", "sources_mean"}
NEEDED |= {"quantity", "median", "ratio_median", "ratio_lower_quartile", "ratio_upper_quartile"}
NEEDED |= {"extra_median", "quiet", "rounds", "threads", "device", "cpu", "torch", "precision", "git_sha"}
NEEDED |= {"batch", "context", "code", "git_dirty"}


def read(path: Path) -> pd.DataFrame:
    """The long table of `repro.bench.steps`; DataError where there is none or it is something else."""
    try:
        table = pd.read_csv(path)
    except FileNotFoundError:
        raise DataError(f"{path}: not measured yet (make bench)") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
        raise DataError(f"{path}: not a table of the step bench; remove it and measure again") from None
    if table.empty or not set(table) >= NEEDED:
        raise DataError(f"{path}: not a table of the step bench; remove it and measure again")
    return table


def steps_of(table: pd.DataFrame, sweep: str) -> pd.DataFrame:
    """The rows of whole training steps of one sweep."""
    return table[(table["sweep"] == sweep) & (table["quantity"] == "step")]


def report(table: pd.DataFrame) -> list[Table]:
    """Every way of computing at the standard setting, then compiled, by depth and by width; measured ones."""
    found = [
        _ways(table[table["sweep"] == "standard"], "Cost of each way to compute, relative to PreNorm"),
        _ways(table[table["sweep"] == "compiled"], "The defaults under torch.compile, relative to PreNorm"),
        _by_size(steps_of(table, "depth"), "blocks", "A training step by depth, relative to PreNorm"),
        _by_size(steps_of(table, "width"), "width", "A training step by width, relative to PreNorm"),
    ]
    measured = [part for part in found if part.rows]
    last = measured[-1]
    return [*measured[:-1], Table(last.title, last.columns, last.rows, [*last.notes, *_notes(table)])]


def _ways(rows: pd.DataFrame, title: str) -> Table:
    columns = [
        Column("label", "Arm", numeric=False),
        Column("way", "execution, backend", numeric=False),
        Column("forward", "forward ×"),
        Column("forward_backward", "forward+backward ×"),
        Column("step", "step × [quartiles]"),
        Column("ms", "step, ms"),
        Column("extra", "extra ms"),
        Column("memory", "peak memory ×"),
        Column("mebibytes", "peak, MiB"),
        Column("memory_beyond_state", "without state ×"),
    ]
    cells = []
    for _, entrant in rows.groupby(["arm", "execution", "backend"], sort=False):
        by_quantity = {str(row["quantity"]): row for row in entrant.to_dict("records")}
        first = next(iter(by_quantity.values()))
        cell = {name: f"{row['ratio_median']:.2f}" for name, row in by_quantity.items()}
        if step := by_quantity.get("step"):
            cell |= {"step": _ratio(step), "ms": f"{step['median']:.0f}"}
            cell["extra"] = str(round(step["extra_median"]))
        if memory := by_quantity.get("memory"):
            cell["mebibytes"] = f"{memory['median']:.0f}"
        way = [str(first["execution"]), str(first["backend"])]
        cells.append({"label": str(first["label"]), "way": _way(str(first["arm"]), way), **cell})
    sizes = sorted({(int(b), int(w)) for b, w in zip(rows["blocks"], rows["width"], strict=True)})
    where = " and ".join(f"{blocks} transformer blocks of width {width}" for blocks, width in sizes)
    return Table(f"{title} ({where})" if where else title, columns, cells)


def _way(arm: str, way: Sequence[str]) -> str:
    if arm == BASELINE:
        return tables.EMPTY
    return "default" if set(way) == {"auto"} else ", ".join(way)


def _by_size(steps: pd.DataFrame, size: str, title: str) -> Table:
    columns = [Column(size, {"blocks": "transformer blocks"}.get(size, size))]
    columns += [Column("sublayers", "sublayers"), Column("sources", "Full's sources per read")]
    columns += [Column("ms", "PreNorm, ms"), Column(BLOCK, "Block × [quartiles]")]
    columns += [Column(FULL, "Full × [quartiles]"), Column("per_source", "Full's extra % per source")]
    cells = []
    for value, rows in steps.groupby(size):
        by_arm = {str(row["arm"]): row for row in rows.to_dict("records")}
        cell = {size: str(value), "sublayers": str(2 * int(rows["blocks"].iloc[0]))}
        cell |= {arm: _ratio(by_arm[arm]) for arm in (BLOCK, FULL) if arm in by_arm}
        if BASELINE in by_arm:
            cell["ms"] = f"{by_arm[BASELINE]['median']:.0f}"
        if full := by_arm.get(FULL):
            cell["sources"] = f"{full['sources_mean']:.1f}"
            cell["per_source"] = f"{100 * (full['ratio_median'] - 1) / full['sources_mean']:.2f}"
        cells.append(cell)
    return Table(title, columns, cells)


def _ratio(row: Mapping[Hashable, Any]) -> str:
    names = ("ratio_median", "ratio_lower_quartile", "ratio_upper_quartile")
    median, low, high = (f"{row[name]:.3f}" for name in names)
    return f"{median} [{low}, {high}]"


def _notes(table: pd.DataFrame) -> list[str]:
    def found(column: str) -> str:
        return " or ".join(dict.fromkeys(str(value) for value in table[column] if not pd.isna(value)))

    dirty = " with local changes" if (table["git_dirty"].astype(str) == "True").any() else ""
    device = "" if found("device") == "cpu" else f" and {found('device')}"
    trees = " or ".join(sha[:7] for sha in found("git_sha").split(" or ")) or "not a checkout"
    notes = [
        f"Medians of {found('rounds')} interleaved rounds in one process, each step divided by PreNorm's of "
        f"the same round; {found('batch')} x {found('context')} tokens, {found('precision')}.",
        f"{found('cpu')}{device}, {found('threads')} thread{'s' * (found('threads') != '1')}, "
        f"torch {found('torch')}; source tree {trees}{dirty}.",
        "forward: logits without gradient. step: loss, backward pass, clipping, optimizer. default: what "
        "runs where nothing is chosen. Peak memory: weights, optimizer state and all that a step allocates; "
        "without state: what a step allocates.",
    ]
    if table["code"].nunique() > 1:
        notes.append("The races were measured with different versions of the code (column code).")
    if not table["quiet"].astype(bool).all():
        noisy = table.loc[~table["quiet"].astype(bool), ["sweep", "blocks", "width"]].drop_duplicates()
        races = ", ".join(f"{s} {b} x {w}" for s, b, w in noisy.itertuples(index=False))
        notes.append(f"Not quiet, so not to be relied on: {races}.")
    return notes


def write(table: pd.DataFrame, stem: Path) -> list[Path]:
    """``<stem>.{md,svg,png}``; the paths."""
    text = tables.to_markdown(report(table)) + f"\n![{stem.name}]({stem.name}.svg)\n"
    figure = overhead_figure(steps_of(table, "depth"), steps_of(table, "width"))
    return [write_bytes(stem.with_suffix(".md"), text.encode()), *style.save(figure, stem)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Render what was measured; exit code 2 and one line where nothing was."""
    parser = argparse.ArgumentParser(prog="python -m analysis.bench", description=__doc__)
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    stem = parser.parse_args(arguments).results / "bench" / "steps"
    try:
        paths = write(read(stem.with_suffix(".csv")), stem)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("Written: " + ", ".join(shown(path) for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main())
