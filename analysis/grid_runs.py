"""The runs of a study whose places are several settings: the sizes of a ladder, the multiples of a compute.

``analysis.selection`` chooses one setting; here each place is one, and all other settings must be alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from analysis.selection import CONF, RunRow, departures, select
from repro.errors import DataError

Places = Mapping[str, Mapping[str, Any]]  # place -> what its runs set: dotted config key -> number


def table_of_scale(folder: str, scale: str) -> dict[str, Any]:
    """``conf/<folder>/<scale>.yaml``; a ``DataError`` naming the scales that have one."""
    path = CONF / folder / f"{scale}.yaml"
    if not path.exists():
        known = sorted(
            p.relative_to(CONF / folder).with_suffix("").as_posix() for p in (CONF / folder).glob("**/*.yaml")
        )
        raise DataError(f"scale {scale} is not in conf/{folder}; those that are: {', '.join(known)}")
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def runs_by_place(
    item: str, scale: str, places: Places, runs: Sequence[RunRow]
) -> tuple[dict[str, list[RunRow]], list[str]]:
    """The runs of each place, one per arm and seeds, and notes on those left out.

    Runs that differ in anything but what the places set are another study: of several, the newest semantics,
    then the one with most cells (place and arm), then the one closest to the scale's file.  A ``DataError``
    if there is none.
    """
    keys = {key for row in places.values() for key in row}
    groups: dict[str, list[RunRow]] = {}
    for run in runs:
        if place_of(run, places) is not None:
            rest = {key: value for key, value in run.setting.items() if key not in keys}
            groups.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    if not groups:
        raise DataError(f"no runs of {item} at scale {scale}: make {item} SCALE={scale} trains them")

    def rank(group: Sequence[RunRow]) -> tuple[int, int, int]:
        cells = {(run.arm, place_of(run, places)) for run in group}
        return -int(group[0].setting["semantics"]), -len(cells), len(set(departures(group[0], scale)) - keys)

    chosen = min(groups.values(), key=rank)
    left = sum(map(len, groups.values())) - len(chosen)
    notes = [f"{left} runs under other settings are left out."] if left else []
    found = {}
    for name in places:
        own = [run for run in chosen if place_of(run, places) == name]
        if own:
            found[name], more = select(own, scale)
            notes += [f"{name}: {note}" for note in more]
    return found, notes


def place_of(run: RunRow, places: Places) -> str | None:
    """The place whose numbers a run has."""

    def fits(row: Mapping[str, Any]) -> bool:
        return all(
            key in run.setting and math.isclose(float(run.setting[key]), float(value))
            for key, value in row.items()
        )

    return next((name for name, row in places.items() if fits(row)), None)
