"""Fig. 9 in numbers: ordinary rank, rank across depth cuts and effective rank, in symbols and of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.matrices import EXACT, Measured, cut_ranks, effective_rank, ordinary_rank
from analysis.mixing_forms import Form
from analysis.selection import RunRow
from analysis.stats import seed_interval
from analysis.tables import EMPTY, Column, Table

RANKS_NOTE = (
    "Rank across cuts: largest over k of the rank of what reads k..L take from v[0]..v[k], the number of "
    "vectors carried past a cut. Effective rank: exp of the entropy of the singular values of the matrix of "
    "row shares, of the token average; a plain mean of all that was written has 13.6 at L = 32, so it tells "
    "how selective the weights are. The ordinary rank of the L x L matrix is L for every scheme, since its "
    "diagonal is not zero."
)


@dataclass(frozen=True)
class ArmRanks:
    """An arm's runs with their matrices, None where a run has none.

    bound: of the rank across cuts by the size of the scheme's state, or None; between: the paper's range of
    a rank, (N, N + S), or None.
    """

    arm: str
    label: str
    runs: tuple[RunRow, ...]
    measured: tuple[Measured | None, ...]
    bound: int | None = None
    between: tuple[int, int] | None = None

    @property
    def found(self) -> list[Measured]:
        """The matrices there are, one per run."""
        return [m for m in self.measured if m is not None]

    def ordinary(self) -> int:
        return min(ordinary_rank(m.square) for m in self.found)

    def across_cuts(self) -> int:
        """Largest over runs and cuts, of the token average."""
        return max(int(cut_ranks(m.mean, m.tolerance).max()) for m in self.found)

    def across_cuts_of_tokens(self) -> int | None:
        """Largest over runs, cuts and single tokens; None where no run has single tokens."""
        singles = [(m, s) for m in self.found if m.single is not None for s in m.single]
        return max((int(cut_ranks(s, m.tolerance).max()) for m, s in singles), default=None)

    def effective(self) -> list[float]:
        """Of the token average, one per run."""
        return [effective_rank(m.square) for m in self.found]


def measured_table(rows: Sequence[ArmRanks], title: str, notes: Sequence[str]) -> Table:
    """A row per arm; arms without a matrix say so."""
    columns = (
        Column("label", "arm", numeric=False),
        Column("seeds", "seeds", numeric=False),
        Column("ordinary", "rank"),
        Column("bound", "bound"),
        Column("average", "cuts, avg"),
        Column("tokens", "cuts, token"),
        Column("effective", "effective rank [95 %]"),
        Column("paper", "paper"),
        Column("origin", "from", numeric=False),
    )
    return Table(title, columns, [_cells(row) for row in rows], [RANKS_NOTE, *notes])


def _cells(row: ArmRanks) -> dict[str, str]:
    cells = {"label": row.label, "seeds": ", ".join(run.seed_label for run in row.runs) or EMPTY}
    if row.between:
        cells["paper"] = f"{row.between[0]} to {row.between[1]}"
    cells["bound"] = EMPTY if row.bound is None else f"<= {row.bound}"
    if not row.found:
        return cells | {"origin": "no checkpoint" if row.runs else "no run"}
    tokens = row.across_cuts_of_tokens()
    return cells | {
        "ordinary": str(row.ordinary()),
        "average": str(row.across_cuts()),
        "tokens": EMPTY if tokens is None else str(tokens),
        "effective": _interval(row.effective()),
        "origin": ", ".join(sorted({m.origin for m in row.found})),
    }


def _interval(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.2f}"
    if len(values) < 2:
        return mean
    found = seed_interval(values)
    return f"{mean} [{found.low:.2f}, {found.high:.2f}]"


def measured_records(rows: Sequence[ArmRanks], scale: str) -> list[Mapping[str, object]]:
    """One record per run that has a matrix, or one per arm without."""
    records: list[Mapping[str, object]] = []
    for row in rows:
        for run, found in zip(row.runs or (None,), row.measured or (None,), strict=True):
            one = None if found is None else ArmRanks(row.arm, row.label, (), (found,), row.bound)
            records.append(
                {
                    "scale": scale,
                    "matrix_of": row.arm,
                    "run_id": None if run is None else run.run_id,
                    "seed": None if run is None else run.seed_label,
                    "origin": None if found is None else found.origin,
                    "tokens": None if found is None else found.tokens,
                    "residual": None if found is None else found.residual,
                    "ordinary_rank": None if one is None else one.ordinary(),
                    "rank_across_cuts": None if one is None else one.across_cuts(),
                    "rank_across_cuts_of_tokens": None if one is None else one.across_cuts_of_tokens(),
                    "bound": row.bound,
                    "effective_rank": None if one is None else one.effective()[0],
                    "paper_from": row.between[0] if row.between else None,
                    "paper_to": row.between[1] if row.between else None,
                }
            )
    return records


def symbol_table(forms: Sequence[Form], title: str) -> Table:
    """The matrices row by row, in plain symbols."""
    L = len(forms[0].numbers)
    columns = (
        Column("name", "scheme", numeric=False),
        *(Column(str(l), f"h{l}", numeric=False) for l in range(1, L + 1)),
    )
    rows = []
    for form in forms:
        cells = {"name": form.name}
        for l in range(1, L + 1):
            cells[str(l)] = ", ".join(_plain(e.tex) for e in form.entries if e.row == l)
        rows.append(cells)
    return Table(title, columns, rows)


def _plain(tex: str) -> str:
    """TeX of an entry as plain text: g2 gx(2->3), b0'Ax(1->2)a2, phi(w3, k1+k2)."""
    swaps = (
        (r"\gamma^{\times}", " gx"), (r"\beta", "b"), (r"\alpha", " a"), (r"A^{\times}", " Ax"),
        (r"^{\top}", "'"), (r"\phi", "phi"), (r"\to ", "->"), (r"\,", ""), ("_", ""), ("{", ""), ("}", ""),
    )  # fmt: skip
    for old, new in swaps:
        tex = tex.replace(old, new)
    return " ".join(tex.split())


def form_table(forms: Sequence[Form], title: str, paper: Mapping[str, str]) -> Table:
    """Ranks of an instance of each form with random weights; paper: what it says of each, by name."""
    columns = (
        Column("name", "scheme", numeric=False),
        Column("ordinary", "rank"),
        Column("cuts", "rank across cuts"),
        Column("effective", "effective rank"),
        Column("paper", "paper", numeric=False),
    )
    rows = [
        {
            "name": form.name,
            "ordinary": str(ordinary_rank(form.numbers)),
            "cuts": str(cut_ranks(form.numbers, EXACT).max()),
            "effective": f"{effective_rank(form.numbers):.2f}",
            "paper": paper.get(form.name, EMPTY),
        }
        for form in forms
    ]
    return Table(title, columns, rows, [RANKS_NOTE])
