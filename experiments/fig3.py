"""Fig. 3 with Eqs. 7 and 8: what caching block representations saves in an interleaved pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from analysis.pipeline_figure import pipeline_figure
from analysis.pipeline_io import (
    CACHED,
    CACHED_OWN,
    NAIVE,
    drawn_walk,
    equation_7,
    equation_8,
    even_walk,
    own_kept,
    peak,
    sent,
    traffic_records,
    traffic_table,
    walk_table,
)
from experiments.item import PUBLISHED, Check, PaperItem, Rendered, Source

TITLE = "Fig. 3. Pipeline traffic of block representations"
EXAMPLE = (4, 2)
SHAPES = ((4, 1), EXAMPLE, (4, 4), (8, 1), (8, 2), (8, 4), (16, 2), (16, 4))
# Rank and virtual stage -> what it is sent and what it completes, as drawn.
DRAWN = {
    (0, 0): ((), ()), (1, 0): ((0,), (1,)), (2, 0): ((0, 1), ()), (3, 0): ((0, 1), (2,)),
    (0, 1): ((1, 2), ()), (1, 1): ((1, 2), (3,)), (2, 1): ((2, 3), ()), (3, 1): ((2, 3), (4,)),
}  # fmt: skip


def render(_: Source) -> Rendered:
    """The walk of the example and the closed forms at several shapes."""
    drawn = {way: sent(drawn_walk(way)) for way in (NAIVE, CACHED, CACHED_OWN)}
    closed = traffic_table(
        SHAPES,
        f"{TITLE}: units of N_p d per token",
        [
            "P physical stages, V virtual stages on each, C = P V chunks; each completes N_p blocks of "
            "d elements per token. Exact counts: no interval. The embedding, partial sums and hidden states "
            "travel too and are not in the equations.",
            "A peak falls from C - 1 to P, about V times. A chunk's own blocks are sent back to its rank "
            "once in Eq. 8; keeping them as well (not in the paper) gives P (P - 1) / 2 + (V - 1) P (P - 1).",
        ],
    )
    example = walk_table(
        drawn_walk(CACHED),
        "The drawn example, cached: P = 4, V = 2",
        [
            "Each AttnRes block spans two stages (the figure's footnote 1), and b0 is sent like any "
            f"block: {drawn[NAIVE]} blocks naive, {drawn[CACHED]} cached. The caption's 28 and 22 are Eqs. 7 "
            "and 8 with one block per chunk and without b0; both save six.",
        ],
    )
    return Rendered(
        traffic_records(SHAPES),
        [closed, example],
        [closed, example],
        pipeline_figure(drawn_walk(CACHED), (4, 8, 16), 6),
    )


def _equals(P: int, V: int, way: str, expected: int) -> Callable[[Any], tuple[bool | None, str]]:
    def test(_: Any) -> tuple[bool | None, str]:
        form = {NAIVE: equation_7, CACHED: equation_8, CACHED_OWN: own_kept}[way](P, V, 1)
        walked = sent(even_walk(P, V, 1, way))
        return walked == form == expected, f"walked {walked}, equation {form}"

    return test


def _as_drawn(_: Any) -> tuple[bool | None, str]:
    wrong = [
        (chunk.rank, chunk.virtual_stage)
        for chunk in drawn_walk(CACHED)
        if (chunk.received, chunk.completed) != DRAWN[chunk.rank, chunk.virtual_stage]
    ]
    return not wrong, "all eight chunks" if not wrong else f"not at (rank, virtual stage) {wrong}"


def _peaks(_: Any) -> tuple[bool | None, str]:
    P, V = EXAMPLE
    naive, cached = peak(even_walk(P, V, 1, NAIVE)), peak(even_walk(P, V, 1, CACHED))
    return (naive, cached) == (P * V - 1, P), f"{naive} to {cached} blocks, {naive / cached:.2f} times"


ITEM = PaperItem(
    name="fig3",
    title=TITLE,
    claim=(
        "Keeping received blocks on each rank cuts the traffic of an interleaved pipeline; "
        "with four stages and two virtual stages from 28 to 22 blocks, the peak of a transition by about V."
    ),
    experiment=None,
    arms=(),
    render=render,
    checks=(
        Check("Without caches 28 N_p d are sent at P = 4, V = 2.", _equals(4, 2, NAIVE, 28)),
        Check("With caches 22 N_p d.", _equals(4, 2, CACHED, 22)),
        Check("Each stage holds, receives and completes what the figure draws.", _as_drawn),
        Check("The peak per transition falls from C - 1 to P blocks.", _peaks),
        Check(
            "A rank that kept its own blocks too would need 18 (not in the paper).",
            _equals(4, 2, CACHED_OWN, 18),
        ),
    ),
    scales=(PUBLISHED,),
    order=3,
)
