"""The zoo (not in the paper): every residual system that it names, trained side by side on the same data."""

from __future__ import annotations

import csv
import math
import re
from fnmatch import fnmatch

import yaml

from analysis import zoo_view
from analysis.ablation import ArmSpec, ablation_table
from analysis.selection import CONF
from analysis.step_memory import read_step_memory
from analysis.step_time import how_measured
from analysis.systems import read_schemes
from analysis.zoo import Member, Zoo, ordered, zoo
from analysis.zoo_figure import zoo_figure
from experiments.committed import committed
from experiments.item import PUBLISHED_FILES, Check, PaperItem, Rendered, Source
from experiments.table4 import specs as table4_specs
from repro.errors import DataError

NAME = "zoo"
TITLE = "Residual systems side by side"
SLOW = 2.5  # times PreNorm's step


def arms() -> tuple[str, ...]:
    """The arms that the sweep's glob takes: those of conf/arm without the excluded ones, by name."""
    path = CONF / "experiment" / f"{NAME}.yaml"
    swept = yaml.safe_load(path.read_text(encoding="utf-8"))["hydra"]["sweeper"]["params"]["arm"]
    found = re.fullmatch(r"glob\(\*,\s*exclude=\[([^]]*)\]\)", swept)
    if found is None:
        raise DataError(f"{path}: arm must be glob(*,exclude=[...])")
    excluded = [name.strip() for name in found[1].split(",")]
    names = sorted(file.stem for file in (CONF / "arm").glob("*.yaml"))
    return tuple(name for name in names if not any(fnmatch(name, pattern) for pattern in excluded))


def members(source: Source) -> list[Member]:
    """The arms with label and parent as their YAML says, and their system as the scheme says."""
    systems = {arm.arm: arm.system for arm in read_schemes(committed(source, "schemes.json")).arms}
    found = []
    for name in arms():
        arm = yaml.safe_load((CONF / "arm" / f"{name}.yaml").read_text(encoding="utf-8"))
        scheme = arm["mixer"]["_target_"]
        found.append(Member(name, arm["label"], arm["parent"], systems.get(name, ""), scheme))
    return found


def printed_groups() -> dict[str, str]:
    """System -> group of the paper's Table 5, in its order."""
    with (PUBLISHED_FILES / "table5_systems.csv").open(encoding="utf-8", newline="") as file:
        return {row["system"]: row["group"] for row in csv.DictReader(file)}


def measured(source: Source) -> tuple[Zoo, list[str]]:
    """The runs of one scale with step times and memory, and how these were measured."""
    found = members(source)
    paper = {spec.name: spec.paper_loss for spec in table4_specs()}
    specs = [ArmSpec(m.arm, m.label, m.parent, paper.get(m.arm, math.nan)) for m in found]
    runs, notes = source.select(NAME, arms())
    times = source.step_times()
    memory = read_step_memory(source.results / source.scale / "step_memory.csv")
    order = ordered(found, printed_groups())
    data = zoo(ablation_table(source.scale, specs, runs, times, notes), order, times, memory)
    own = [times[m.arm] for m in found if m.arm in times]
    how = [how_measured(own)] if own else [_absent("step ×", "repro.train.step_time", source.scale)]
    how.append(
        "memory ×: most bytes that live at once in a training step, weights and optimizer state included, "
        "relative to PreNorm's, counted by the allocator."
        if memory
        else _absent("memory ×", "repro.bench.step_memory", source.scale)
    )
    if lacking := [m.arm for m in found if not m.system]:
        how.append(f"Without facts (python -m repro.train.facts): {', '.join(lacking)}.")
    return data, how


def render(source: Source) -> Rendered:
    """One table and one picture over all of them."""
    data, how = measured(source)
    title = f"{TITLE} (scale {source.scale}, {data.seeds_text})"
    notes = [*zoo_view.standing_notes(data), *how, *data.notes]
    return Rendered(
        records=zoo_view.records(data),
        text=zoo_view.tables(data, title, notes, wide=True),
        terminal=zoo_view.tables(data, title, notes, wide=False),
        figure=zoo_figure(data, title),
        runs=[run for entry in data.entries for run in entry.row.runs],
        data=data,
    )


def _absent(what: str, module: str, scale: str) -> str:
    return f"{what} is not measured here: python -m {module} experiment={NAME} scale={scale}"


def _all_trained(data: Zoo) -> tuple[bool | None, str]:
    finished = ("done", "diverged")
    lacking = [e.row.spec.name for e in data.entries if not any(r.status in finished for r in e.row.runs)]
    if lacking:
        return None, f"no result: {', '.join(lacking)}"
    return True, f"{len(data.entries)} arms"


def _all_finite(data: Zoo) -> tuple[bool | None, str]:
    lost = [e.row.spec.name for e in data.entries if any(run.status == "diverged" for run in e.row.runs)]
    return not lost, f"diverged: {', '.join(lost)}" if lost else "none diverged"


def _fast_enough(data: Zoo) -> tuple[bool | None, str]:
    times = {e.row.spec.name: e.step_time.ratio for e in data.entries if e.step_time}
    if not times:
        return None, "not measured"
    slow = [f"{arm} {ratio:.2f}" for arm, ratio in times.items() if ratio > SLOW]
    return not slow, ", ".join(slow) if slow else f"{len(times)} arms, slowest {max(times.values()):.2f}"


ITEM = PaperItem(
    name=NAME,
    title=TITLE,
    claim=(
        "Not a table of the paper, which names these systems (Table 5, related work) and trains three of "
        "them: all on the same data, initialisation and budget."
    ),
    experiment=NAME,
    arms=arms(),
    render=render,
    checks=(
        Check("Every system has a result.", _all_trained),
        Check("Every system trains without tuning.", _all_finite),
        Check(f"No step takes more than {SLOW:g} times PreNorm's.", _fast_enough),
    ),
    scales=tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))),
    order=6.7,
)
