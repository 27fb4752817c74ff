"""``python -m repro.reproduce report``: everything that is rendered, as one page in results/report.html.

Files under ``results/<scale>/`` are used as they are, since rendering some items takes a minute. Only a
published item that was never rendered is rendered first; at a trained scale ``make <item>`` does that, which
knows what the item has to be trained and measured for. No torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis.page_check import problems
from analysis.report import page
from analysis.report_contents import PUBLISHED, Contents, Item, Rendering, read_rendering
from analysis.report_runs import with_runs
from analysis.report_verdicts import counts, rows
from analysis.selection import RunRow, load
from experiments.deviations import DEVIATIONS
from experiments.inconsistencies import INCONSISTENCIES
from experiments.item import PaperItem, Source
from experiments.items import ITEMS
from repro.errors import ConfigError, DataError
from repro.rendering import write
from repro.runs.atomic import write_bytes
from repro.runs.places import project_root, shown

NAME = "report.html"
# Generated data of seconds: it tests the pipeline and says nothing about the paper. Shown when asked for.
ONLY_ON_REQUEST = "smoke"


def register(commands: Any, scales: Sequence[str]) -> None:
    """Add the command to those of ``repro.reproduce``; scales: all that ``conf/scale`` has."""
    command = commands.add_parser("report", help="results/report.html: every item on one page")
    command.set_defaults(command=partial(_report, scales))
    command.add_argument(
        "--scale", help="scales beside published, as quick,cpu (default: all that have runs)"
    )
    for folder in ("runs", "results"):
        place = project_root() / folder
        command.add_argument(f"--{folder}", type=Path, default=place, help=f"default: {shown(place)}")


def _report(known: Sequence[str], args: argparse.Namespace) -> None:
    contents = collect(chosen_scales(known, args.scale, args.runs, args.results), args.runs, args.results)
    text = page(contents)
    if found := problems(text):
        raise DataError(f"the page is damaged: {'; '.join(found[:3])}")
    path = write_bytes(args.results / NAME, text.encode("utf-8"))
    for item in contents.items:
        for rendering in item.renderings:
            for warning in rendering.warnings:
                print(f"{item.name} at {rendering.scale}: {warning}")
    for scale, holds, fails, still_open in counts(list(rows(contents.items)), contents.scales):
        source = "the paper's own numbers" if scale == PUBLISHED else f"runs at scale {scale}"
        print(f"{source}: {holds} statements hold, {fails} fail, {still_open} are open")
    print(f"Written: {shown(path)} ({path.stat().st_size / 1e6:.1f} MB, {len(contents.items)} items)")


def chosen_scales(known: Sequence[str], asked: str | None, runs: Path, results: Path) -> list[str]:
    """``published`` and the scales asked for, or all that have runs here or rendered files."""
    if asked is None:
        return [PUBLISHED] + [
            scale for scale in known if scale != ONLY_ON_REQUEST and _has_anything(scale, runs, results)
        ]
    scales = [scale for scale in asked.split(",") if scale != PUBLISHED]
    for scale in scales:
        if scale not in known:
            raise ConfigError("--scale", scale, f"must be one of {', '.join([PUBLISHED, *known])}")
    return [PUBLISHED, *dict.fromkeys(scales)]


def _has_anything(scale: str, runs: Path, results: Path) -> bool:
    folder = results / scale
    return (runs / scale).is_dir() or (folder / "runs").is_dir() or any(folder.glob("*.provenance.json"))


def collect(scales: Sequence[str], runs: Path, results: Path) -> Contents:
    """Everything on the page; published items that were never rendered are rendered."""
    arms = sorted({arm for item in ITEMS.values() for arm in item.arms})
    of_scale = {scale: _runs(scale, arms, runs, results) for scale in scales}
    items = []
    for item in ITEMS.values():
        renderings, absent = [], []
        for scale in scales:
            if item.scales and scale not in item.scales:
                continue
            rendering = _rendering(item, Source(scale, runs, results))
            if rendering is None:
                absent.append((scale, f"not rendered; make {item.name} SCALE={scale}"))
                continue
            is_newer = partial(_is_newer, runs, results / scale / f"{item.name}.provenance.json")
            renderings.append(with_runs(rendering, item.arms, of_scale[scale], is_newer))
        items.append(
            Item(item.name, item.title, item.claim, DEVIATIONS.get(item.name, ()), renderings, absent)
        )
    return Contents(items, INCONSISTENCIES, scales)


def _rendering(item: PaperItem, source: Source) -> Rendering | None:
    found = read_rendering(source.results, source.scale, item.name)
    if found is None and source.is_published:
        print(f"{item.name}: rendered from the paper's numbers", flush=True)
        write(item, source, item.render(source))
        found = read_rendering(source.results, source.scale, item.name)
    return found


def _is_newer(runs: Path, rendered: Path, run: RunRow) -> bool:
    """Whether a run that was trained here ended after the files were written.

    Of committed runs nothing is known: a checkout gives every file the time at which it was made.
    """
    ended = run.directory / "final.json"
    if not run.directory.is_relative_to(runs) or not ended.exists():
        return False
    return ended.stat().st_mtime > rendered.stat().st_mtime


def _runs(scale: str, arms: Sequence[str], runs: Path, results: Path) -> dict[str, RunRow]:
    if scale == PUBLISHED:
        return {}
    found, _ = load(runs / scale, scale, arms, committed=results / scale / "runs")
    return {run.run_id: run for run in found}
