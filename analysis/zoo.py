"""All residual systems side by side: what each gains on PreNorm, what it costs, and the group it belongs to.

Groups are those of the paper's Table 5. An arm is in the group of its system (``results/published/
schemes.json``); variations of AttnRes stand in a group of their own, systems that Table 5 does not list
under related work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.ablation import BASELINE, AblationTable, ArmRow
from analysis.multiplicity import holm
from analysis.paired_t import p_value
from analysis.stats import MIN_SEEDS, Interval
from analysis.step_time import StepTime

RELATIVES, RELATED, UNKNOWN = "AttnRes relatives", "related work", "no facts yet"
_METHOD = "AttnRes"


@dataclass(frozen=True)
class Member:
    """An arm of the zoo before any run: text, the arm it varies, its system; "" where the facts lack it.

    scheme: dotted name of its class.
    """

    arm: str
    label: str
    parent: str | None
    system: str
    scheme: str = ""

    @property
    def module(self) -> str:
        """The file of its class."""
        return self.scheme.rpartition(".")[0]


@dataclass(frozen=True)
class Entry:
    """A row: losses as in ``AblationTable``, costs relative to PreNorm's, parameters beside PreNorm's.

    p_holm: paired t test against zero, Holm over all rows of three seeds or more; None under that.
    """

    group: str
    system: str
    row: ArmRow
    step_time: StepTime | None
    memory: float | None
    extra_parameters: int | None
    p_holm: float | None

    @property
    def difference(self) -> Interval | None:
        """Loss minus PreNorm's, nats per token; None without a finished pair."""
        return self.row.to_prenorm.ours if self.row.to_prenorm else None

    @property
    def outcome(self) -> str | None:
        """What excludes zero: ``better``, ``worse``, else ``open``; None under three seeds."""
        ours = self.difference
        if ours is None or ours.kind != "seeds" or ours.n < MIN_SEEDS:
            return None
        return "better" if ours.high < 0 else "worse" if ours.low > 0 else "open"


@dataclass(frozen=True)
class Zoo:
    """All entries of one scale, group after group."""

    scale: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """The groups that have entries, in order."""
        return list(dict.fromkeys(entry.group for entry in self.entries))

    def entry(self, arm: str) -> Entry | None:
        """The entry of an arm."""
        return next((entry for entry in self.entries if entry.row.spec.name == arm), None)

    @property
    def seeds_text(self) -> str:
        """How many seeds the finished arms have: ``1 seed``, ``1 to 3 seeds``."""
        counts = {len(entry.row.done) for entry in self.entries if entry.row.done} or {0}
        low, high = min(counts), max(counts)
        return (f"{low} to {high}" if low < high else f"{high}") + f" seed{'s' * (high != 1)}"


def group_of(arm: str, members: Mapping[str, Member], printed: Mapping[str, str]) -> str:
    """The group of an arm; printed: system -> group of the paper's Table 5.

    A system of AttnRes is a relative if it is not printed, or if the arm varies another one of the printed
    system; so is whatever varies an AttnRes arm. Any other system that is not printed goes with those of its
    file that are (static HC with HC), else to related work.
    """
    member = members[arm]
    ancestors = _ancestors(member, members)
    varies_method = any(_METHOD in ancestor.system for ancestor in ancestors)
    if _METHOD in member.system and (member.system not in printed or varies_method):
        return RELATIVES
    if member.system in printed:
        return printed[member.system]
    if varies_method:
        return RELATIVES
    siblings = [m for m in members.values() if m.module == member.module != "" and m.system in printed]
    if siblings:
        return printed[siblings[0].system]
    return RELATED if member.system else UNKNOWN


def ordered(members: Sequence[Member], printed: Mapping[str, str]) -> list[tuple[str, Member]]:
    """(group, member) in the order of the groups, then of the paper's systems, then of names."""
    by_name = {member.arm: member for member in members}
    groups = [*dict.fromkeys(printed.values()), RELATIVES, RELATED, UNKNOWN]
    systems = list(printed)

    def place(item: tuple[str, Member]) -> tuple[int, int, str, str]:
        group, member = item
        known = systems.index(member.system) if member.system in printed else len(systems)
        return groups.index(group), known, member.system, member.arm

    return sorted(((group_of(m.arm, by_name, printed), m) for m in members), key=place)


def zoo(
    table: AblationTable,
    order: Sequence[tuple[str, Member]],
    step_times: Mapping[str, StepTime],
    memory: Mapping[str, float],
) -> Zoo:
    """The rows of a table in the order and groups of ``ordered``, with their costs."""
    base = table.row(BASELINE).parameters
    rows = {row.spec.name: row for row in table.rows}
    adjusted = _holm(table.rows)
    entries = []
    for group, member in order:
        row = rows[member.arm]
        extra = None if base is None or row.parameters is None else row.parameters - base
        entries.append(
            Entry(
                group,
                member.system,
                row,
                step_times.get(member.arm),
                memory.get(member.arm),
                extra,
                adjusted.get(member.arm),
            )
        )
    return Zoo(table.scale, tuple(entries), table.notes)


def _ancestors(member: Member, members: Mapping[str, Member]) -> list[Member]:
    found: list[Member] = []
    while member.parent in members and len(found) <= len(members):
        member = members[member.parent]  # type: ignore[index]
        found.append(member)
    return found


def _holm(rows: Sequence[ArmRow]) -> dict[str, float]:
    tested = [row for row in rows if row.to_prenorm and len(row.to_prenorm.differences) >= MIN_SEEDS]
    values = holm([p_value(row.to_prenorm.differences) for row in tested if row.to_prenorm])
    return {row.spec.name: float(p) for row, p in zip(tested, values, strict=True)}
