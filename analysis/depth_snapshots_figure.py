"""Depth weights over training, by position and over tokens, as pictures.

A cell without a source is hatched, never drawn as a value; panels of one picture share one colour scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from analysis import style
from analysis.depth_snapshots import ratio_to_uniform
from analysis.depth_weights import PANELS, ArmWeights
from analysis.depth_weights_figure import HATCH, MISSING

# Orange to purple through white: read by every kind of colour vision, and symmetric about uniform weights.
DIVERGING, SEQUENTIAL = "PuOr_r", "viridis"
REACH = 3.0  # log2: an eighth to eight times the uniform weight
_COLOURS = (style.GREEN, style.ORANGE)
_LINES = {0: ("-", "o"), 1: ("--", "s")}


def maps_over_training(rows: Mapping[str, Sequence[np.ndarray]], steps: Sequence[int], title: str) -> Figure:
    """A row of maps per arm, a column per step; rows: label -> weights [R, C] at these steps.

    Colour: weight over the uniform weight of its read, log scale, cut at ``REACH``.
    """
    with style.styled():
        figure = Figure(figsize=(2.35 * len(steps) + 1.2, 2.9 * len(rows) + 0.6))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        grid = figure.subplots(len(rows), len(steps), squeeze=False)
        for line, (label, maps) in zip(grid, rows.items(), strict=True):
            for axes, weights, step in zip(line, maps, steps, strict=True):
                image = _map(axes, np.log2(ratio_to_uniform(weights)), DIVERGING, -REACH, REACH)
                axes.set_title(f"{label}, step {step}", fontsize=10)
                axes.set_xlabel("source column")
            line[0].set_ylabel(f"read (0: first sublayer, {len(maps[0]) - 1}: output)")
        bar = figure.colorbar(image, ax=grid, shrink=0.75, pad=0.015, aspect=35, extend="both")
        ticks = np.arange(-REACH, REACH + 1)
        bar.set_ticks(list(ticks), labels=[f"1/{2**-t:.0f}" if t < 0 else f"{2**t:.0f}" for t in ticks])
        bar.set_label("weight / uniform weight")
        bar.outline.set_visible(False)  # type: ignore[operator]
        figure.suptitle(title, fontsize=11)
        return figure


def spread_maps(panels: Mapping[str, np.ndarray], title: str) -> Figure:
    """One map per arm of the standard deviation of each weight over tokens, [R, C]."""
    top = max(float(np.nanmax(values)) for values in panels.values())
    with style.styled():
        figure = Figure(figsize=(4.6 * len(panels) + 1.0, 4.6))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained")
        grid = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (label, values) in zip(grid, panels.items(), strict=True):
            image = _map(axes, values, SEQUENTIAL, 0.0, top)
            axes.set_title(label, fontsize=10)
            axes.set_xlabel("source column (0: token embedding)")
            axes.set_ylabel(f"read (0: first sublayer, {len(values) - 1}: output)")
        bar = figure.colorbar(image, ax=list(grid), shrink=0.8, pad=0.015, aspect=30)
        bar.set_label("standard deviation of the weight over tokens")
        bar.outline.set_visible(False)  # type: ignore[operator]
        figure.suptitle(title, fontsize=11)
        return figure


def curves(
    arms: Sequence[Sequence[ArmWeights]],
    names: Mapping[str, str],
    places: Sequence[Any],
    xlabel: str,
    title: str,
) -> Figure:
    """Statistics of Fig. 8 along an axis, a panel per statistic, a line per arm and kind of read.

    arms: per arm the models at each place; names: statistic of ``analysis.depth_weights.statistics`` -> label
    of its panel; places: texts or numbers of the axis, evenly spaced.  Bars: 95 % t intervals over seeds.
    """
    with style.styled():
        figure, panels = style.new_figure(4.1 * len(names) + 0.4, 4.1, len(names))
        x = np.arange(len(places))
        for axes, (name, label) in zip(panels, names.items(), strict=True):
            for number, (colour, arm) in enumerate(zip(_COLOURS, arms, strict=False)):
                for panel, kind in PANELS.items():
                    found = [model.statistic(panel, name) for model in arm]
                    shift = 0.07 * (2 * number + panel - 1.5)  # intervals side by side, not on each other
                    estimates = [np.nan if v is None else v.estimate for v in found]
                    reach = [
                        0.0 if v is None or not np.isfinite(v.low) else v.high - v.estimate for v in found
                    ]
                    line, marker = _LINES[panel]
                    axes.errorbar(
                        x + shift, estimates, reach, color=colour, ls=line, marker=marker, ms=4.5, lw=1.5,
                        elinewidth=1.0, capsize=0, label=f"{arm[0].label}, {kind}",
                    )  # fmt: skip
            axes.set_title(label, fontsize=10)
            axes.xaxis.set_major_locator(FixedLocator(list(x)))
            axes.xaxis.set_minor_locator(NullLocator())
            long = max(len(str(place)) for place in places) > 4
            axes.set_xticks(list(x), [str(place) for place in places], fontsize=7.5 if long else 9)
            axes.set_xlabel(xlabel)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9)
        figure.text(0.012, 0.985, title, fontsize=11, va="top")
        figure.tight_layout(rect=(0, 0.07, 1, 0.95))
        return figure


def _map(axes: Axes, values: np.ndarray, colours: str, low: float, high: float) -> Any:
    axes.grid(False)
    axes.set_facecolor(MISSING)
    axes.patch.set(hatch=HATCH, edgecolor="#B8B8B8", linewidth=0)
    image = axes.imshow(
        np.ma.masked_invalid(values), cmap=colours, vmin=low, vmax=high, aspect="auto",
        interpolation="nearest", zorder=2,
    )  # fmt: skip
    for axis, count in ((axes.xaxis, values.shape[1]), (axes.yaxis, values.shape[0])):
        axis.set_major_locator(FixedLocator(range(0, count, 8 if count > 17 else 2)))
    return image
