"""Files of results/published that other commands write and items read."""

from __future__ import annotations

from pathlib import Path

from experiments.item import Source
from repro.runs.places import project_root


def committed(source: Source, name: str) -> Path:
    """The file among these results, or where they have none the project's; it may not exist."""
    own = source.results / "published" / name
    return own if own.exists() else project_root() / "results" / "published" / name
