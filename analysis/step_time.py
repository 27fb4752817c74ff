"""Step times as ``repro.train.step_time`` leaves them, and the line that says how they were measured."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.errors import DataError

_HOW = ("rounds", "threads", "device", "cpu", "torch")


@dataclass(frozen=True)
class StepTime:
    """Training step of an arm relative to PreNorm's of the same round: median and quartiles over the rounds.

    milliseconds: median step.  The rest is how it was measured, as the file says it; None where it does not.
    """

    ratio: float
    lower_quartile: float | None = None
    upper_quartile: float | None = None
    milliseconds: float | None = None
    rounds: str | None = None
    threads: str | None = None
    device: str | None = None
    cpu: str | None = None
    torch: str | None = None


def read_step_times(path: Path) -> dict[str, StepTime]:
    """``step_time.csv`` by arm; empty if not measured.

    Needs the columns arm and ratio_median, reads the quartiles, ms_median and what was measured on where they
    are there, and passes over others.
    """
    if not path.exists():
        return {}
    try:
        with path.open(newline="") as file:
            return {row["arm"]: _step_time(row) for row in csv.DictReader(file)}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a table of step times ({error!r}); remove it and measure again"
        ) from None


def how_measured(times: Sequence[StepTime]) -> str:
    """The note below a table with these step times."""
    found = {
        name: " or ".join(sorted({value for time in times if (value := getattr(time, name))}))
        for name in _HOW
    }
    rounds = f"{found['rounds']} interleaved rounds" if found["rounds"] else "interleaved rounds"
    threads = f" with {found['threads']} thread{'s' * (found['threads'] != '1')}" if found["threads"] else ""
    machine = [found["device"] if found["device"] != "cpu" else "", found["cpu"]]
    machine += [f"torch {found['torch']}"] if found["torch"] else []
    where = f" ({', '.join(filter(None, machine))})" if any(machine) else ""
    return (
        f"step ×: time of a training step relative to PreNorm's, median of {rounds} in one uncompiled "
        f"process{threads}{where}; the csv has the lower and upper quartiles. Training runs may use other "
        "threads or compile."
    )


def _step_time(row: Mapping[str, str]) -> StepTime:
    def number(*names: str) -> float | None:
        return next((float(row[name]) for name in names if row.get(name)), None)

    return StepTime(
        float(row["ratio_median"]),
        number("ratio_lower_quartile", "ratio_low"),
        number("ratio_upper_quartile", "ratio_high"),
        number("ms_median"),
        **{name: row.get(name) or None for name in _HOW},
    )
