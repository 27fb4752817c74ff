"""Table 3: downstream accuracy of the 48B model under PreNorm and Block. Ours: the item `downstream`."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.ablation import read_published
from analysis.table3 import Benchmark, benchmarks, figure, outcomes, records, table
from experiments.item import PUBLISHED, PUBLISHED_FILES, Check, PaperItem, Rendered, Source

TITLE = "Table 3. Downstream accuracy, 48B"


def render(source: Source) -> Rendered:
    """The paper's table; no run here is of that size."""
    rows = benchmarks(
        read_published(PUBLISHED_FILES / "table3_downstream.csv"),
        read_published(PUBLISHED_FILES / "table3_sizes.csv"),
    )
    text = [table(rows, TITLE)]
    return Rendered(records(rows), text, text, figure(rows, TITLE), data=rows)


def _all_better(rows: Sequence[Benchmark]) -> tuple[bool, str]:
    better, tied, worse = outcomes(rows)
    return better == len(rows), f"{better} better, {tied} tied, {worse} worse"


def _none_worse(rows: Sequence[Benchmark]) -> tuple[bool, str]:
    better, tied, worse = outcomes(rows)
    return worse == 0, f"{better} better, {tied} tied, {worse} worse"


ITEM = PaperItem(
    name="table3",
    title=TITLE,
    claim="Block AttnRes matches or improves on PreNorm on every benchmark of a 48B model.",
    experiment=None,
    arms=(),
    render=render,
    checks=(
        Check("Block improves on all tasks (abstract).", _all_better),
        Check("Block matches or improves on all tasks (Section 5.2).", _none_worse),
    ),
    # Our own downstream numbers are other benchmarks: the item `downstream`.
    scales=(PUBLISHED,),
    order=3,
)
