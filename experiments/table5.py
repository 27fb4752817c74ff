"""Table 5: residual systems by state, weight and source, filled in by the schemes that exist here."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.systems import (
    MISSING,
    System,
    arm_table,
    arms_without_facts,
    read_schemes,
    records,
    system_table,
    systems,
)
from analysis.systems_figure import systems_figure
from experiments.committed import committed
from experiments.item import PUBLISHED, PUBLISHED_FILES, Check, PaperItem, Rendered, Source

TITLE = "Table 5. Residual systems"


def render(source: Source) -> Rendered:
    """The paper's rows with ours beside them, then all arms."""
    schemes = read_schemes(committed(source, "schemes.json"))
    found = systems(PUBLISHED_FILES / "table5_systems.csv", schemes)
    wide = system_table(found, schemes, TITLE, wide=True)
    narrow = system_table(found, schemes, TITLE, wide=False)
    return Rendered(
        records=records(found),
        text=[wide, arm_table(found, "All arms here")],
        terminal=[narrow],
        figure=systems_figure(found, schemes),
        data=(found, arms_without_facts(schemes)),
    )


Data = tuple[Sequence[System], Sequence[str]]


def _weights_agree(data: Data) -> tuple[bool | None, str]:
    both = [system for system in data[0] if system.paper and system.arms]
    wrong = [s.name for s in both if {arm.weight for arm in s.arms} != {(s.paper or {})["weight"]}]
    return not wrong, f"{len(both)} systems" if not wrong else f"not {', '.join(wrong)}"


def _all_implemented(data: Data) -> tuple[bool | None, str]:
    paper = [system for system in data[0] if system.paper]
    missing = [system.name for system in paper if not system.arms]
    if missing:
        return None, f"{MISSING}: {', '.join(missing)}"
    return True, f"all {len(paper)}"


def _is_current(data: Data) -> tuple[bool | None, str]:
    return not data[1], f"differs in {', '.join(data[1])}" if data[1] else "all arms"


ITEM = PaperItem(
    name="table5",
    title=TITLE,
    claim=(
        "Residual systems differ in what a sublayer may draw on (one state, several streams, all earlier "
        "outputs) and in whether the weights are fixed, learned or computed from the input."
    ),
    experiment=None,
    arms=(),
    render=render,
    checks=(
        Check("Weights are of the kind that the paper says, for every system here.", _weights_agree),
        Check("Every system of the table can be trained here.", _all_implemented),
        Check("The facts are those of the arms that exist (python -m repro.train.facts).", _is_current),
    ),
    scales=(PUBLISHED,),
    order=5,
)
