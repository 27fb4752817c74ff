"""The verdict table: one row for each statement of the paper and each scale that has runs for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis.report_contents import PUBLISHED, Item, Outcome, Rendering
from analysis.report_evidence import Evidence, read_evidence

HOLDS, FAILS, OPEN = "holds", "fails", "open"


@dataclass(frozen=True)
class VerdictRow:
    """paper: the evidence on the paper's own numbers, paper_verdict what it decides; the rest is ours.

    scale, seeds, ours and verdict are empty where nothing of ours speaks to the statement.
    """

    item: Item
    statement: str
    paper: str
    paper_verdict: str
    scale: str = ""
    seeds: str = ""
    ours: Evidence | None = None
    verdict: str = ""


def verdict(holds: bool | None) -> str:
    """The word for an outcome."""
    return OPEN if holds is None else HOLDS if holds else FAILS


def seeds_text(rendering: Rendering) -> str:
    """``3 seeds``, ``1 to 3 seeds`` by arm, or nothing where no run stands behind the numbers."""
    if rendering.num_seeds is None:
        return "no runs"
    low, high = rendering.num_seeds
    return f"{low} to {high} seeds" if low != high else f"{low} seed" + ("s" if low != 1 else "")


def rows(items: Sequence[Item]) -> Iterator[VerdictRow]:
    """Rows in the order of items and statements.

    An outcome at another scale that is the published one word for word is about the paper's numbers, not
    about runs, and makes no row of its own.
    """
    for item in items:
        published = item.at(PUBLISHED)
        of_paper = {outcome.statement: outcome for outcome in published.outcomes} if published else {}
        of_ours: dict[str, list[tuple[Rendering, Outcome]]] = {statement: [] for statement in of_paper}
        for rendering in item.renderings:
            for outcome in rendering.outcomes:
                if rendering.scale != PUBLISHED and outcome != of_paper.get(outcome.statement):
                    of_ours.setdefault(outcome.statement, []).append((rendering, outcome))
        for statement, found in of_ours.items():
            paper = of_paper.get(statement)
            text, word = (paper.evidence, verdict(paper.holds)) if paper else ("", "")
            if not found:
                yield VerdictRow(item, statement, text, word)
            for rendering, outcome in found:
                evidence = read_evidence(outcome.evidence)
                yield VerdictRow(
                    item,
                    statement,
                    text or evidence.paper,
                    word,
                    rendering.scale,
                    seeds_text(rendering),
                    evidence,
                    verdict(outcome.holds),
                )


def split(table: Sequence[VerdictRow]) -> tuple[list[VerdictRow], list[VerdictRow]]:
    """Rows that runs speak to or will have to, and those that the paper's own numbers decide alone."""
    alone = [row for row in table if not row.scale and row.paper_verdict != OPEN]
    return [row for row in table if row.scale or row.paper_verdict == OPEN], alone


def counts(table: Sequence[VerdictRow], scales: Sequence[str]) -> list[tuple[str, int, int, int]]:
    """Per scale: how many statements hold, fail and are open; ``published`` counts the paper's numbers."""
    found = []
    for scale in scales:
        if scale == PUBLISHED:
            once = {(row.item.name, row.statement): row.paper_verdict for row in table}
            words = list(once.values())
        else:
            words = [row.verdict for row in table if row.scale == scale]
        found.append((scale, words.count(HOLDS), words.count(FAILS), words.count(OPEN)))
    return found
