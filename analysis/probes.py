"""Records that probes leave in run directories (``python -m repro.probe``): which runs have one, and
which not.
"""

from __future__ import annotations

from collections.abc import Sequence

from analysis.selection import RunRow
from repro.errors import DataError
from repro.runs.arrays import Arrays
from repro.runs.table import load_arrays

Probed = tuple[RunRow, Arrays]


def probed(name: str, runs: Sequence[RunRow], scale: str) -> tuple[list[Probed], list[str]]:
    """The finished runs that have ``<name>.npz``, with its arrays, and a note on those that have not.

    A ``DataError`` with the command that writes them where no run has one.
    """
    done = [run for run in runs if run.status == "done"]
    found = [run for run in done if (run.directory / f"{name}.npz").exists()]
    command = f"python -m repro.probe {name} scale={scale}"
    if not found:
        raise DataError(f"no {name}.npz in {len(done)} finished runs at scale {scale}: {command} writes it")
    missing = [f"{run.arm} seed {run.seed_label}" for run in done if run not in found]
    notes = [f"Not probed: {', '.join(missing)} ({command})."] if missing else []
    return [(run, load_arrays(run.directory, name)) for run in found], notes
