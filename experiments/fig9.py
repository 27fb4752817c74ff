"""Fig. 9: how each scheme mixes over depth, as a matrix; in symbols, and measured from trained runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from analysis.matrices import EXACT, cut_ranks, ordinary_rank, plain_sum, read_measured
from analysis.matrix_figure import Panel, measured_figure, symbolic_figure
from analysis.matrix_table import (
    ArmRanks,
    form_table,
    measured_records,
    measured_table,
    symbol_table,
)
from analysis.mixing_forms import Form, forms
from analysis.selection import RunRow
from experiments.item import Check, PaperItem, Rendered, Source
from repro.errors import DataError
from repro.runs.places import shown

TITLE = "Fig. 9. Depth-mixing matrices"
# The sizes drawn by the paper, and those of its ablation model, at which ranks tell schemes apart.
DRAWN, STREAMS = (4, 2), 2
DEEP = (32, 4)
# Arm -> the row text here; the kinds of scheme that exist, in the paper's order.
ARMS = {
    "prenorm": "PreNorm",
    "mhc": "mHC",
    "denseformer": "DenseFormer",
    "full_static": "Full, static mixing",
    "window_1p8": "SWA (W=1+8)",
    "full": "AttnRes Full",
    "full_input_query": "Full, input query",
    "block_s4": "Block (S=4)",
    "block_s4_h16": "Block (S=4), H=16",
}
PAPER = {
    "Standard residual": "1-semiseparable",
    "Highway": "1-semiseparable",
    "(m)HC": "m-semiseparable",
    "AttnRes Full": "rank L",
}


def published() -> Rendered:
    """The symbols, and the ranks of instances at the sizes of the ablation model."""
    drawn, deep = forms(*DRAWN, STREAMS), forms(*DEEP, 4)
    N, S = DEEP[0] // DEEP[1], DEEP[1]
    paper = PAPER | {deep[-1].name: f"rank between N and N+S ({N} to {N + S})"}
    tables = [
        symbol_table(drawn, f"{TITLE}: L = {DRAWN[0]} sublayers, S = {DRAWN[1]}"),
        form_table(deep, f"Ranks with random weights at L = {DEEP[0]}, S = {S}, N = {N}, m = 4", paper),
    ]
    records = [
        {
            "scheme": form.name,
            "row": entry.row,
            "first_column": entry.first,
            "last_column": entry.last,
            "entry": entry.tex,
            "partial_sum": entry.partial,
        }
        for form in drawn
        for entry in form.entries
    ]
    return Rendered(
        records, tables, tables[1:], symbolic_figure(drawn), data={form.name: form for form in deep}
    )


def render(source: Source) -> Rendered:
    """Symbols from the paper, matrices from runs."""
    if source.is_published:
        return published()
    runs, notes = source.select("fig9", tuple(ARMS))
    rows = [_ranks(arm, label, [run for run in runs if run.arm == arm]) for arm, label in ARMS.items()]
    panels = [Panel(f"{row.label}\n({row.found[0].origin})", row.found[0]) for row in rows if row.found]
    tokens = [
        Panel(f"{row.label}\n(one token)", token)
        for row in rows
        if row.found and (token := row.found[0].one_token())
    ]
    if not any(row.found and row.found[0].origin == "checkpoint" for row in rows):
        notes.append(
            "No run here has depth_matrices.npz (python -m repro.probe matrices, which needs checkpoints): "
            "token averages of depth_weights.npz stand in where they determine the matrix."
        )
    seeds = sorted({run.seed for row in rows for run in row.runs if row.found})
    text = measured_table(rows, f"{TITLE}, scale {source.scale}", [*NOTES, *notes])
    title = f"Scale {source.scale}, seed {seeds[0]}: weights as shares of each row. Grey: not yet written."
    return Rendered(
        records=measured_records(rows, source.scale),
        text=[text],
        terminal=[text],
        figure=measured_figure(panels, tokens, title),
        runs=runs,
        data={row.arm: row for row in rows},
    )


NOTES = (
    "cuts, avg: of the token average; cuts, token: largest of single tokens. Averaging over tokens keeps the "
    "bound of Block, whose columns are equal within a block for every token, and not that of streams, whose "
    "products of matrices differ between tokens. Heads are averaged.",
    "paper: the range it gives for Block's rank, N to N + S. Rows run over the L + 1 reads where cuts are "
    "concerned (the output read included), over L for the other two ranks.",
)


def _ranks(arm: str, label: str, runs: list[RunRow]) -> ArmRanks:
    done = tuple(run for run in runs if run.status == "done")
    if not done:
        return ArmRanks(arm, label, (), ())
    L = done[0].num_sublayers
    if L is None:
        raise DataError(f"{shown(done[0].directory)}: its config states no number of transformer blocks")
    mixer: Mapping[str, Any] = done[0].config["arm"]["mixer"]
    bound, between = mixer.get("streams"), None
    measured = [read_measured(run.directory) for run in done]
    if arm == "prenorm":
        bound, measured = 1, [found or plain_sum(L) for found in measured]
    size = mixer.get("block_size") or 1
    if size > 1:
        N = -(-L // size)
        bound, between = N + 1, (N, N + size)
    return ArmRanks(arm, label, done, tuple(measured), bound, between)


def _bounded(arm: str, form: str, bound: int) -> Callable[[Any], tuple[bool | None, str]]:
    """Rank across every cut within the bound: of the form with random weights, or of runs."""

    def test(data: Any) -> tuple[bool | None, str]:
        if form in data:
            largest = int(cut_ranks(data[form].numbers, EXACT).max())
            return largest <= bound, f"at most {largest} (random weights, L = {len(data[form].numbers)})"
        row: ArmRanks = data[arm]
        if not row.found or row.bound is None:
            return None, "no matrix"
        tokens = row.across_cuts_of_tokens()
        if tokens is None and arm == "mhc":
            return None, "needs single tokens"
        largest = row.across_cuts() if tokens is None else tokens
        return largest <= row.bound, f"at most {largest}, bound {row.bound}; {len(row.found)} seeds"

    return test


def _is_ordinary_between(data: Any) -> tuple[bool | None, str]:
    """Whether Block's ordinary rank lies between N and N + S, as the caption has it."""
    N, S = DEEP[0] // DEEP[1], DEEP[1]
    name = f"AttnRes Block (S = {S})"
    if name in data:
        form: Form = data[name]
        found, low, high = ordinary_rank(form.numbers), N, N + S
        return low <= found <= high, f"it is L = {found}; N = {low}, N + S = {high}"
    row: ArmRanks = data["block_s4"]
    if not row.found or row.between is None:
        return None, "no matrix"
    low, high = row.between
    effective = ", ".join(f"{value:.1f}" for value in row.effective())
    return low <= row.ordinary() <= high, (
        f"it is L = {row.ordinary()}; N = {low}, N + S = {high}; effective rank {effective}"
    )


ITEM = PaperItem(
    name="fig9",
    title=TITLE,
    claim=(
        "Every residual scheme is a lower-triangular matrix over what was written; the standard residual is "
        "1-semiseparable, m streams are m-semiseparable, Full is dense, Block lies in between."
    ),
    experiment="fig9",
    arms=tuple(ARMS),
    render=render,
    checks=(
        Check(
            "The standard residual has rank 1 across every depth cut.",
            _bounded("prenorm", "Standard residual", 1),
        ),
        Check("m streams have at most m, for every token.", _bounded("mhc", "(m)HC", 4)),
        Check(
            "Block has at most N + 1 (its block sums and the embedding).",
            _bounded("block_s4", f"AttnRes Block (S = {DEEP[1]})", DEEP[0] // DEEP[1] + 1),
        ),
        Check("The rank of Block's matrix lies between N and N + S.", _is_ordinary_between),
    ),
    order=9,
)
