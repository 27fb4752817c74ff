"""An item rendered to files: its tables, its picture, the outcome of its checks and where it came from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from analysis.output import write_item
from analysis.report_contents import Outcome
from experiments.item import PaperItem, Rendered, Source


def outcomes(item: PaperItem, rendered: Rendered) -> list[Outcome]:
    """What each check of the item says about what was rendered."""
    return [Outcome(check.statement, *check.test(rendered.data)) for check in item.checks]


def write(item: PaperItem, source: Source, rendered: Rendered) -> list[Path]:
    """Write ``<results>/<scale>/<item>.*`` and return the paths (``analysis.output.write_item``)."""
    command = f"python -m repro.reproduce render {item.name} --scale {source.scale}"
    provenance = {
        "item": item.name,
        "scale": source.scale,
        "command": command + (f" --setting {source.setting}" if source.setting else ""),
        "paper": "arXiv:2603.15031v1",
        "run_ids": [run.run_id for run in rendered.runs],
        "checks": [asdict(outcome) for outcome in outcomes(item, rendered)],
    }
    return write_item(
        source.results / source.scale,
        item.name,
        records=rendered.records,
        text=rendered.text,
        figure=rendered.figure,
        provenance=provenance,
    )
