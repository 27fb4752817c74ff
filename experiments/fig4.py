"""Fig. 4: loss against compute, the curves through it, and the 1.25x that is read from them."""

from __future__ import annotations

from analysis.advantage import Place
from analysis.scaling_checks import close_to_printed, holds_value, less_compute, ratio_of_printed
from analysis.scaling_figure import scaling_figure
from analysis.scaling_table import advantage_table, curve_records, curve_table
from analysis.tables import Column, Table
from experiments.item import Check, PaperItem, Rendered, Source
from experiments.ladder_items import ARMS, METHOD, PAPER_COMPUTE, load, printed_curves

TITLE = "Fig. 4. Loss against compute"
_PAIR = ("prenorm", METHOD)
_PLACE = Place("method", PAPER_COMPUTE)


def render(source: Source) -> Rendered:
    """Curves, advantages and the picture."""
    data, printed = load("fig4", source), printed_curves()
    if data.fitted is None:
        note = Table(TITLE, [Column("state", "state", numeric=False)], [{"state": "no fit"}], [data.why_not])
        files = terminal = [note]
    else:
        files, terminal = (
            [curve_table(data, printed, wide=wide), advantage_table(data, printed, wide=wide)]
            for wide in (True, False)
        )
    return Rendered(
        records=curve_records(data) or [{"quantity": "none", "why": data.why_not}],
        text=files,
        terminal=terminal,
        figure=scaling_figure(data, printed, METHOD),
        runs=data.ladder.runs,
        data=data,
    )


ITEM = PaperItem(
    name="fig4",
    title=TITLE,
    claim=(
        "Loss follows L = A C^-alpha with nearly the same exponent for PreNorm, Block and Full; at 5.6 "
        "PFLOP/s-days "
        "Block has the loss of PreNorm trained with 1.25 times the compute."
    ),
    experiment="fig4",
    arms=ARMS,
    render=render,
    checks=(
        Check(
            "OLS in log-log gives the printed coefficients to 0.002 (A) and 0.001 (alpha).",
            close_to_printed(printed_curves(), 0.002, 0.001),
        ),
        Check(
            "The printed coefficients give 1.25x for Block at its 5.6 PFLOP/s-days.",
            ratio_of_printed(printed_curves(), "printed", _PAIR, _PLACE, 1.25),
        ),
        Check(
            "The curves as drawn give 1.27x there.",
            ratio_of_printed(printed_curves(), "drawn", _PAIR, _PLACE, 1.27),
        ),
        Check("Block reaches PreNorm's loss with less compute.", less_compute(METHOD)),
        Check("Full reaches PreNorm's loss with less compute.", less_compute("full")),
        Check("The interval of Block's advantage holds 1.25.", holds_value(METHOD, 1.25)),
    ),
    order=4.4,
)
