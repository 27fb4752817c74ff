"""What an item of the paper is: a table or figure with its claim, its runs, its rendering and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.selection import RunRow, load, select
from analysis.step_time import StepTime, read_step_times
from analysis.tables import Table
from repro.errors import DataError
from repro.runs.places import project_root, shown

PUBLISHED = "published"
PUBLISHED_FILES = Path(__file__).resolve().parent / "published"


@dataclass(frozen=True)
class Source:
    """Where an item's numbers come from: the paper (``published``) or the runs of one scale.

    runs: root of the run directories; results: root of the committed results, whose ``<scale>/runs`` adds the
    runs that are not in ``runs``; both lie in the project unless given. setting: prefix of the setting id,
    where several were trained.
    """

    scale: str
    runs: Path = field(default_factory=lambda: project_root() / "runs")
    results: Path = field(default_factory=lambda: project_root() / "results")
    setting: str | None = None

    @property
    def is_published(self) -> bool:
        """Whether only the paper's numbers are asked for."""
        return self.scale == PUBLISHED

    def load(self, name: str, arms: Sequence[str]) -> tuple[list[RunRow], list[str]]:
        """All runs of the arms of item ``name``, local ones before committed ones of the same id.

        The notes name runs that cannot be used.  A ``DataError`` if there is none.
        """
        runs, committed = self.runs / self.scale, self.results / self.scale / "runs"
        found, problems = load(runs, self.scale, arms, committed=committed)
        if not found:
            raise DataError(
                f"no runs of {name} at scale {self.scale} in {shown(runs)} or {shown(committed)}: "
                f"make {name} SCALE={self.scale} trains them"
            )
        return found, problems

    def select(self, name: str, arms: Sequence[str]) -> tuple[list[RunRow], list[str]]:
        """Of ``load`` one run per arm and seeds under one setting, and notes on what was left out."""
        found, problems = self.load(name, arms)
        chosen, notes = select(found, self.scale, self.setting)
        return chosen, problems + notes

    def step_times(self) -> Mapping[str, StepTime]:
        """Step time of each arm relative to PreNorm, where it was measured (``repro.train.step_time``)."""
        return read_step_times(self.results / self.scale / "step_time.csv")


@dataclass(frozen=True)
class Rendered:
    """An item from one source: csv records, tables for files and terminal, picture, runs, data for checks.

    Records with the keys ``arm``, ``row`` and ``status`` are traced row by row (``why``), others run by run.
    """

    records: Sequence[Mapping[str, object]]
    text: Sequence[Table]
    terminal: Sequence[Table]
    figure: Figure
    runs: Sequence[RunRow] = ()
    data: Any = None


@dataclass(frozen=True)
class Check:
    """A sentence of the paper and what decides it: ``test(Rendered.data)`` is (holds | None, evidence)."""

    statement: str
    test: Callable[[Any], tuple[bool | None, str]]


@dataclass(frozen=True)
class PaperItem:
    """One table or figure.

    name: as typed (``table4``); claim: what the paper says, in our words; experiment:
    ``conf/experiment/<name>.yaml``, which trains ``arms``, or None where nothing is trained; render: the item
    from one source; scales: where it makes sense, empty for ``published`` and every file of ``conf/scale``;
    order: place in the list.
    """

    name: str
    title: str
    claim: str
    experiment: str | None
    arms: tuple[str, ...]
    render: Callable[[Source], Rendered]
    checks: tuple[Check, ...] = ()
    scales: tuple[str, ...] = ()
    order: float = 0.0
