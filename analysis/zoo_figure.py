"""The zoo as a picture: a row per arm, by group; loss minus PreNorm, step time, memory, extra parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.ablation import BASELINE
from analysis.zoo import Entry, Zoo

# Layout in inches: labels, then four panels.
_ROW, _ABOVE, _BELOW, _LABELS, _EDGE, _GAP = 0.235, 0.5, 0.95, 3.25, 0.15, 0.22
_PANELS = (3.9, 1.55, 1.55, 1.75)
_HATCH: Any = {"facecolor": "none", "edgecolor": "#D5D5D5", "hatch": "////", "linewidth": 0, "zorder": 0}
#: Beyond this the axis of losses is logarithmic, so that one bad arm does not flatten all others.
_WIDE, _LINEAR = 1.0, 0.2


def zoo_figure(data: Zoo, title: str) -> Figure:
    """Filled circles: over seeds; hollow: one seed. Hatched: not trained or not measured."""
    places, heads = _places(data)
    rows = max([*places.values(), 0]) + 1
    width = _EDGE + _LABELS + sum(_PANELS) + _GAP * (len(_PANELS) - 1) + 2 * _EDGE
    height = _ABOVE + _ROW * rows + _BELOW
    with style.styled():
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        left = _EDGE + _LABELS
        panels = []
        for size in _PANELS:
            box = (left / width, _BELOW / height, size / width, _ROW * rows / height)
            panels.append(figure.add_axes(box))
            left += size + _GAP
        for axes in panels:
            _frame(axes, rows, heads.values())
        loss, time, memory, parameters = panels
        _names(loss, data, places, heads)
        _losses(loss, data, places)
        _costs(time, data, places, _step_time)
        time.set_xlabel("training step\n(PreNorm = 1)")
        _costs(memory, data, places, lambda entry: entry.memory)
        memory.set_xlabel("peak memory of a step\n(PreNorm = 1)")
        _parameters(parameters, data, places)
        figure.text(0.1 / width, 1 - 0.1 / height, title, fontsize=11.5, weight="bold", va="top")
        figure.legend(handles=_legend(loss, data), loc="lower left", ncols=4, borderaxespad=0.3, fontsize=8.5)
        return figure


def _places(data: Zoo) -> tuple[dict[str, int], dict[str, int]]:
    """Line of each arm and of each group's name."""
    arms: dict[str, int] = {}
    groups: dict[str, int] = {}
    line = 0
    for group in data.groups:
        groups[group] = line
        for entry in data.entries:
            if entry.group == group:
                line += 1
                arms[entry.row.spec.name] = line
        line += 1
    return arms, groups


def _frame(axes: Axes, rows: int, heads: Any) -> None:
    axes.set_ylim(rows - 0.5, -0.5)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    for head in heads:
        axes.axhspan(head - 0.5, head + 0.5, color="#EDEDED", lw=0, zorder=1.5)


def _names(axes: Axes, data: Zoo, places: dict[str, int], heads: dict[str, int]) -> None:
    where = axes.get_yaxis_transform()
    x = -_LABELS / _PANELS[0]
    for group, line in heads.items():
        axes.text(x, line, group, transform=where, va="center", weight="bold", fontsize=9)
    for entry in data.entries:
        label = entry.row.spec.label
        label = label if len(label) <= 44 else label[:43] + "…"
        axes.text(x + 0.03, places[entry.row.spec.name], label, transform=where, va="center", fontsize=8.5)


def _losses(axes: Axes, data: Zoo, places: dict[str, int]) -> None:
    axes.axvline(0, color=style.PRENORM, lw=1.1, zorder=1)
    ends = []
    for entry in data.entries:
        y, ours = places[entry.row.spec.name], entry.difference
        if entry.row.spec.name == BASELINE and entry.row.done:
            axes.plot(0, y, "s", color=style.PRENORM, ms=5, zorder=4)
        elif ours is None:
            axes.axhspan(y - 0.4, y + 0.4, **_HATCH)
            axes.text(0.02, y, entry.row.status, transform=axes.get_yaxis_transform(), va="center",
                      fontsize=8.5, style="italic", bbox={"fc": "white", "ec": "none", "pad": 1})  # fmt: skip
        else:
            ends += [value for value in (ours.estimate, ours.low, ours.high) if math.isfinite(value)]
            if math.isfinite(ours.low):
                axes.plot([ours.low, ours.high], [y, y], color=style.OURS, lw=2, zorder=3)
            filled = style.OURS if ours.kind == "seeds" else "white"
            axes.plot(ours.estimate, y, "o", color=style.OURS, mfc=filled, ms=5, mew=1.3, zorder=4)
        paper = entry.row.to_prenorm.paper if entry.row.to_prenorm else math.nan
        if math.isfinite(paper) and entry.row.spec.name != BASELINE:
            axes.plot(paper, y, "D", mfc="none", mec=style.PAPER, mew=1.2, ms=4.5, zorder=5)
            ends.append(paper)
    label = "validation loss minus PreNorm (nats per token);\nleft of zero is better"
    if max(map(abs, ends), default=0) > _WIDE:
        axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.5)
        most = max(map(abs, ends))
        ticks = [t for t in (-10, -3, -1, -0.2, -0.1, 0, 0.1, 0.2, 1, 3, 10) if abs(t) <= most * 1.2]
        axes.set_xticks(ticks, [f"{t:g}".replace("-", "−") for t in ticks])
        axes.minorticks_off()
        label += f"; logarithmic beyond ±{_LINEAR}"
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.margins(x=0.06)
    axes.set_xlabel(label)


def _step_time(entry: Entry) -> float | None:
    return entry.step_time.ratio if entry.step_time else None


def _costs(axes: Axes, data: Zoo, places: dict[str, int], value: Callable[[Entry], float | None]) -> None:
    axes.axvline(1, color=style.PRENORM, lw=1.1, zorder=1)
    found = []
    for entry in data.entries:
        y, cost = places[entry.row.spec.name], value(entry)
        if cost is None:
            axes.axhspan(y - 0.4, y + 0.4, **_HATCH)
            continue
        found.append(cost)
        axes.plot([1, cost], [y, y], color=style.ORANGE, lw=3, zorder=2, solid_capstyle="butt")
        axes.text(max(cost, 1), y, f" {cost:.2f}", va="center", fontsize=8)
    high = max([*found, 1.1])
    low = min([*found, 1.0])
    axes.set_xlim(min(1 - 0.05 * (high - 1), low), high + 0.32 * (high - low))
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))


def _parameters(axes: Axes, data: Zoo, places: dict[str, int]) -> None:
    axes.set_xscale("symlog", linthresh=100)
    found = [e.extra_parameters for e in data.entries if e.extra_parameters is not None]
    for entry in data.entries:
        y, extra = places[entry.row.spec.name], entry.extra_parameters
        if extra is None:
            axes.axhspan(y - 0.4, y + 0.4, **_HATCH)
        else:
            axes.plot([0, extra], [y, y], color=style.SKY, lw=3, zorder=2, solid_capstyle="butt")
            axes.text(max(extra, 0), y, f" {_compact(extra)}", va="center", fontsize=8)
    high = max([*found, 100])
    powers = [0, *(10**n for n in range(2, 1 + int(math.log10(high)), 2))]
    axes.set_xticks(powers, ["0", *(f"$10^{{{int(math.log10(p))}}}$" for p in powers[1:])])
    axes.minorticks_off()
    axes.set_xlim(min([*found, 0]) - 10, high * 40)
    axes.set_xlabel("extra parameters\n(linear below 100)")


def _compact(value: int) -> str:
    for size, unit in ((10**6, "M"), (10**3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return str(value).replace("-", "−")


def _legend(axes: Axes, data: Zoo) -> list[Any]:
    handles: list[Any] = []
    kinds = {entry.difference.kind for entry in data.entries if entry.difference}
    bar: Any = {"marker": "o", "color": style.OURS, "lw": 2, "ms": 5, "mew": 1.3}
    if "seeds" in kinds:
        handles += axes.plot([], [], label="ours, 95 % over paired seeds", **bar)
    if kinds - {"seeds"}:
        handles += axes.plot([], [], label="ours, one seed, 95 % over documents alone", mfc="white", **bar)
    paper = [entry.row.to_prenorm.paper for entry in data.entries if entry.row.to_prenorm]
    if any(math.isfinite(value) for value in paper):
        how: Any = {"mfc": "none", "mec": style.PAPER, "mew": 1.2, "ms": 4.5}
        handles += axes.plot([], [], "D", label="paper (Table 4)", **how)
    lacks = any(
        None in (e.step_time, e.memory, e.extra_parameters)
        or (e.difference is None and e.row.spec.name != BASELINE)
        for e in data.entries
    )
    if lacks:
        handles.append(Patch(label="no result, or not measured", **_HATCH))
    return handles
