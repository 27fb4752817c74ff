"""Table 1 and Fig. 3: counts in symbols, sums over a model done by hand, a pipeline walked step by step."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import io_model, pipeline_io
from analysis.counts import Count
from analysis.io_model import (
    NAMES,
    TYPICAL,
    appendix_b,
    best_group_size,
    counted,
    measured,
    naive,
    read_table1,
)
from analysis.pipeline_io import (
    CACHED,
    CACHED_OWN,
    NAIVE,
    Chunk,
    drawn_walk,
    equation_7,
    equation_8,
    even_walk,
    own_kept,
    peak,
    sent,
    walk,
)
from experiments import table1
from experiments.item import PUBLISHED_FILES, Source

PRINTED = {m.key: m for m in read_table1(PUBLISHED_FILES / "table1_io.csv")}


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("2d", {"d": 3}, 6),
        ("md+m^2", {"d": 3, "m": 4}, 28),
        ("(8m+2)d+2m^2+4m", {"d": 10, "m": 4}, 340 + 48),
        ("(N/S+5)d", {"N": 8, "S": 16, "d": 2}, 11),
        ("(N-1)d", {"N": 8, "d": 1}, 7),
        ("(2-2/S)d", {"S": 4, "d": 1}, Fraction(3, 2)),
    ],
)
def test_counts_are_read_as_printed(text: str, values: dict[str, int], expected: Fraction | int) -> None:
    assert Count.parse(text).at(values) == expected


def test_equal_counts_are_equal_however_they_are_written() -> None:
    assert Count.parse("(8m+2)d+2m^2+4m") == Count.parse("2d+4m+8dm+2mm")
    assert Count.parse("(N/S)d") != Count.parse("(S/N)d")
    assert Count.parse("2d") + Count.parse("(0-2)d") == Count(())


@pytest.mark.parametrize("text", ["", "2d)", "(2d", "2$d", "d/(a+b)"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"count|bracket|divides"):
        Count.parse(text)


def test_rows_add_up_to_the_printed_totals_and_typical_values() -> None:
    typical = {
        "standard": (3, 0),
        "mhc": (34, 48),
        "attnres_full": (24, 0),
        "attnres_block": (Fraction(11, 2), 0),
    }
    assert set(PRINTED) == set(typical)
    for key, mechanism in PRINTED.items():
        assert mechanism.total == mechanism.printed
        assert io_model.in_widths(mechanism.total, TYPICAL) == typical[key]
    assert {o.read_text for o in PRINTED["attnres_block"].operations} == {"(N/S)d", "3d"}


@given(N=st.integers(1, 12), S=st.integers(1, 12), d=st.integers(1, 5))
def test_full_is_appendix_b_summed_group_by_group(N: int, S: int, d: int) -> None:
    """Source by source: a group of S reads takes all earlier sources once, read t of it the t - 1 before."""
    L, elements = N * S, 0
    for n in range(N):
        elements += 2 * n * S * d  # keys and values of what earlier groups wrote
        for t in range(S):
            elements += 2 * t * d + 2 * d  # those of the group, and two results written
    assert PRINTED["attnres_full"].total.at({**TYPICAL, "N": N, "S": S, "d": d}) * L == elements
    assert sum(appendix_b(L, S, d).values()) == elements


@given(N=st.integers(1, 12), S=st.integers(1, 12))
def test_naive_schedules_are_sums_over_reads(N: int, S: int) -> None:
    L, full, block = N * S, 0, 0
    for l in range(1, L + 1):  # the paper's count: read l has l sources in Full
        full += 2 * l + 1
        n, i = (l - 1) // S + 1, (l - 1) % S + 1
        block += 2 * (n + (i > 1)) + 1
        block += 3 * (i > 1)  # this output joins the partial sum: two reads, one write
    totals = {m.key: m.total.at({"L": L, "N": N, "S": S, "d": 1}) * L for m in naive()}
    assert totals == {"naive_full": full, "naive_block": block}


def test_best_group_size_is_the_square_root() -> None:
    assert best_group_size(64) == ([8], 16)
    assert best_group_size(128)[0] == [8, 16]


def test_the_counted_column_is_read_where_it_exists(tmp_path: Path) -> None:
    assert measured(tmp_path / "traffic.csv", TYPICAL) == {}
    text = (
        "scheme,num_sublayers,num_blocks,block_size,execution,direction,item,total_d\n"
        "Block,128,8,16,two_phase,forward,counted,5.9\n"
        "Block,128,8,16,two_phase,backward,counted,6.9\n"
        "Block,128,8,16,per_read,forward,counted,9.3\n"
        "Block,64,8,8,two_phase,forward,counted,1.0\n"
    )
    (tmp_path / "traffic.csv").write_text(text)
    found = measured(tmp_path / "traffic.csv", TYPICAL)
    assert found == {"attnres_block": {"two_phase": 5.9, "per_read": 9.3}}
    values = {m.key: counted(m, found) for m in [*PRINTED.values(), *naive()]}
    assert values == {**dict.fromkeys(NAMES), "attnres_block": 5.9, "naive_block": 9.3}


def test_any_shape_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert io_model.main(["--sublayers", "54", "--blocks", "9", "--width", "10"]) == 0
    out = capsys.readouterr().out
    assert "6.5d" in out  # N / S + 5 = 9 / 6 + 5
    assert "150" in out  # (S + N) d = 15 * 10
    assert io_model.main(["--sublayers", "10", "--blocks", "3"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_any_pipeline_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """P = 8, V = 3, N_p = 2 by hand: 24 * 23 = 552; (28 + 2 * 64) * 2 = 312; (28 + 2 * 56) * 2 = 280."""
    assert pipeline_io.main(["--stages", "8", "--virtual-stages", "3", "--blocks-per-chunk", "2"]) == 0
    rows = [line.split()[-3:] for line in capsys.readouterr().out.splitlines()[4:7]]
    assert rows == [["552", "552", "46"], ["312", "312", "16"], ["280", "280", "14"]]
    assert pipeline_io.main(["--stages", "4", "--virtual-stages", "0"]) == 2
    error = capsys.readouterr().err
    assert error == "error: --virtual-stages=0: a whole number of at least 1\n"


def test_a_wrong_total_is_noticed() -> None:
    rendered = table1.ITEM.render(Source("published"))
    check = next(c for c in table1.ITEM.checks if "add up" in c.statement)
    assert check.test(rendered.data)[0] is True
    mhc = rendered.data.mechanisms["mhc"]
    broken = io_model.Mechanism("mhc", mhc.operations[:-1], mhc.printed)
    holds, evidence = check.test(table1.Data({"mhc": broken}, {}))
    assert (holds, evidence) == (False, "not of mhc")


@given(P=st.integers(1, 7), V=st.integers(1, 6), num_blocks=st.integers(1, 4))
def test_the_walk_is_the_equations(P: int, V: int, num_blocks: int) -> None:
    assert sent(even_walk(P, V, num_blocks, NAIVE)) == equation_7(P, V, num_blocks)
    assert sent(even_walk(P, V, num_blocks, CACHED)) == equation_8(P, V, num_blocks)
    assert sent(even_walk(P, V, num_blocks, CACHED_OWN)) == own_kept(P, V, num_blocks)
    C = P * V
    assert peak(even_walk(P, V, num_blocks, NAIVE)) == (C - 1) * num_blocks
    assert peak(even_walk(P, V, num_blocks, CACHED)) == min(P, C - 1) * num_blocks


@given(P=st.integers(1, 5), V=st.integers(1, 4), data=st.data())
def test_every_chunk_has_all_blocks_that_exist(P: int, V: int, data: st.DataObject) -> None:
    """Whatever is completed where: held and received are disjoint, together all completed before."""
    counts = data.draw(st.lists(st.integers(0, 3), min_size=P * V, max_size=P * V))
    completed, known = [], 1
    for count in counts:
        completed.append(range(known, known + count))
        known += count
    for way in (NAIVE, CACHED, CACHED_OWN):
        exists = {0}
        for c, chunk in enumerate(io_walk(P, V, completed, way)):
            if c:
                assert set(chunk.cached).isdisjoint(chunk.received)
                assert set(chunk.cached) | set(chunk.received) == exists
            exists |= set(chunk.completed)


def io_walk(P: int, V: int, completed: list[range], way: str) -> list[Chunk]:
    return walk(P, V, completed, way, at_start=(0,))


def test_the_worked_example() -> None:
    assert (sent(even_walk(4, 2, 1, NAIVE)), sent(even_walk(4, 2, 1, CACHED))) == (28, 22)
    naive_sent = [len(chunk.received) for chunk in drawn_walk(NAIVE)]
    cached_sent = [len(chunk.received) for chunk in drawn_walk(CACHED)]
    assert naive_sent == [0, 1, 2, 2, 3, 3, 4, 4]
    assert cached_sent == [0, 1, 2, 2, 2, 2, 2, 2]
    last = drawn_walk(CACHED)[-1]
    assert (last.rank, last.virtual_stage) == (3, 1)
    assert (last.cached, last.received, last.completed) == ((0, 1), (2, 3), (4,))
