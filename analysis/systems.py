"""Table 5: residual systems by kind of weight and source, the paper's rows beside what the schemes say here.

The rows of the paper are data (experiments/published); ours come from results/published/schemes.json, which
``python -m repro.train.facts`` writes from the schemes themselves: one entry per arm. A scheme that names a
system of the paper fills its row, any other is listed below it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.selection import CONF
from analysis.tables import EMPTY, Column, Table
from repro.errors import DataError
from repro.runs.reading import read_json

MISSING = "not implemented yet"
WEIGHT_NOTE = (
    "weight: fixed (nothing learned), static (learned, the same for all tokens), dynamic (from activations)."
)


@dataclass(frozen=True)
class Arm:
    """An entry of schemes.json: facts as the scheme states them, counts as they were taken.

    extra_parameters: of the scheme, at the shape of the file.  state_activations (units of d) and
    state_scalars: the largest state per token between two steps, read by read.
    """

    arm: str
    label: str
    parent: str | None
    scheme: str
    system: str
    weight: str
    source: str
    update: str
    update_tex: str
    links: tuple[str, ...]
    extra_parameters: int
    state_activations: int
    state_scalars: int


@dataclass(frozen=True)
class Schemes:
    """All arms, and the shape at which they were counted."""

    num_sublayers: int
    width: int
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class System:
    """A row: the paper's cells (None where it has no such row) and the arms here that are this system."""

    name: str
    group: str
    paper: Mapping[str, str] | None
    arms: tuple[Arm, ...]

    @property
    def principal(self) -> tuple[Arm, ...]:
        """The arms that are no variant of another arm of the same system."""
        names = {arm.arm for arm in self.arms}
        return tuple(arm for arm in self.arms if arm.parent not in names)


def read_schemes(path: Path) -> Schemes:
    """schemes.json; a ``DataError`` where it is missing or not of this form."""
    try:
        found: dict[str, Any] = read_json(path)
        arms = tuple(Arm(**{**row, "links": tuple(row["links"])}) for row in found["schemes"])
        return Schemes(int(found["num_sublayers"]), int(found["width"]), arms)
    except FileNotFoundError:
        raise DataError(f"{path}: missing; python -m repro.train.facts writes it") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not the facts of schemes ({error}); python -m repro.train.facts") from None


def arms_without_facts(schemes: Schemes) -> list[str]:
    """Arms of conf/arm that the file does not know, or knows though they are gone."""
    here = {path.stem for path in (CONF / "arm").glob("*.yaml")}
    return sorted(here ^ {arm.arm for arm in schemes.arms})


def systems(paper: Path, schemes: Schemes) -> list[System]:
    """The paper's rows in its order, then systems that only exist here."""
    with paper.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    printed = {row["system"]: row for row in rows}
    names = [*printed, *dict.fromkeys(a.system for a in schemes.arms if a.system not in printed)]
    return [
        System(
            name,
            printed[name]["group"] if name in printed else "not in Table 5",
            printed.get(name),
            tuple(arm for arm in schemes.arms if arm.system == name),
        )
        for name in names
    ]


def system_table(found: Sequence[System], schemes: Schemes, title: str, *, wide: bool) -> Table:
    """A row per system; wide: with group, update rule and the definition's address."""
    columns = [
        Column("system", "system", numeric=False),
        Column("update", "update rule", numeric=False),
        Column("weight", "weight", numeric=False),
        Column("source", "source", numeric=False),
        Column("arms", "arms here", numeric=False),
        Column("parameters", "extra parameters"),
        Column("state", "state per token"),
        Column("links", "defined in", numeric=False),
    ]
    if wide:
        columns.insert(0, Column("group", "group", numeric=False))
    else:
        columns = [c for c in columns if c.key not in ("update", "source", "links")]
    notes = [
        WEIGHT_NOTE,
        f"Counts from the schemes here, exact: extra parameters at L = {schemes.num_sublayers} sublayers "
        f"and width {schemes.width} (the paper's ablation model), state as the largest between two steps, in "
        "units of the width d and scalars. Ranges over the arms named.",
        "Norms inside the sublayers are left out of the rules, as in the paper; ~ is up to normalisation.",
    ]
    return Table(title, columns, [_cells(system, wide) for system in found], notes)


def _cells(system: System, wide: bool) -> dict[str, str]:
    first = system.principal[0] if system.arms else None
    stated = system.paper or (vars(first) if first else {})
    cells = {"group": system.group, "system": system.name}
    cells |= {key: str(stated[key]) for key in ("update", "weight", "source")}
    if first is None:
        return cells | {"arms": MISSING}
    arms = [arm.arm for arm in system.principal]
    variants = len(system.arms) - len(arms)
    shown = ", ".join(arms) if wide else arms[0] + (f" (+ {len(arms) - 1})" if len(arms) > 1 else "")
    return cells | {
        "arms": shown + (f" and {variants} variants" if wide and variants else ""),
        "parameters": _range([arm.extra_parameters for arm in system.principal], exact=wide),
        "state": _states(system.principal),
        "links": ", ".join(first.links) or EMPTY,
    }


def _range(values: Sequence[int], exact: bool = True) -> str:
    low, high = (f"{value:,}" if exact else _compact(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _compact(value: int) -> str:
    """Three digits, as 3.59M."""
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return str(value)


def _states(arms: Sequence[Arm]) -> str:
    scalars = max(arm.state_scalars for arm in arms)
    return f"{_range([arm.state_activations for arm in arms])}d" + (f" + {scalars}" if scalars else "")


def arm_table(found: Sequence[System], title: str) -> Table:
    """A row per arm, by system."""
    columns = (
        Column("arm", "arm", numeric=False),
        Column("label", "text", numeric=False),
        Column("system", "system", numeric=False),
        Column("weight", "weight", numeric=False),
        Column("source", "source", numeric=False),
        Column("update", "update rule", numeric=False),
        Column("parameters", "extra parameters"),
        Column("state", "state per token"),
        Column("scheme", "class", numeric=False),
    )
    rows = [
        {
            **{
                key: str(getattr(arm, key))
                for key in ("arm", "label", "system", "weight", "source", "update")
            },
            "parameters": f"{arm.extra_parameters:,}",
            "state": _states([arm]),
            "scheme": arm.scheme.removeprefix("repro.depth."),
        }
        for system in found
        for arm in system.arms
    ]
    return Table(title, columns, rows)


def records(found: Sequence[System]) -> list[Mapping[str, object]]:
    """One record per arm, one for each system without any."""
    keys = ("arm", "label", "scheme", "extra_parameters", "state_activations", "state_scalars")
    rows: list[Mapping[str, object]] = []
    for system in found:
        paper = system.paper or {}
        for arm in system.arms or (None,):
            stated = paper if arm is None else vars(arm)
            rows.append(
                {
                    "group": system.group,
                    "system": system.name,
                    "in_paper": system.paper is not None,
                    "paper_weight": paper.get("weight"),
                    "paper_source": paper.get("source"),
                    "paper_update": paper.get("update"),
                    **{key: stated.get(key) for key in ("weight", "source", "update")},
                    **{name: None if arm is None else getattr(arm, name) for name in keys},
                    "links": None if arm is None else " ".join(arm.links),
                    "implemented": arm is not None,
                }
            )
    return rows
