"""The sections of the report as Markdown, for places that show no HTML of ours (a W&B report)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.report_contents import PUBLISHED, Contents, Item, Rendering
from analysis.report_sections import COMMANDS
from analysis.report_verdicts import VerdictRow, counts, rows
from analysis.tables import EMPTY, Column, Table, to_markdown

_VERDICTS = (
    "item",
    "statement",
    "paper",
    "on its numbers",
    "scale, seeds",
    "ours",
    "95 % interval",
    "verdict",
)
_COUNTS = ("source", "hold", "fail", "open")
_INCONSISTENCIES = ("the paper", "found", "shown by")


@dataclass(frozen=True)
class Section:
    """A heading and Markdown below it; level 1 begins a section, 2 lies within it.

    run_ids: runs whose curves belong here.
    """

    title: str
    level: int
    text: str
    run_ids: Sequence[str] = ()


def sections(contents: Contents) -> Iterator[Section]:
    """The sections of the page in its order."""
    table = list(rows(contents.items))
    yield Section("Verdicts", 1, to_markdown([_counts(contents, table), _verdicts(table)]))
    for item in contents.items:
        yield Section(item.title, 1, _introduction(item))
        for rendering in item.renderings:
            yield _of_rendering(rendering)
    yield Section("Where the paper disagrees with itself", 1, to_markdown([_inconsistencies(contents)]))
    yield Section("How to rebuild", 1, f"```\n{COMMANDS}```\n")


def _table(title: str, names: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    columns = [Column(name, name, numeric=False) for name in names]
    return Table(title, columns, [dict(zip(names, row, strict=True)) for row in cells])


def _counts(contents: Contents, table: Sequence[VerdictRow]) -> Table:
    cells = [
        ("the paper's own numbers" if scale == PUBLISHED else f"scale {scale}", *map(str, numbers))
        for scale, *numbers in counts(table, contents.scales)
    ]
    return _table("Statements that hold, fail and are open", _COUNTS, cells)


def _verdicts(table: Sequence[VerdictRow]) -> Table:
    cells = []
    for row in table:
        ours = row.ours
        said = (
            (
                "; ".join(ours.values),
                "; ".join(filter(None, ours.intervals)),
                " ".join((row.verdict, ours.reason)),
            )
            if ours
            else ("", "", "")
        )
        where = f"{row.scale}, {row.seeds}" if row.scale else ""
        cells.append([row.item.name, row.statement, row.paper, row.paper_verdict, where, *said])
    return _table("Every statement", _VERDICTS, [[cell.strip() or EMPTY for cell in row] for row in cells])


def _introduction(item: Item) -> str:
    differs = "".join(f"- Differs from the paper: {text}\n" for text in item.deviations)
    return f"{item.claim}\n\n{differs}"


def _of_rendering(rendering: Rendering) -> Section:
    paper = rendering.scale == PUBLISHED
    seeds = f"{rendering.seeds}. {rendering.setting}" if rendering.run_ids else ""
    caption = "The paper's numbers." if paper else f"Scale {rendering.scale}. {seeds}".strip()
    warned = "".join(f"**{warning}**\n\n" for warning in rendering.warnings)
    return Section(
        "The paper's numbers" if paper else f"Runs at scale {rendering.scale}",
        2,
        f"{warned}{caption}\n\n{to_markdown(rendering.tables)}",
        rendering.run_ids,
    )


def _inconsistencies(contents: Contents) -> Table:
    cells = [
        (entry.paper, entry.found, ", ".join([*entry.items, *entry.elsewhere]) or EMPTY)
        for entry in contents.inconsistencies
    ]
    return _table("Inconsistencies", _INCONSISTENCIES, cells)
