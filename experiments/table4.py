"""Table 4: what each design choice of AttnRes is worth, beside DenseFormer and mHC."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.ablation import AblationTable, ArmSpec, read_published
from analysis.checks import better, not_better, worse
from analysis.forest import forest
from experiments.ablation_items import ablation_item
from experiments.item import PUBLISHED_FILES, Check

# Arm -> the arm it changes in one respect (`arm.parent`), in the paper's row order.
PARENTS = {
    "prenorm": None,
    "denseformer": "prenorm",
    "mhc": "prenorm",
    "full": "prenorm",
    "full_input_query": "full",
    "full_static": "full",
    "full_sigmoid": "full",
    "full_no_key_norm": "full",
    "window_1p8": "full",
    "block_s4": "prenorm",
    "block_s4_h16": "block_s4",
    "block_s4_no_key_norm": "block_s4",
}
# Sublayers; the paper's row texts say it for the first only.
BLOCK_SIZES = {"block_s4": 4, "block_s4_h16": 4, "block_s4_no_key_norm": 4}
TITLE = "Table 4. Ablations"


def specs() -> tuple[ArmSpec, ...]:
    """The rows with the paper's text and loss."""
    rows = {row["arm"]: row for row in read_published(PUBLISHED_FILES / "table4_ablations.csv")}
    return tuple(
        ArmSpec(arm, rows[arm]["row"], parent, float(rows[arm]["loss"]), BLOCK_SIZES.get(arm))
        for arm, parent in PARENTS.items()
    )


def figure(data: AblationTable) -> Figure:
    """The forest plot."""
    return forest(data, TITLE)


ITEM = ablation_item(
    name="table4",
    title=TITLE,
    claim=(
        "Full and Block AttnRes lower the validation loss of PreNorm, DenseFormer does not; weights that "
        "depend on the input, softmax competition, the key norm and reach over all depths each matter, "
        "several heads do not help."
    ),
    arms=tuple(PARENTS),
    specs=specs,
    figure=figure,
    checks=(
        Check("Full AttnRes is better than PreNorm.", better("full", "prenorm")),
        Check("Block AttnRes (S=4) is better than PreNorm.", better("block_s4", "prenorm")),
        Check("Full is better than Block (S=4).", better("full", "block_s4")),
        Check("An input-dependent query improves Full further.", better("full_input_query", "full")),
        Check("Input-independent mixing is worse than Full.", worse("full_static", "full")),
        Check("Sigmoid is worse than softmax.", worse("full_sigmoid", "full")),
        Check("Full without key norm is worse.", worse("full_no_key_norm", "full")),
        Check("Block without key norm is worse.", worse("block_s4_no_key_norm", "block_s4")),
        Check("A window of the last 8 sources is worse than Full.", worse("window_1p8", "full")),
        Check("Sixteen heads are worse than one.", worse("block_s4_h16", "block_s4")),
        Check("mHC is better than PreNorm.", better("mhc", "prenorm")),
        Check("DenseFormer does not improve on PreNorm.", not_better("denseformer", "prenorm")),
    ),
    order=4,
)
