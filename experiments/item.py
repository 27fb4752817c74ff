"""What an item of the paper is: a table or figure with its claim, its runs, its rendering and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from analysis.ablation import StepTime, read_step_times
from analysis.selection import RunRow, load, select
from analysis.tables import Table
from repro.errors import DataError

PUBLISHED = "published"
PUBLISHED_FILES = Path(__file__).resolve().parent / "published"


@dataclass(frozen=True)
class Source:
    """Where an item's numbers come from: the paper (``published``) or the runs of one scale.

    runs: root of the run directories; results: root of the committed results, whose ``<scale>/runs`` stands
    in for ``runs`` where that has none of this scale. setting: prefix of the setting id, where several were
    trained.
    """

    scale: str
    runs: Path = Path("runs")
    results: Path = Path("results")
    setting: str | None = None

    @property
    def is_published(self) -> bool:
        """Whether only the paper's numbers are asked for."""
        return self.scale == PUBLISHED

    def load(self, item: PaperItem) -> tuple[list[RunRow], list[str]]:
        """The item's runs, one per arm and seed, and notes on what was left out; ``DataError`` if none."""
        found, problems = load(self.runs / self.scale, self.scale, item.arms)
        if not found:
            archived, more = load(self.results / self.scale / "runs", self.scale, item.arms)
            found, problems = archived, problems + more
        if not found:
            raise DataError(
                f"no runs of {item.name} at scale {self.scale} in {self.runs / self.scale} or "
                f"{self.results / self.scale / 'runs'}: make {item.name} SCALE={self.scale} trains them"
            )
        chosen, notes = select(found, self.scale, self.setting)
        return chosen, problems + notes

    def step_times(self) -> Mapping[str, StepTime]:
        """Step time of each arm relative to PreNorm, where it was measured (``repro.train.step_time``)."""
        return read_step_times(self.results / self.scale / "step_time.csv")


@dataclass(frozen=True)
class Rendered:
    """An item from one source: csv records, tables for files and terminal, picture, runs, data for checks."""

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
    ``conf/experiment/<name>.yaml``, which trains ``arms``; render: the item from one source; scales: where it
    makes sense, empty for ``published`` and every file of ``conf/scale``; order: place in the list.
    """

    name: str
    title: str
    claim: str
    experiment: str
    arms: tuple[str, ...]
    render: Callable[[Source], Rendered]
    checks: tuple[Check, ...] = ()
    scales: tuple[str, ...] = ()
    order: float = 0.0
