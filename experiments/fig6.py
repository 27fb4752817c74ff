"""Fig. 6: how coarse the blocks may be, from S = 32 sublayers (the paper's whole model) to Full (S = 1)."""

from __future__ import annotations

from matplotlib.figure import Figure

from analysis.ablation import AblationTable, ArmSpec, published_table, read_published
from analysis.ablation_view import transformer_blocks
from analysis.block_size import block_size_figure
from analysis.checks import better, close
from experiments.ablation_items import ablation_item
from experiments.item import PUBLISHED_FILES, Check
from experiments.table4 import specs as table4_specs

# Arm -> block size in sublayers, in the figure's order. S = 1 is the Full arm: the two are the same function.
SIZES = {"block_s32": 32, "block_s16": 16, "block_s8": 8, "block_s4": 4, "block_s2": 2, "full": 1}


def specs() -> tuple[ArmSpec, ...]:
    """PreNorm and the points of the curve; S in sublayers, with transformer blocks beside it."""
    losses = {
        int(row["block_size"]): float(row["loss"])
        for row in read_published(PUBLISHED_FILES / "fig6_block_size.csv")
    }
    baseline = next(spec for spec in table4_specs() if spec.name == "prenorm")
    curve = [ArmSpec(arm, _label(size), "prenorm", losses[size], size) for arm, size in SIZES.items()]
    return (baseline, *curve)


def figure(data: AblationTable) -> Figure:
    """The paper's curve and, where there are runs, ours beside it."""
    return block_size_figure(published_table(specs()), None if data.scale == "published" else data, SIZES)


def _label(size: int) -> str:
    return f"S={size} ({'Full' if size == 1 else transformer_blocks(size)})"


ITEM = ablation_item(
    name="fig6",
    title="Fig. 6. Validation loss against block size",
    claim=(
        "Loss grows gently with the block size; S = 2, 4 and 8 sublayers (1, 2 and 4 transformer blocks) are "
        "nearly equal, and even S = 32 (16 transformer blocks: one block is the paper's whole model) is "
        "better than PreNorm."
    ),
    arms=("prenorm", *SIZES),
    specs=specs,
    figure=figure,
    checks=(
        Check("S=32 (16 transformer blocks) is better than PreNorm.", better("block_s32", "prenorm")),
        Check("S=4 (2 transformer blocks) is better than S=32 (16).", better("block_s4", "block_s32")),
        Check("Full is better than S=2 (1 transformer block).", better("full", "block_s2")),
        Check(
            "S=2, 4 and 8 (1, 2 and 4 transformer blocks) are within 0.005 of one another.",
            close(("block_s8", "block_s4", "block_s2"), margin=0.005),
        ),
    ),
    order=6,
)
