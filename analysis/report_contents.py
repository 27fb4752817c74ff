"""What the report shows, as plain data: items, their renderings, and the paper's inconsistencies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.report_tables import read_markdown
from analysis.tables import Table
from repro.errors import DataError

PUBLISHED = "published"


@dataclass(frozen=True)
class Outcome:
    """A check of an item at one scale: holds is None where it is open; evidence as the check words it."""

    statement: str
    holds: bool | None
    evidence: str


@dataclass(frozen=True)
class Rendering:
    """The files of one item at one scale (``analysis.output.write_item``), read back.

    stem: path of the files without suffix, as shown to a reader.  seeds: arms grouped by their seeds, as
    text; num_seeds: fewest and most seeds of an arm, None without runs.  setting: how the runs were trained.
    warnings: where the files do not match the runs that exist now.
    """

    scale: str
    stem: str
    command: str
    git: str
    run_ids: Sequence[str]
    outcomes: Sequence[Outcome]
    tables: Sequence[Table]
    picture: Path
    seeds: str = ""
    num_seeds: tuple[int, int] | None = None
    setting: str = ""
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Item:
    """A table or figure: claim in our words, how what is shown departs from the paper, its renderings.

    absent: scale -> why there is nothing to show there.
    """

    name: str
    title: str
    claim: str
    deviations: Sequence[str]
    renderings: Sequence[Rendering]
    absent: Sequence[tuple[str, str]] = ()

    def at(self, scale: str) -> Rendering | None:
        """The rendering at a scale, if there is one."""
        return next((rendering for rendering in self.renderings if rendering.scale == scale), None)


@dataclass(frozen=True)
class Inconsistency:
    """Where the paper disagrees with itself or leaves open what a rerun has to know.

    items: names of the items that show it.  elsewhere: files of the suite that do, where no item does.
    """

    key: str
    paper: str
    found: str
    items: Sequence[str] = ()
    elsewhere: Sequence[str] = ()


@dataclass(frozen=True)
class Contents:
    """All that is on the page; scales in the order shown, ``published`` first."""

    items: Sequence[Item]
    inconsistencies: Sequence[Inconsistency]
    scales: Sequence[str] = field(default=())


def read_rendering(results: Path, scale: str, name: str) -> Rendering | None:
    """The rendered files ``<results>/<scale>/<name>.*``; None where they were not made.

    A ``DataError`` where a file is missing beside others or cannot be read.
    """
    folder = results / scale
    path = folder / f"{name}.provenance.json"
    if not path.exists():
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        git = known.get("git") or {}
        checks = [(str(c["statement"]), c["holds"], str(c["evidence"])) for c in known.get("checks", ())]
        run_ids = [str(run_id) for run_id in known.get("run_ids", ())]
        text = (folder / f"{name}.md").read_text(encoding="utf-8")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read ({type(error).__name__}); render the item again") from None
    picture = folder / f"{name}.svg"
    if not picture.exists():
        raise DataError(f"{picture}: missing; render the item again")
    return Rendering(
        scale=scale,
        stem=f"results/{scale}/{name}",
        command=str(known.get("command", "")),
        git=str(git.get("sha") or "not recorded")[:12] + (", with local changes" if git.get("dirty") else ""),
        run_ids=run_ids,
        outcomes=[Outcome(*check) for check in checks],
        tables=read_markdown(text),
        picture=picture,
    )
