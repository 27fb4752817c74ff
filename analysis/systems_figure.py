"""Table 5 as a picture: what each system carries per token and what it learns, by kind of weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.systems import MISSING, Arm, Schemes, System

_WEIGHTS = {"fixed": (style.GREY, "s"), "static": (style.ORANGE, "o"), "dynamic": (style.BLUE, "D")}
_HATCH: Any = {"facecolor": "none", "edgecolor": "#D5D5D5", "hatch": "////", "linewidth": 0}


def systems_figure(found: Sequence[System], schemes: Schemes) -> Figure:
    """A row per system, a mark per principal arm: state per token, and extra parameters."""
    with style.styled():
        figure, (state, parameters) = style.new_figure(11.4, 1.6 + 0.34 * len(found), 2)
        _panel(state, found, lambda arm: arm.state_activations)
        _panel(parameters, found, lambda arm: arm.extra_parameters)
        state.set_xscale("log", base=2)
        state.set_xlim(0.75, 1.4 * max(_largest(found, lambda arm: arm.state_activations), 45))
        ticks = [1, 2, 4, 8, 16, 32, 64]
        state.set_xticks(ticks, [str(tick) for tick in ticks])
        state.minorticks_off()
        state.set_xlabel("state per token, largest between two steps\n(activations of width d)")
        state.set_yticks(range(len(found)), [system.name for system in found])
        parameters.set_xscale("symlog", linthresh=10)
        parameters.set_xlim(-3, 4 * max(_largest(found, lambda arm: arm.extra_parameters), 1e7))
        parameters.set_xticks([0, 1e1, 1e3, 1e5, 1e7, 1e9])
        parameters.minorticks_off()
        parameters.set_xlabel(
            f"extra parameters\n(L = {schemes.num_sublayers} sublayers, width {schemes.width})"
        )
        parameters.set_yticks(range(len(found)), [])
        for weight, (colour, marker) in _WEIGHTS.items():
            state.plot([], [], marker, color=colour, label=f"{weight} weights")
        if not all(system.arms for system in found):
            state.bar(0, 0, label=MISSING, **_HATCH)
        handles, labels = state.get_legend_handles_labels()
        figure.legend(handles, labels, loc="upper center", ncols=len(labels))
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()))
        return figure


def _largest(found: Sequence[System], value: Callable[[Arm], int]) -> float:
    return max((value(arm) for system in found for arm in system.principal), default=0)


def _panel(axes: Axes, found: Sequence[System], value: Callable[[Arm], int]) -> None:
    for row, system in enumerate(found):
        if not system.arms:
            axes.axhspan(row - 0.4, row + 0.4, **_HATCH)
            continue
        values = [value(arm) for arm in system.principal]
        colour, marker = _WEIGHTS[system.principal[0].weight]
        axes.plot([min(values), max(values)], [row, row], color=colour, lw=1.2, alpha=0.6)
        axes.plot(values, [row] * len(values), marker, color=colour, ms=6.5, clip_on=False)
    axes.set_ylim(len(found) - 0.4, -0.6)
