"""Table 1: memory traffic of residual mechanisms per token and sublayer, beside what our kernels move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from analysis.counts import Count
from analysis.io_figure import io_figure
from analysis.io_model import (
    TYPICAL,
    Mechanism,
    appendix_b,
    best_group_size,
    counted,
    in_widths,
    measured,
    naive,
    read_table1,
    records,
    shape,
    table,
)
from experiments.committed import committed
from experiments.item import PUBLISHED, PUBLISHED_FILES, Check, PaperItem, Rendered, Source

TITLE = "Table 1. Memory traffic per token and sublayer"
DEPTHS = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Data:
    """Mechanisms by key and what was counted."""

    mechanisms: dict[str, Mechanism]
    found: dict[str, dict[str, float]]


def render(source: Source) -> Rendered:
    """The printed rows, the naive schedules, and the counted column."""
    letters = shape(TYPICAL["L"], TYPICAL["N"], TYPICAL["m"])
    mechanisms = [*read_table1(PUBLISHED_FILES / "table1_io.csv"), *naive()]
    found = measured(committed(source, "traffic.csv"), letters)
    text = table(mechanisms, letters, found, f"{TITLE}, L = 128, N = 8, S = 16, m = 4", _notes(found))
    return Rendered(
        records=records(mechanisms, letters, found),
        text=[text],
        terminal=[text],
        figure=io_figure(mechanisms, letters, found, DEPTHS),
        data=Data({m.key: m for m in mechanisms}, found),
    )


def _notes(found: dict[str, dict[str, float]]) -> Sequence[str]:
    sizes, least = best_group_size(TYPICAL["L"])
    notes = [
        "Elements per token and sublayer, d the width; keys and values are counted apart, a sublayer's own "
        "traffic not at all. paper: its typical value for this shape. Exact formulas: no interval.",
        "The caption averages amortised costs over the N layers of a block; a block has S sublayers, so N "
        "should read S there (the formulas have S).",
        "mHC's 48 further scalars (2m^2 + 4m) are left out of the paper's 34d.",
        f"Appendix B: Full needs (S + N)d, least at S = sqrt(L) = {TYPICAL['L'] ** 0.5:.1f} ({least:.1f}d); "
        f"of the divisors of {TYPICAL['L']} at S = {' and '.join(map(str, sizes))}.",
        "Naive schedules (no rows of the paper) in the same account: read by read, all sources as keys and "
        "as values. Section 4.2 has O(L)d for Full and O(LN) over the model for Block.",
        "Any other shape: python -m analysis.io_model --sublayers 54 --blocks 9 --streams 4 --width 2304",
    ]
    if found:
        notes.append(
            "counted: loads and stores of our Triton kernels in one forward pass (make traffic), a source "
            "read once for key and value, scores and partial sums included; naive rows: single reads. The "
            "count is deterministic."
        )
    return notes


def _typical(key: str, expected: str) -> Any:
    def test(data: Data) -> tuple[bool | None, str]:
        of_width, rest = in_widths(data.mechanisms[key].total, TYPICAL)
        holds = of_width == Fraction(expected)
        return holds, f"{float(of_width):g}d" + (f" and {float(rest):g} scalars" if rest else "")

    return test


def _sums(data: Data) -> tuple[bool | None, str]:
    wrong = [m.key for m in data.mechanisms.values() if m.printed is not None and m.total != m.printed]
    return not wrong, "as polynomials" if not wrong else f"not of {', '.join(wrong)}"


def _appendix_b(data: Data) -> tuple[bool | None, str]:
    L, S = TYPICAL["L"], TYPICAL["S"]
    whole = sum(appendix_b(L, S).values())
    expected = data.mechanisms["attnres_full"].total.at({**TYPICAL, "d": 1}) * L
    return whole == expected, f"{whole} elements of d over {L} sublayers, {whole / L:g}d each"


def _counted(data: Data) -> tuple[bool | None, str]:
    pairs = {key: counted(data.mechanisms[key], data.found) for key in ("attnres_full", "attnres_block")}
    if None in pairs.values():
        return None, "not counted here (make traffic)"
    limits = {key: float(in_widths(data.mechanisms[key].total, TYPICAL)[0]) for key in pairs}
    evidence = ", ".join(f"{key} {value:.2f}d of {limits[key]:g}d" for key, value in pairs.items())
    return all(value is not None and value <= 1.1 * limits[key] for key, value in pairs.items()), evidence


def _is_linear(key: str, letter: str, slope: str) -> Any:
    def test(data: Data) -> tuple[bool | None, str]:
        growth, _ = data.mechanisms[key].total.split(letter)
        return growth == Count.parse(slope), f"({slope}) per {letter}"

    return test


ITEM = PaperItem(
    name="table1",
    title=TITLE,
    claim=(
        "Block AttnRes in two phases moves 5.5d per token and sublayer, near the 3d of a plain residual; mHC "
        "with four streams moves 34d, Full in two phases 24d."
    ),
    experiment=None,
    arms=(),
    render=render,
    checks=(
        Check("The operations of each mechanism add up to its printed total.", _sums),
        Check("A standard residual moves 3d.", _typical("standard", "3")),
        Check("mHC with 4 streams moves 34d.", _typical("mhc", "34")),
        Check("Full in two phases moves 24d.", _typical("attnres_full", "24")),
        Check("Block in two phases moves 5.5d.", _typical("attnres_block", "11/2")),
        Check("Appendix B, summed group by group, gives Full's (S + N)d.", _appendix_b),
        Check("Naive Full grows linearly with the depth.", _is_linear("naive_full", "L", "d")),
        Check("What our kernels move is within 10 % of the two-phase rows or below.", _counted),
    ),
    scales=(PUBLISHED,),
    order=1,
)
