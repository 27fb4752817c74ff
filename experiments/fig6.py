"""Fig. 6: how coarse the blocks may be, from one block (S = 32) to Full (S = 1)."""

from __future__ import annotations

from analysis.ablation import AblationTable, ArmSpec, ablation_table, published_table, read_published
from analysis.ablation_view import better, records, tables
from analysis.block_size import block_size_figure
from experiments.item import PUBLISHED_FILES, Check, PaperItem, Rendered, Source
from experiments.table4 import specs as table4_specs

# Arm -> block size in sublayers, in the figure's order. S = 1 is the Full arm: the two are the same function.
SIZES = {"block_s32": 32, "block_s16": 16, "block_s8": 8, "block_s4": 4, "block_s2": 2, "full": 1}
TITLE = "Fig. 6. Validation loss against block size"


def specs() -> tuple[ArmSpec, ...]:
    """PreNorm and the points of the curve; S in sublayers, with transformer blocks beside it."""
    losses = {
        int(row["block_size"]): float(row["loss"])
        for row in read_published(PUBLISHED_FILES / "fig6_block_size.csv")
    }
    baseline = next(spec for spec in table4_specs() if spec.name == "prenorm")
    return (baseline, *(ArmSpec(arm, _label(size), "prenorm", losses[size]) for arm, size in SIZES.items()))


def table(source: Source) -> AblationTable:
    """PreNorm and every block size from one source."""
    if source.is_published:
        return published_table(specs())
    runs, notes = source.load(ITEM)
    return ablation_table(source.scale, specs(), runs, source.step_times(), notes)


def render(source: Source) -> Rendered:
    """Curve, and the numbers on it as a table."""
    data = table(source)
    ours = None if source.is_published else data
    return Rendered(
        records=[{**r, "block_size": SIZES.get(str(r["arm"]))} for r in records(data)],
        text=tables(data, TITLE, wide=True),
        terminal=tables(data, TITLE, wide=False),
        figure=block_size_figure(published_table(specs()), ours, SIZES),
        runs=[run for row in data.rows for run in row.runs],
        data=data,
    )


def _label(size: int) -> str:
    if size == 1:
        return "S=1 (Full)"
    blocks = size // 2
    return f"S={size} ({blocks} transformer block{'s' if blocks > 1 else ''})"


ITEM = PaperItem(
    name="fig6",
    title=TITLE,
    claim=(
        "Loss grows gently with the block size; S = 2, 4 and 8 are nearly equal, and even a single block "
        "(S = 32) is better than PreNorm."
    ),
    experiment="fig6",
    arms=("prenorm", *SIZES),
    render=render,
    checks=(
        Check("One block (S=32) is better than PreNorm.", better("block_s32", "prenorm")),
        Check("S=4 is better than S=32.", better("block_s4", "block_s32")),
        Check("Full is better than S=2.", better("full", "block_s2")),
    ),
    order=6,
)
