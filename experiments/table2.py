"""Table 2: validation loss of five sizes by four methods, with the fitted coefficients below."""

from __future__ import annotations

from analysis.ladder_figure import ladder_figure
from analysis.ladder_table import loss_records, loss_tables
from analysis.scaling_checks import close_to_printed, lower_at_every_size
from analysis.scaling_table import curve_table
from experiments.item import Check, PaperItem, Rendered, Source
from experiments.ladder_items import ARMS, load, paper_ladder, printed_curves

TITLE = "Table 2. Validation loss by size and method"


def render(source: Source) -> Rendered:
    """The grid of losses and the coefficients of the curves through it."""
    data, paper, printed = load("table2", source), paper_ladder(), printed_curves()
    files, terminal = (
        [
            *loss_tables(data.ladder, paper, TITLE, wide=wide),
            *([curve_table(data, printed, wide=wide)] if data.fitted else []),
        ]
        for wide in (True, False)
    )
    return Rendered(
        records=loss_records(data.ladder, paper),
        text=files,
        terminal=terminal,
        figure=ladder_figure(data.ladder, paper),
        runs=data.ladder.runs,
        data=data,
    )


ITEM = PaperItem(
    name="table2",
    title=TITLE,
    claim=(
        "At five sizes from 194M to 528M activated parameters, Block (N = 8) and Full AttnRes have lower "
        "losses "
        "than PreNorm; Full is the best and beats mHC(-lite); Block nearly closes the gap to Full at the "
        "largest."
    ),
    experiment="table2",
    arms=ARMS,
    render=render,
    checks=(
        Check("Block is better than PreNorm at every size.", lower_at_every_size("block_n8", "prenorm")),
        Check("Full is better than PreNorm at every size.", lower_at_every_size("full", "prenorm")),
        Check("Full is better than mHC-lite at every size.", lower_at_every_size("full", "mhc_lite")),
        Check("Full is better than Block at every size.", lower_at_every_size("full", "block_n8")),
        Check(
            "OLS in log-log gives the printed coefficients to 0.002 (A) and 0.001 (alpha).",
            close_to_printed(printed_curves(), 0.002, 0.001),
        ),
    ),
    order=2,
)
