"""Table 2 as a picture: each method's loss minus PreNorm's, size by size; ours beside the paper's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.ladder import Ladder
from analysis.ladder_table import difference
from analysis.scaling_figure import COLORS, MARKERS


def ladder_figure(ladder: Ladder, paper: Ladder) -> Figure:
    """One panel per source, sizes from left to right; bars are intervals of the paired differences."""
    ours = ladder.scale != "published"
    with style.styled():
        figure, panels = style.new_figure(10.4 if ours else 6.0, 4.4, 2 if ours else 1)
        _panel(panels[0], paper)
        panels[0].set_title("Paper (one run per point, no uncertainty published)", fontsize=10)
        if ours:
            _panel(panels[1], ladder)
            count = len(ladder.seeds)
            panels[1].set_title(
                f"Ours (scale {ladder.scale}, {count} seed{'s' * (count != 1)} per point)", fontsize=10
            )
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(labels))
        figure.tight_layout(rect=(0, 0.08, 1, 1), w_pad=2.5)
        return figure


def _panel(axes: Axes, ladder: Ladder) -> None:
    look: Any = {"ls": "none", "zorder": 3}
    for k, label in enumerate(ladder.labels):
        if k == 0:
            axes.axhline(0.0, color=style.PRENORM, lw=1.2, label=label, zorder=1)
            continue
        place = np.arange(len(ladder.sizes)) + 0.16 * (k - len(ladder.labels) / 2)
        gaps = ladder.losses[k] - ladder.losses[0]
        axes.plot(place, gaps, marker=MARKERS[k], color=COLORS[k], label=label, **look)
        for i, x in enumerate(place):
            interval = difference(ladder, k, 0, i)
            if interval and math.isfinite(interval.low):
                axes.plot([x, x], [interval.low, interval.high], color=COLORS[k], lw=2.2, alpha=0.5, zorder=2)
            if not math.isfinite(gaps[i]):
                where: Any = {
                    "transform": axes.get_xaxis_transform(),
                    "rotation": 90,
                    "ha": "center",
                    "va": "bottom",
                }
                axes.text(x, 0.03, f"{label}: {ladder.status[k][i]}", fontsize=8, style="italic", **where)
    names = [f"{size.name}\nL_b = {size.num_transformer_blocks}" for size in ladder.sizes]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.6, len(names) - 0.4)
    cells = [(k, n) for k in range(1, len(ladder.arms)) for n in range(len(names))]
    kinds = {found.kind for k, n in cells if (found := difference(ladder, k, 0, n))}
    over = {"seeds": "bars: 95 %, paired seeds", "documents": "bars: 95 %, validation documents, one seed"}
    told = "; ".join(over[kind] for kind in sorted(kinds) if kind in over)
    axes.set_xlabel("size, and its transformer blocks" + (f"\n{told}" if told else ""))
    axes.set_ylabel("loss minus PreNorm (nats per token)")
    axes.grid(axis="x", visible=False)
    axes.margins(y=0.15)
