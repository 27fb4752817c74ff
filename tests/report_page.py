"""The report of the committed results, built without writing anything or rendering what is not there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from analysis.report import page
from analysis.report_contents import Contents, Item, read_rendering
from experiments.deviations import DEVIATIONS
from experiments.inconsistencies import INCONSISTENCIES
from experiments.items import ITEMS

RESULTS = Path(__file__).resolve().parents[1] / "results"
SCALES = ("published", "quick")


@cache
def committed_contents() -> Contents:
    """Every item with the files that are committed."""
    items = []
    for item in ITEMS.values():
        found = [read_rendering(RESULTS, scale, item.name) for scale in SCALES]
        renderings = [rendering for rendering in found if rendering is not None]
        items.append(Item(item.name, item.title, item.claim, DEVIATIONS.get(item.name, ()), renderings))
    return Contents(items, INCONSISTENCIES, SCALES)


@cache
def committed_page() -> str:
    """The page of ``committed_contents``."""
    return page(committed_contents())
