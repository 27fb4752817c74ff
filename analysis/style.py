"""How every figure looks: one colour-blind-safe style, and files that are the same bytes when rebuilt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from repro.runs.atomic import replace_atomically

# Okabe and Ito's palette: distinguishable under the common colour-vision deficiencies and in grey.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#6E6E6E",
)
#: One colour per arm in every figure, and for what is measured here beside the paper.
PRENORM, BLOCK, FULL, MHC = GREY, BLUE, GREEN, PURPLE
OURS, PAPER = BLUE, VERMILION

_STYLE: Any = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so text has the same extent everywhere
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.8,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 6,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "savefig.facecolor": "white",
    "svg.fonttype": "path",  # outlines: no viewer substitutes a font and moves the labels
    "svg.hashsalt": "attnres-repro",
    "text.usetex": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """The house style for the figures drawn inside."""
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """A row of axes on one figure, sizes in inches; call inside ``styled``."""
    figure = Figure(figsize=(width, height))  # not pyplot's, which keeps every figure it made
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write ``<stem>.svg`` and ``<stem>.png`` atomically and without a date; the paths."""
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    with matplotlib.rc_context(_STYLE):  # the hash salt is read when the file is written
        replace_atomically(paths[0], lambda path: figure.savefig(path, metadata={"Date": None}))
        replace_atomically(paths[1], figure.savefig)
    return paths
