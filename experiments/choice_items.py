"""The sweeps behind a scale's settings (not in the paper): initialisation and learning rate under PreNorm."""

from __future__ import annotations

from collections.abc import Sequence

from analysis import choices
from analysis.selection import CONF
from experiments.item import PaperItem, Rendered, Source
from repro.errors import DataError


def choice_item(
    name: str, title: str, claim: str, keys: Sequence[str], arms: tuple[str, ...], order: float
) -> PaperItem:
    """An item that renders the runs of ``conf/experiment/<name>.yaml`` as a grid over the swept keys."""

    def render(source: Source) -> Rendered:
        runs, _ = source.load(name, arms)
        data = choices.choices(source.scale, runs, keys, arms)
        if not data.values:
            raise DataError(
                f"no finished runs of {name} at scale {source.scale}: "
                f"make {name} SCALE={source.scale} trains them"
            )
        text = [choices.table(data, title)]
        return Rendered(choices.records(data), text, text, choices.figure(data), data.runs, data)

    # The paper publishes no such sweep, so there is nothing to render without runs.
    scales = tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml")))
    return PaperItem(name, title, claim, name, arms, render, scales=scales, order=order)
