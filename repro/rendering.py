"""An item rendered to files: its tables, its picture, the outcome of its checks and where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analysis.output import write_item
from analysis.report_contents import Outcome
from analysis.tables import EMPTY, Column, Table
from experiments.item import PaperItem, Rendered, Source


def outcomes(item: PaperItem, rendered: Rendered) -> list[Outcome]:
    """What each check of the item says about what was rendered."""
    return [Outcome(check.statement, *check.test(rendered.data)) for check in item.checks]


def _table_of(checked: Sequence[Outcome]) -> list[Table]:
    """The statements that were checked, with what decides them."""
    if not checked:
        return []
    words = {True: "holds", False: "fails", None: "open"}
    columns = [Column(name, name, numeric=False) for name in ("statement", "outcome", "evidence")]
    rows = [
        {"statement": o.statement, "outcome": words[o.holds], "evidence": o.evidence or EMPTY}
        for o in checked
    ]
    return [Table("Statements checked", columns, rows)]


def write(item: PaperItem, source: Source, rendered: Rendered) -> list[Path]:
    """Write ``<results>/<scale>/<item>.*`` and return the paths (``analysis.output.write_item``)."""
    checked = outcomes(item, rendered)
    command = f"python -m repro.reproduce render {item.name} --scale {source.scale}"
    provenance = {
        "item": item.name,
        "scale": source.scale,
        "command": command + (f" --setting {source.setting}" if source.setting else ""),
        "paper": "arXiv:2603.15031v1",
        "run_ids": [run.run_id for run in rendered.runs],
        "checks": [asdict(outcome) for outcome in checked],
    }
    return write_item(
        source.results / source.scale,
        item.name,
        records=rendered.records,
        text=[*rendered.text, *_table_of(checked)],
        figure=rendered.figure,
        provenance=provenance,
    )
