"""Does a source matter? Interventions on the sources of a trained run (not in the paper)."""

from __future__ import annotations

from analysis.interventions import interventions
from analysis.interventions_view import figure, records, tables
from analysis.probes import probed
from analysis.selection import CONF
from experiments.item import PaperItem, Rendered, Source

NAME = "interventions"
ARMS = ("prenorm", "full", "block_s4")


def render(source: Source) -> Rendered:
    """From the records of ``python -m repro.probe interventions``."""
    runs, notes = source.select(NAME, ARMS)
    found, missing = probed(NAME, runs, source.scale)
    data = interventions(source.scale, found, ARMS, (*notes, *missing))
    text = tables(data)
    return Rendered(records(data), text, text, figure(data), data.runs, data)


ITEM = PaperItem(
    name=NAME,
    title="Interventions: does a source matter?",
    claim=(
        "The paper reads importance off the learned weights (Fig. 8, Section 6.2). Here a source is "
        "taken away or "
        "replaced and the loss is measured."
    ),
    experiment=NAME,
    arms=ARMS,
    render=render,
    # The paper intervenes nowhere, so there is nothing to render without runs.
    scales=tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))),
    order=8.5,
)
