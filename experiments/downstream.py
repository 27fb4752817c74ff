"""Downstream items that any checkpoint here can answer: our side of Table 3, at our sizes."""

from __future__ import annotations

from analysis.downstream import downstream, figure, records, table
from analysis.probes import probed
from analysis.selection import CONF
from experiments.item import PaperItem, Rendered, Source

NAME = "downstream"
TITLE = "Downstream items"
ARMS = ("prenorm", "full", "block_s4")


def render(source: Source) -> Rendered:
    """From the records of ``python -m repro.probe downstream``."""
    runs, notes = source.select(NAME, ARMS)
    found, missing = probed(NAME, runs, source.scale)
    data = downstream(source.scale, found, ARMS, (*notes, *missing))
    text = [table(data, TITLE)]
    return Rendered(records(data), text, text, figure(data), data.runs, data)


ITEM = PaperItem(
    name=NAME,
    title=TITLE,
    claim=(
        "Block AttnRes matches or improves on PreNorm downstream (Table 3, at 48B). Here: small models, "
        "other items."
    ),
    experiment=NAME,
    arms=ARMS,
    render=render,
    # The paper's downstream numbers are Table 3.
    scales=tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))),
    order=3.5,
)
