"""Conversions as a picture: loss on the way, and its difference to the continued PreNorm run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.ablation import BASELINE
from analysis.convert import ConvertData, Row
from analysis.convert_view import METHOD_TEXT

_COLOURS = (style.BLUE, style.GREEN, style.ORANGE, style.PURPLE, style.SKY, style.VERMILION)
_DASHES = {"exact": "-", "keep_eps": (0, (3, 2))}


def convert_figure(data: ConvertData, title: str) -> Figure:
    """Lines: means over seeds, thin ones: single seeds; dashed with rings: eps kept.

    Left: loss; right: its difference to the continued run, whose line is broad since others lie on it.
    """
    arms = list(dict.fromkeys(row.arm for row in data.rows if row.arm != BASELINE))
    colours = {arm: _COLOURS[place % len(_COLOURS)] for place, arm in enumerate(arms)} | {
        BASELINE: style.GREY
    }
    with style.styled():
        figure, (loss, gain) = style.new_figure(10.6, 4.7, 2)
        for row in data.rows:
            curves = [pair.curve for pair in row.pairs if pair.curve]
            _draw(loss, curves, row, colours[row.arm])
            if row.arm != BASELINE:
                differences = [d for seed in range(len(row.pairs)) if (d := row.differences(seed))]
                _draw(gain, differences, row, colours[row.arm])
        before = float(np.mean([row.before for row in data.rows])) if data.rows else 0.0
        gain.axhline(0, color=style.GREY, lw=1.6, zorder=1)
        for axes in (loss, gain):
            axes.set_xlabel(f"steps after the conversion (parent: {data.parent_steps})")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        loss.set_ylabel("loss on the validation subset\n(nats per token)")
        gain.set_ylabel("minus continued PreNorm\n(nats per token; lower is better)")
        loss.set_title(f"Loss (before: {before:.3f} on all of validation)", fontsize=10)
        gain.set_title("Difference to the continued run", fontsize=10)
        handles, labels = loss.get_legend_handles_labels()
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, weight="bold")
        figure.legend(handles, labels, loc="lower center", ncols=3, handlelength=3.5)
        rows = -(-len(labels) // 3)
        figure.tight_layout(rect=(0, 0.02 + 0.055 * rows, 1, 0.98))
        return figure


def _draw(axes: Axes, curves: Sequence[Mapping[int, float]], row: Row, colour: str) -> None:
    if not curves:
        return
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    how: dict[str, Any] = {"color": colour, "ls": _DASHES.get(row.method, "-")}
    if len(curves) > 1:
        for curve in curves:
            axes.plot(steps, [curve[step] for step in steps], lw=0.7, alpha=0.45, zorder=2, **how)
    mean = [float(np.mean([curve[step] for curve in curves])) for step in steps]
    method = "" if row.arm == BASELINE else f", {METHOD_TEXT.get(row.method, row.method)}"
    name = "continued PreNorm" if row.arm == BASELINE else row.label
    seeds = f" ({len(curves)} seed{'s' * (len(curves) != 1)})"
    if row.arm == BASELINE:
        how |= {"lw": 5, "alpha": 0.4, "ms": 0}
    elif row.method == "keep_eps":
        how |= {"lw": 1.6, "ms": 8, "mfc": "none"}
    axes.plot(steps, mean, marker="o", label=name + method + seeds, zorder=3, **{"lw": 1.6, "ms": 4, **how})
