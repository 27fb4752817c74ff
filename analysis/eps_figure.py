"""The eps confound as a picture: deviation at initialisation by depth, and final loss, against eps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.ablation import BASELINE
from analysis.eps import Deviations, EpsData, Init, init_label

DEPTH_COLOURS = (style.SKY, style.BLUE, style.ORANGE, style.VERMILION, style.PURPLE, style.GREY)
LINES = ("-", "--", ":")
ARM_LOOKS = {"prenorm": (style.PRENORM, "o"), "full": (style.FULL, "^"), "block_s4": (style.BLOCK, "s")}


def eps_figure(data: EpsData, labels: Mapping[str, str]) -> Figure:
    """One panel per initialisation, and one for the final losses where they were trained."""
    inits: list[Init] = data.deviations.levels(0) if data.deviations else []
    columns = len(inits) + (data.losses is not None)
    with style.styled():
        figure, panels = style.new_figure(max(5.6, 4.6 * columns), 4.8, columns)
        if data.deviations:
            every = [v for found in data.deviations.values.values() for v in found]
            low, high = min(every), max(every)
            for axes, init in zip(panels, inits, strict=False):
                _deviations(axes, data.deviations, init, labels)
                axes.set_ylim(low / 2, high * 2)
        if data.losses:
            _losses(panels[-1], data, labels)
        handles: dict[str, Any] = {}
        for axes in panels[: len(inits)]:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        columns_of_legend = max(1, math.ceil(len(handles) / 2))
        if handles:
            figure.legend(
                list(handles.values()),
                list(handles),
                loc="lower center",
                ncols=columns_of_legend,
                title="$L_b$: transformer blocks",
            )
        figure.tight_layout(rect=(0, 0.16 if handles else 0, 1, 1), w_pad=2.0)
        return figure


def _deviations(axes: Axes, found: Deviations, init: Init, labels: Mapping[str, str]) -> None:
    for line, arm in zip(LINES, found.levels(1), strict=False):
        for color, depth in zip(DEPTH_COLOURS, sorted(found.levels(2)), strict=False):
            points = [
                (eps, found.mean(init, arm, depth, eps))
                for eps in sorted(found.levels(3))
                if (init, arm, depth, eps) in found.values
            ]
            if points:
                label = f"{labels[arm]}, $L_b$ = {depth}"
                axes.plot(*zip(*points, strict=True), line, color=color, marker="o", ms=3.5, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("eps of the norms")
    axes.set_ylabel("deviation of the logits from PreNorm's\n(standard deviations)")
    axes.set_title(f"At initialisation ({init_label(init)})", fontsize=10)


def _losses(axes: Axes, data: EpsData, labels: Mapping[str, str]) -> None:
    assert data.losses is not None
    for arm in data.losses.arms:
        points = [(eps, loss.estimate) for eps in data.eps if (loss := data.loss(arm, eps))]
        color, marker = ARM_LOOKS[arm]
        if points:
            axes.plot(*zip(*points, strict=True), marker=marker, color=color, label=labels[arm])
        if arm == BASELINE:
            continue
        for eps in data.eps:  # what the distance to PreNorm's line is worth
            gap, loss = data.gap(arm, eps), data.loss(arm, eps)
            if gap and loss and math.isfinite(gap.low):
                ends = [loss.estimate + end - gap.estimate for end in (gap.low, gap.high)]
                axes.plot([eps, eps], ends, color=color, lw=5, alpha=0.3, solid_capstyle="butt")
    axes.set_xscale("log")
    axes.set_xlabel("eps of the norms")
    axes.set_ylabel("validation loss (nats per token)")
    count = len({run.seeds for run in data.losses.runs})
    axes.set_title(f"Trained (scale {data.scale}, {count} seed{'s' * (count != 1)})", fontsize=10)
    axes.legend(loc="best")
