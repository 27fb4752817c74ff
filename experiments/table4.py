"""Table 4: what each design choice of AttnRes is worth, beside DenseFormer and mHC."""

from __future__ import annotations

from analysis.ablation import AblationTable, ArmSpec, ablation_table, published_table, read_published
from analysis.ablation_view import better, records, tables, worse
from analysis.forest import forest
from experiments.item import PUBLISHED_FILES, Check, PaperItem, Rendered, Source

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
TITLE = "Table 4. Ablations"


def specs() -> tuple[ArmSpec, ...]:
    """The rows with the paper's text and loss."""
    rows = {row["arm"]: row for row in read_published(PUBLISHED_FILES / "table4_ablations.csv")}
    return tuple(
        ArmSpec(arm, rows[arm]["row"], parent, float(rows[arm]["loss"])) for arm, parent in PARENTS.items()
    )


def table(source: Source) -> AblationTable:
    """All rows from one source."""
    if source.is_published:
        return published_table(specs())
    runs, notes = source.load(ITEM)
    return ablation_table(source.scale, specs(), runs, source.step_times(), notes)


def render(source: Source) -> Rendered:
    """Table and forest plot."""
    data = table(source)
    return Rendered(
        records=records(data),
        text=tables(data, TITLE, wide=True),
        terminal=tables(data, TITLE, wide=False),
        figure=forest(data, TITLE),
        runs=[run for row in data.rows for run in row.runs],
        data=data,
    )


ITEM = PaperItem(
    name="table4",
    title=TITLE,
    claim=(
        "Full and Block AttnRes lower the validation loss of PreNorm, DenseFormer does not; weights that "
        "depend on the input, softmax competition, the key norm and reach over all depths each matter, "
        "several heads do not help."
    ),
    experiment="table4",
    arms=tuple(PARENTS),
    render=render,
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
    ),
    order=4,
)
