"""How the reads of a schedule are grouped, and which piece of which score every mix uses."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.depth.attnres import AttnRes
from repro.depth.boundaries import SourcePlan
from repro.depth.phased import READS_PER_GROUP, READS_PER_GROUP_OF_FULL
from tests.gold import walk
from tests.toy import normal

Levels = Sequence[Sequence[range]]


def complete(ends: Sequence[int], l: int) -> int:
    """Sources that are complete at read l: the embedding and the blocks that have ended."""
    return 1 + len([end for end in ends if end <= l])


def mixes(ends: Sequence[int], levels: Levels, num_reads: int) -> Iterator[tuple[int, range, range]]:
    """Every mix as (read at which it happens, sources, reads), as Algorithm 1 would go through the levels.

    At its first read a group of several mixes what is complete by then and what no group around it has mixed;
    a read mixes what is left.
    """
    for l in range(num_reads):
        mixed = 0
        for level in levels:
            group = level[l]
            if len(group) > 1:
                available = complete(ends, group.start)
                if l == group.start and available > mixed:
                    yield l, range(mixed, available), range(l, min(group.stop, num_reads))
                mixed = max(mixed, available)
        if complete(ends, l) > mixed:
            yield l, range(mixed, complete(ends, l)), range(l, l + 1)


ends_of_blocks = st.lists(st.integers(1, 5), min_size=1, max_size=12).map(
    lambda sizes: tuple(itertools.accumulate(sizes))
)
sizes_of_groups = st.one_of(
    st.just(READS_PER_GROUP), st.lists(st.integers(1, 12), max_size=3).map(lambda s: sorted(s, reverse=True))
)


@settings(max_examples=150, deadline=None)
@given(ends=ends_of_blocks, sizes=sizes_of_groups, output_read=st.booleans())
def test_every_pair_of_read_and_source_is_mixed_once_from_one_piece(
    ends: tuple[int, ...], sizes: Sequence[int], output_read: bool
) -> None:
    plan, num_reads = SourcePlan(ends), ends[-1] + output_read
    levels = plan.levels(sizes)
    pieces = [plan.pieces(source, levels, num_reads) for source in range(len(ends) + 1)]
    used: Counter[tuple[int, int]] = Counter()
    taken: Counter[tuple[int, int]] = Counter()
    for start, sources, reads in mixes(ends, levels, num_reads):
        for source in sources:
            scored, cut = pieces[source]
            offsets = dict(
                zip(
                    [first for first, _ in cut], itertools.accumulate([0, *(n for _, n in cut)]), strict=False
                )
            )
            # The piece that begins with this mix has its reads and no others, in their order.
            assert dict(cut)[start] == len(reads)
            assert list(scored[offsets[start] : offsets[start] + len(reads)]) == list(reads)
            taken[source, start] += 1
            used.update((l, source) for l in reads)
    assert used == Counter((l, i) for l in range(num_reads) for i in range(complete(ends, l)))
    assert taken == Counter((source, first) for source, (_, cut) in enumerate(pieces) for first, _ in cut)


@settings(max_examples=150, deadline=None)
@given(ends=ends_of_blocks, sizes=sizes_of_groups)
def test_levels_are_nested_partitions_that_start_with_blocks(
    ends: tuple[int, ...], sizes: Sequence[int]
) -> None:
    levels = SourcePlan(ends).levels(sizes)
    for depth, level in enumerate(levels):
        assert len(level) == ends[-1] + 1
        assert all(l in group for l, group in enumerate(level))
        assert all(level[i] == group for group in level for i in group)
        assert {group.start for group in level} <= {0, *ends}
        above = levels[depth - 1] if depth else [range(ends[-1] + 1)] * (ends[-1] + 1)
        assert all(set(group) <= set(above[group.start]) for group in level)
        # A level is there for a reason: some group of several reads is not one of the level above.
        assert depth == 0 or any(len(g) > 1 and g != above[g.start] for g in level)


@pytest.mark.parametrize(("num_sublayers", "block_size"), [(8, 1), (20, 1), (21, 2), (12, 4), (3, 5)])
def test_the_mixer_makes_these_mixes(
    num_sublayers: int, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    mix = AttnRes._mix

    def noted(self: AttnRes, state: Any, sources: Sequence[int], piece: int, *rest: Any) -> Any:
        made.append((piece, list(sources), len(rest[-1])))
        return mix(self, state, sources, piece, *rest)

    monkeypatch.setattr(AttnRes, "_mix", noted)
    mixer = AttnRes(num_sublayers, 4, block_size=block_size, execution="two_phase")
    walk(mixer, normal("embedding", 2, 4), [normal(f"output {l}", 2, 4) for l in range(num_sublayers)])
    ends = (*range(block_size, num_sublayers, block_size), num_sublayers)
    sizes = READS_PER_GROUP_OF_FULL if len(ends) == num_sublayers else READS_PER_GROUP
    expected = mixes(ends, SourcePlan(ends).levels(sizes), num_sublayers + 1)
    assert made == [(start, list(sources), len(reads)) for start, sources, reads in expected]


def test_full_attention_over_eight_sublayers() -> None:
    """As the model runs it: the embedding at once for all reads, then sources 1 to 4 for reads 4 to 8."""
    plan = SourcePlan(tuple(range(1, 9)))
    levels = plan.levels((8, 4))
    first, second = range(0, 4), range(4, 9)
    assert levels == ((range(0, 9),) * 9, (first,) * 4 + (second,) * 5)
    assert list(mixes(plan.ends, levels, 9)) == [
        (0, range(0, 1), range(0, 9)),
        (1, range(1, 2), range(1, 2)),
        (2, range(1, 3), range(2, 3)),
        (3, range(1, 4), range(3, 4)),
        (4, range(1, 5), range(4, 9)),
        (5, range(5, 6), range(5, 6)),
        (6, range(5, 7), range(6, 7)),
        (7, range(5, 8), range(7, 8)),
        (8, range(5, 9), range(8, 9)),
    ]
    assert [plan.pieces(source, levels, 9) for source in range(9)] == [
        ((0, 1, 2, 3, 4, 5, 6, 7, 8), ((0, 9),)),
        ((1, 2, 3, 4, 5, 6, 7, 8), ((1, 1), (2, 1), (3, 1), (4, 5))),
        ((2, 3, 4, 5, 6, 7, 8), ((2, 1), (3, 1), (4, 5))),
        ((3, 4, 5, 6, 7, 8), ((3, 1), (4, 5))),
        ((4, 5, 6, 7, 8), ((4, 5),)),
        ((5, 6, 7, 8), ((5, 1), (6, 1), (7, 1), (8, 1))),
        ((6, 7, 8), ((6, 1), (7, 1), (8, 1))),
        ((7, 8), ((7, 1), (8, 1))),
        ((8,), ((8, 1),)),
    ]


@pytest.mark.parametrize(
    ("ends", "sizes", "expected"),
    [
        ((2, 4, 6), (4, 2), [[(0, 4), (4, 7)], [(0, 2), (2, 4), (4, 7)]]),  # the output read joins the last
        ((3, 6), (8, 4), [[(0, 7)]]),  # an inner level with no group of its own is left out
        ((1, 2), (1, 1), [[(0, 1), (1, 3)]]),  # the output read alone makes a group of the last read
        ((1,), (1,), [[(0, 2)]]),
        ((4, 8), (), []),
    ],
)
def test_levels_by_hand(
    ends: tuple[int, ...], sizes: tuple[int, ...], expected: list[list[tuple[int, int]]]
) -> None:
    found = SourcePlan(ends).levels(sizes)
    assert [list(dict.fromkeys((group.start, group.stop) for group in level)) for level in found] == expected
