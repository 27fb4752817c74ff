"""Peak memory of a training step as ``repro.bench.step_memory`` leaves it."""

from __future__ import annotations

import csv
from pathlib import Path

from repro.errors import DataError


def read_step_memory(path: Path) -> dict[str, float]:
    """Arm -> peak memory relative to PreNorm's, from ``step_memory.csv``; empty if not measured.

    A ``DataError`` where the columns arm and ratio are not there or hold no numbers.
    """
    if not path.exists():
        return {}
    try:
        with path.open(newline="") as file:
            return {row["arm"]: float(row["ratio"]) for row in csv.DictReader(file)}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a table of step memory ({error!r}); remove it and measure again"
        ) from None
