"""Table 2 and Fig. 4: one ladder of sizes, one study of its fits, two items."""

from __future__ import annotations

from functools import cache

from analysis.ablation import read_published
from analysis.ladder import Ladder, ladder_of_runs, published_ladder
from analysis.scaling import Curve
from analysis.scaling_study import Study, study
from experiments.item import PUBLISHED_FILES, Source
from repro.errors import ConfigError

# Column of table2_scaling.csv -> (arm, label); the paper's Block has N = 8 blocks.
COLUMNS = {
    "loss_prenorm": ("prenorm", "PreNorm"),
    "loss_block": ("block_n8", "Block (N=8)"),
    "loss_full": ("full", "Full"),
    "loss_mhc_lite": ("mhc_lite", "mHC-lite"),
}
LABELS = dict(COLUMNS.values())
ARMS = tuple(LABELS)
METHOD = "block_n8"  # the arm of the paper's 1.25x
ARROW = 1.8  # the loss at which the paper draws its arrow
PAPER_COMPUTE = 5.6  # PFLOP/s-days at which the paper states 1.25x
_FITS = {"prenorm": "prenorm", "block": "block_n8", "full": "full"}  # variant of fig4_fits.csv -> arm


def paper_ladder() -> Ladder:
    """Table 2 as printed."""
    return published_ladder(PUBLISHED_FILES / "table2_scaling.csv", COLUMNS)


def printed_curves() -> dict[tuple[str, str], Curve]:
    """(``printed`` or ``drawn``, arm) -> the paper's own curve; C in PFLOP/s-days."""
    return {
        (row["source"], _FITS[row["variant"]]): Curve.of(float(row["A"]), float(row["alpha"]))
        for row in read_published(PUBLISHED_FILES / "fig4_fits.csv")
    }


@cache
def paper_study() -> Study:
    """All fits of the printed table (seconds, hence once per process)."""
    return study(paper_ladder(), ARROW)


def load(name: str, source: Source) -> Study:
    """The ladder of a source with its fits."""
    if source.is_published:
        return paper_study()
    if source.setting is not None:
        raise ConfigError(
            "--setting", source.setting, f"not for {name}, whose sizes are settings of their own"
        )
    return study(ladder_of_runs(source.scale, LABELS, *source.load(name, ARMS)))
