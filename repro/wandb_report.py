"""``python -m repro.wandb_report``: the report's sections, with the curves of their runs, as a W&B report.

The same contents as results/report.html (``repro.report``). Runs have to be there first (``make
wandb-sync``). Exit code 2 and one line where wandb_workspaces or a login is missing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.report import TITLE
from analysis.report_text import Section, sections
from repro.errors import ConfigError, DataError
from repro.report import chosen_scales, collect
from repro.reproduce import known_scales
from repro.runs.places import project_root, shown
from repro.wandb_account import first_line, logger_settings, require_login

PACKAGE = "wandb_workspaces.reports.v2"
CURVES = ("val/loss", "train/loss", "train/grad_norm")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.wandb_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--entity", default="", help="W&B user or team (default: that of the login)")
    parser.add_argument("--project", default=None, help="default: that of conf/logger/wandb.yaml")
    parser.add_argument("--scale", help="scales beside published, as quick,cpu (default: all that have runs)")
    for folder in ("runs", "results"):
        place = project_root() / folder
        parser.add_argument(f"--{folder}", type=Path, default=place, help=f"default: {shown(place)}")
    args = parser.parse_args(arguments)
    try:
        blocks = _package()
        require_login()
        scales = chosen_scales(known_scales(), args.scale, args.runs, args.results)
        found = sections(collect(scales, args.runs, args.results))
        _save(build(blocks, found, args.project or logger_settings()["project"], args.entity))
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _save(report: Any) -> None:
    try:
        report.save()
        print(f"saved: {report.url}")
    except Exception as error:  # a project that is not there, a right that is missing, no network
        raise DataError(f"W&B did not take the report: {first_line(error)}") from None


def _package() -> Any:
    try:
        return importlib.import_module(PACKAGE)
    except ImportError:
        raise DataError("wandb-workspaces is not installed: pip install -e '.[report]'") from None


def build(wr: Any, found: Iterable[Section], project: str, entity: str = "") -> Any:
    """The report as an object of ``wandb_workspaces.reports.v2`` (`wr`), not saved.

    With an entity it needs no network.
    """
    blocks: list[Any] = [wr.TableOfContents()]
    for section in found:
        blocks.append((wr.H1 if section.level == 1 else wr.H2)(text=section.title))
        blocks.append(wr.MarkdownBlock(text=section.text))
        if section.run_ids:
            blocks.append(_curves(wr, section))
    owner = {"entity": entity} if entity else {}  # else that of the login, which the package asks for
    return wr.Report(
        project=project,
        **owner,
        title=TITLE,
        description="Every table and figure of arXiv:2603.15031v1: the paper's numbers, ours beside them.",
        width="fluid",
        blocks=blocks,
    )


def _curves(wr: Any, section: Section) -> Any:
    """Losses and gradient norm of the section's runs, found by their ids: a run may serve several items."""
    runs = wr.Runset(
        name=section.title,  # of the report's own project
        filters=f"Metric('ID') in {json.dumps(list(section.run_ids))}",
        groupby=["config.arm.name"],
    )
    panels = [wr.LinePlot(x="Step", y=[name], title=name) for name in CURVES]
    return wr.PanelGrid(runsets=[runs], panels=panels)


if __name__ == "__main__":
    sys.exit(main())
