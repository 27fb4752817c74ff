"""The figure of the step bench: a training step's ratio to PreNorm against depth and against width."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style

#: Wall-clock overhead in training that the paper states for Block AttnRes under pipeline parallelism.
PAPER_BOUND, PAPER_LABEL = 1.04, "paper: < 4 % (Block, pipeline parallel)"
_LINES = (("block_s4", style.OURS, "o"), ("full", style.FULL, "s"))


def overhead_figure(depth: pd.DataFrame, width: pd.DataFrame) -> Figure:
    """Two panels of steps (`analysis.bench`), medians with quartiles; either may be empty."""
    with style.styled():
        figure, panels = style.new_figure(10.0, 4.6, 2)
        _panel(panels[0], depth, "blocks")
        panels[0].set_xlabel("depth in transformer blocks (two sublayers each)")
        panels[0].set_title(_setting(depth, "width", "width "), fontsize=10)
        _source_growth(panels[0], depth)
        _panel(panels[1], width, "width")
        panels[1].set_xlabel("width")
        panels[1].set_title(_setting(width, "blocks", "", " transformer blocks"), fontsize=10)
        bottoms, tops = zip(*(axes.get_ylim() for axes in panels), strict=True)
        for axes in panels:
            _paper(axes)
            axes.set_ylim(min(bottoms), max(tops))
        handles = {
            label: handle
            for axes in panels
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), fontsize=8.5, loc="lower center", ncols=5, columnspacing=1.2
        )
        figure.tight_layout(rect=(0, 0.07, 1, 1), w_pad=2.5)
        return figure


def _panel(axes: Axes, steps: pd.DataFrame, x: str) -> None:
    axes.axhline(1.0, color=style.PRENORM, ls="--", label="PreNorm", zorder=1)
    for arm, color, marker in _LINES:
        rows = steps[steps["arm"] == arm].sort_values(x)
        if rows.empty:
            continue
        low = rows["ratio_median"] - rows["ratio_lower_quartile"]
        high = rows["ratio_upper_quartile"] - rows["ratio_median"]
        axes.errorbar(
            rows[x],
            rows["ratio_median"],
            yerr=np.clip([low, high], 0, None),
            color=color,
            marker=marker,
            capsize=3,
            label=rows["label"].iloc[0],
            zorder=3,
        )
    ticks = sorted(set(steps[x]))
    axes.set_xticks(ticks)
    if ticks:
        axes.set_xlim(0, 1.06 * ticks[-1])
    axes.set_ylabel("training step, ratio to PreNorm's")


def _source_growth(axes: Axes, steps: pd.DataFrame) -> None:
    """What Full's overhead would be if it grew from the shallowest model on as its mean number of sources."""
    rows = steps[steps["arm"] == "full"].sort_values("blocks")
    if len(rows) < 2:
        return
    growth = rows["sources_mean"] / rows["sources_mean"].iloc[0]
    expected = 1 + (rows["ratio_median"].iloc[0] - 1) * growth
    label = "Full, if its extra grew as its sources"
    axes.plot(rows["blocks"], expected, ls=":", color=style.FULL, label=label, zorder=2)


def _paper(axes: Axes) -> None:
    axes.axhline(PAPER_BOUND, color=style.PAPER, ls="-.", lw=1.2, label=PAPER_LABEL, zorder=2)
    axes.annotate(  # in the margin, where no point can lie
        "4 %",
        (1.0, PAPER_BOUND),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        color=style.PAPER,
        fontsize=9,
    )


def _setting(steps: pd.DataFrame, column: str, before: str, after: str = "") -> str:
    values = sorted(set(steps[column]))
    return f"At {before}{' and '.join(map(str, values))}{after}" if values else "Not measured"
