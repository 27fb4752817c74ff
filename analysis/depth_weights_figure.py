"""Fig. 8: depth weights as pictures, a row per read and a column per source, one colour scale for all.

A cell without a source is hatched, never drawn as zero; a dot marks the largest weight of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import style
from analysis.depth_weights import PANELS, ArmWeights, DepthWeights

COLOURS, HATCH, MISSING = "viridis", "////", "#FFFFFF"


def depth_weights_figure(arms: Sequence[ArmWeights], title: str) -> Figure:
    """Two panels per arm, pre-attention and pre-MLP, and a strip for the output read where it is known."""
    reads = [arm.mean.num_sublayers // 2 for arm in arms]
    with style.styled():
        heights: list[float] = []
        for arm, rows in zip(arms, reads, strict=True):
            heights += [rows, 1.6] if _has_output(arm.mean) else [rows]
        figure = Figure(figsize=(12.5, 1.9 + 0.19 * sum(heights) + 0.45 * len(heights)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
        place, panels = 0, []
        for arm in arms:
            model = arm.mean
            for panel, name in PANELS.items():
                axes = figure.add_subplot(grid[place, panel])
                _draw(axes, model.weights[model.rows(panel)])
                axes.set_title(f"{arm.label}: {name} reads", fontsize=11)
                axes.set_xlabel("source (0: token embedding)" + _units(model))
                axes.set_ylabel("transformer block")
                rows = model.num_sublayers // 2
                _ticks(axes, rows, first=1)
                panels.append(axes)
            place += 1
            if _has_output(model):
                axes = figure.add_subplot(grid[place, :])
                _draw(axes, model.weights[-1:])
                axes.set_title(f"{arm.label}: output read", fontsize=11)
                axes.set_yticks([])
                panels.append(axes)
                place += 1
        bar = figure.colorbar(panels[0].images[0], ax=panels, shrink=0.6, pad=0.015, aspect=35)
        bar.set_label("weight, mean over tokens" + (" and seeds" if arms[0].runs else ""))
        bar.outline.set_visible(False)  # type: ignore[operator]
        figure.suptitle(title + "\ndot: largest weight of the row; hatched: no such source", fontsize=11)
        return figure


def _draw(axes: Axes, weights: np.ndarray) -> None:
    rows, columns = weights.shape
    axes.grid(False)
    axes.set_facecolor(MISSING)
    axes.patch.set(hatch=HATCH, edgecolor="#A8A8A8", linewidth=0)
    axes.imshow(
        np.ma.masked_invalid(weights),
        cmap=COLOURS,
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        zorder=2,
    )
    for row, values in enumerate(weights):
        if np.isfinite(values).any():
            column = int(np.nanargmax(values))
            shade = "black" if values[column] > 0.7 else "white"
            axes.plot(column, row, ".", color=shade, markersize=5, zorder=3)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    _ticks(axes, columns, first=0, horizontal=True)


def _ticks(axes: Axes, count: int, *, first: int, horizontal: bool = False) -> None:
    step = 1 if count <= 17 else 2 if count <= 40 else 8
    places = list(range(0, count, step))
    setter = axes.set_xticks if horizontal else axes.set_yticks
    setter(places, [str(p + first) for p in places])


def _has_output(model: DepthWeights) -> bool:
    return bool(model.columns(model.num_sublayers).size)


def _units(model: DepthWeights) -> str:
    if model.is_full:
        return ", odd: attention outputs, even: MLP outputs"
    return ", n: sum of block n, or its partial sum"
