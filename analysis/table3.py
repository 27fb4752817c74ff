"""Table 3 as published: PreNorm and Block at 48B, with the interval that the number of questions implies.

The paper prints no interval. Where a benchmark's size is public knowledge, the half-width shown is ours: two
proportions of that many questions, taken as independent. Both models answer the same questions, so it is
wider
than a paired one would be; it says nothing about the spread over training runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis import style
from analysis.binomial import sign_test, unpaired_half_width
from analysis.tables import Column, Table


@dataclass(frozen=True)
class Benchmark:
    """One row: accuracies in percent; questions where the size is known."""

    group: str
    name: str
    prenorm: float
    block: float
    questions: int | None

    @property
    def difference(self) -> float:
        """Block minus PreNorm in points, as printed."""
        return round(self.block - self.prenorm, 1)

    @property
    def half_width(self) -> float | None:
        """Half the 95 % interval of the difference in points, ours; None where the size is not known."""
        if self.questions is None:
            return None
        return 100 * unpaired_half_width(self.block / 100, self.prenorm / 100, self.questions)


def benchmarks(rows: Sequence[Mapping[str, str]], sizes: Sequence[Mapping[str, str]]) -> list[Benchmark]:
    """The csv files as rows."""
    known = {row["benchmark"]: row["questions"] for row in sizes}
    return [
        Benchmark(
            row["group"],
            row["benchmark"],
            float(row["prenorm"]),
            float(row["block"]),
            int(known[row["benchmark"]]) if known.get(row["benchmark"]) else None,
        )
        for row in rows
    ]


def outcomes(rows: Sequence[Benchmark]) -> tuple[int, int, int]:
    """(better, tied, worse) under Block, as printed."""
    signs = [(row.difference > 0) - (row.difference < 0) for row in rows]
    return signs.count(1), signs.count(0), signs.count(-1)


def records(rows: Sequence[Benchmark]) -> list[dict[str, object]]:
    """One csv row per benchmark."""
    return [
        {
            "group": row.group,
            "benchmark": row.name,
            "prenorm": row.prenorm,
            "block": row.block,
            "difference": row.difference,
            "questions": row.questions,
            "half_width_ours": None if row.half_width is None else round(row.half_width, 2),
        }
        for row in rows
    ]


def table(rows: Sequence[Benchmark], title: str) -> Table:
    """The paper's columns and the difference."""
    better, tied, worse = outcomes(rows)
    ties = ", ".join(row.name for row in rows if row.difference == 0)
    beyond = [row.name for row in rows if row.half_width is not None and row.difference > row.half_width]
    sized = sum(row.half_width is not None for row in rows)
    cells = [
        {
            "group": row.group,
            "benchmark": row.name,
            "prenorm": f"{row.prenorm:.1f}",
            "block": f"{row.block:.1f}",
            "difference": "0.0" if row.difference == 0 else f"{row.difference:+.1f}".replace("-", "−"),
            **({} if row.half_width is None else {"half": f"±{row.half_width:.1f}"}),
            **({} if row.questions is None else {"questions": f"{row.questions:,}"}),
        }
        for row in rows
    ]
    notes = [
        "Published: accuracy in percent, 48B parameters (3B activated), 1.4T tokens, one run per column; "
        "the paper "
        "prints no interval, so no verdict.",
        f"Block is better on {better} of {len(rows)}, tied on {tied} ({ties}), worse on {worse}; sign "
        "test over "
        f"benchmarks p = {sign_test(better, worse):.4f} (they share one pair of runs, so they are not "
        "independent). The abstract says all tasks improve; the text says match or improve.",
        "95 % half-width: ours, from the number of questions where that is public, both columns taken as "
        "independent; an upper bound for two models that answer the same questions. The paper's own question "
        f"counts are not stated. The difference exceeds it on {len(beyond)} of {sized}: {', '.join(beyond)}.",
    ]
    columns = [
        Column("group", "group", numeric=False),
        Column("benchmark", "benchmark", numeric=False),
        Column("prenorm", "PreNorm"),
        Column("block", "Block AttnRes"),
        Column("difference", "difference"),
        Column("half", "95 % half-width (ours)"),
        Column("questions", "questions"),
    ]
    return Table(title, columns, cells, notes)


def figure(rows: Sequence[Benchmark], title: str) -> Figure:
    """Difference of each benchmark with the implied interval where its size is known."""
    with style.styled():
        drawing, (axes,) = style.new_figure(7.6, 1.7 + 0.3 * len(rows))
        for y, row in enumerate(rows):
            if row.half_width is not None:
                ends = [row.difference - row.half_width, row.difference + row.half_width]
                label = "95 % implied by the number of questions (ours)" if y == 0 else ""
                axes.plot(ends, [y, y], color=style.OURS, lw=6, alpha=0.3, solid_capstyle="butt", label=label)
            axes.plot(
                row.difference,
                y,
                "D",
                color=style.PAPER,
                label="paper, no interval printed" if y == 0 else "",
            )
        axes.axvline(0, color=style.GREY, lw=1)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.invert_yaxis()
        axes.set_xlabel("accuracy of Block AttnRes minus PreNorm (percentage points)")
        axes.set_title(title)
        drawing.legend(loc="lower center", ncols=2)
        drawing.tight_layout(rect=(0, 0.4 / drawing.get_figheight(), 1, 1))
        return drawing
