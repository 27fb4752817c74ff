"""Items that are a row per arm beside the paper's loss: Table 4 and Fig. 6."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from analysis.ablation import AblationTable, ArmSpec, ablation_table, published_table
from analysis.ablation_view import records, tables
from experiments.item import Check, PaperItem, Rendered, Source


def ablation_item(
    name: str,
    title: str,
    claim: str,
    arms: tuple[str, ...],
    specs: Callable[[], Sequence[ArmSpec]],
    figure: Callable[[AblationTable], Figure],
    checks: tuple[Check, ...],
    order: float,
) -> PaperItem:
    """An item that renders the runs of ``conf/experiment/<name>.yaml`` as table and picture.

    specs: the rows, read when needed, of the same arms.
    """

    def load(source: Source) -> AblationTable:
        if source.is_published:
            return published_table(specs())
        runs, notes = source.select(name, arms)
        return ablation_table(source.scale, specs(), runs, source.step_times(), notes)

    def render(source: Source) -> Rendered:
        data = load(source)
        return Rendered(
            records=records(data),
            text=tables(data, title, experiment=name, wide=True),
            terminal=tables(data, title, experiment=name, wide=False),
            figure=figure(data),
            runs=[run for row in data.rows for run in row.runs],
            data=data,
        )

    return PaperItem(name, title, claim, name, arms, render, checks, order=order)
