"""The trade-off as a picture: one panel per kind of cost, loss minus PreNorm upwards, every arm by name."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from analysis import style
from analysis.ablation import BASELINE
from analysis.labels import label_points
from analysis.tradeoff import CostAxis, Point, TradeOff

# Layout in inches: panels below one another, each with its caption below it.
_WIDTH, _PANEL, _CAPTION, _ABOVE, _BELOW, _LEFT, _RIGHT = 10.0, 5.2, 0.95, 0.45, 0.4, 1.05, 0.25


def tradeoff_figure(data: TradeOff, title: str) -> Figure:
    """Circles: filled where all of PreNorm's seeds are there, else hollow and not on the front."""
    color = style.PAPER if data.is_published else style.OURS
    with style.styled():
        height = _ABOVE + _PANEL * len(data.axes) + _BELOW
        figure = Figure(figsize=(_WIDTH, height))
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(len(data.axes), 1, squeeze=False)[:, 0])
        drawn = [data.points(axis) for axis in data.axes]
        low, high = _ends([point for points in drawn for point in points])
        margin = 0.07 * (high - low)
        for place, (axes, axis, points) in enumerate(zip(panels, data.axes, drawn, strict=True)):
            bottom = _BELOW + _PANEL * (len(panels) - 1 - place) + _CAPTION
            shape = (_LEFT, bottom, _WIDTH - _LEFT - _RIGHT, _PANEL - _CAPTION)
            axes.set_position((shape[0] / _WIDTH, shape[1] / height, shape[2] / _WIDTH, shape[3] / height))
            _frame(axes, axis, points)
            axes.set_ylim(low - margin, high + margin)
            axes.set_ylabel("loss minus PreNorm\n(nats per token; lower is better)")
            _draw(axes, points, color)
            if missing := _not_drawn(data, points):
                text = textwrap.fill(missing, 130)
                top = (bottom - 0.52) / height
                figure.text(_LEFT / _WIDTH, top, text, fontsize=8, va="top", color=style.GREY)
        figure.text(0.1 / _WIDTH, 1 - 0.12 / height, title, fontsize=11.5, weight="bold", va="top")
        handles = _legend(panels[0], data, [p for points in drawn for p in points], color)
        figure.legend(handles=handles, loc="lower left", ncols=len(handles), borderaxespad=0.6)
        return figure


def _frame(axes: Axes, axis: CostAxis, points: Sequence[Point]) -> None:
    axes.set_xlabel(axis.label)
    if not points:
        axes.text(0.5, 0.5, axis.absent, transform=axes.transAxes, ha="center", va="center", style="italic")
        axes.set_xticks([])
        axes.tick_params(left=False, labelleft=False)
        axes.grid(visible=False)
        return
    values = [p.cost.value for p in points]
    if axis.scale == "symlog":
        axes.set_xscale("symlog", linthresh=1000)
        axes.set_xlim(-350, 6 * max(values))
        powers = range(3, 1 + int(math.log10(6 * max(values, default=1) + 1e3)))
        axes.set_xticks([0, *(10**n for n in powers)], ["0", *(f"$10^{n}$" for n in powers)])
        axes.minorticks_off()
        return
    axes.set_xscale(axis.scale)
    low, high = min(values), max(values)
    if axis.scale == "log":
        axes.set_xlim(low / 1.3, high * 1.45)
        ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50) if low / 1.3 <= tick <= high * 1.45]
        axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.set_xlim(low - 0.06 * (high - low or 1), high + 0.12 * (high - low or 1))


def _draw(axes: Axes, points: Sequence[Point], color: str) -> None:
    if not points:
        return
    axes.axhline(0, color=style.PRENORM, lw=1.0, ls="--", zorder=1)
    lines = [[(axes.get_xlim()[0], 0.0), (axes.get_xlim()[1], 0.0)]]
    for p in points:
        x, y = p.cost.value, p.gain
        if math.isfinite(p.low):
            axes.plot([x, x], [p.low, p.high], color=color, alpha=0.35, lw=1.8, zorder=2)
            lines.append([(x, p.low), (x, p.high)])
        if math.isfinite(p.cost.low):
            axes.plot([p.cost.low, p.cost.high], [y, y], color=color, alpha=0.6, lw=1.8, zorder=2)
            lines.append([(p.cost.low, y), (p.cost.high, y)])
        shade = style.PRENORM if p.arm == BASELINE else color
        axes.plot(x, y, "o", zorder=5, **_marker(p.comparable, shade))
    front = sorted((p.cost.value, p.gain) for p in points if p.on_front)
    if len(front) > 1:
        axes.step(*zip(*front, strict=True), where="post", color=style.GREEN, lw=1.4, zorder=3)
        for (x, y), (next_x, next_y) in pairwise(front):
            lines += [[(x, y), (next_x, y)], [(next_x, y), (next_x, next_y)]]
    bars = [_thin(axes.transData.transform(line)) for line in lines]
    together: dict[tuple[float, float], list[str]] = {}
    for p in points:
        together.setdefault((p.cost.value, p.gain), []).append(p.label)
    label_points(axes, [(x, y, " and ".join(names)) for (x, y), names in together.items()], bars=bars)


def _thin(ends: Any) -> Bbox:
    """A level or upright line as a box in pixels."""
    (x0, y0), (x1, y1) = ends
    return Bbox.from_extents(min(x0, x1) - 1, min(y0, y1) - 1, max(x0, x1) + 1, max(y0, y1) + 1)


def _ends(points: Sequence[Point]) -> tuple[float, float]:
    values = [v for p in points for v in (p.gain, p.low, p.high) if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (low, high) if high > low else (low - 0.01, high + 0.01)


def _legend(axes: Axes, data: TradeOff, points: Sequence[Point], color: str) -> list[Any]:
    handles = []

    def add(label: str, **how: Any) -> None:
        handles.extend(axes.plot([], [], label=label, **how))

    if data.is_published:
        add("paper, one run, no interval", marker="o", ls="", **_marker(True, color))
    else:
        seeds = len(data.table.rows[0].seeds)
        bar = {"lw": 1.8}
        known = {p.comparable for p in points}
        if True in known:
            add(f"ours, {seeds} seed{'s' * (seeds != 1)}, 95 %", marker="o", **bar, **_marker(True, color))
        if False in known:
            add("fewer seeds than PreNorm (not on the front)", marker="o", **bar, **_marker(False, color))
    if any(p.on_front for p in points):
        add("front of the estimates", color=style.GREEN, lw=1.4)
    add("PreNorm", color=style.PRENORM, lw=1.0, ls="--")
    return handles


def _marker(filled: bool, color: str) -> dict[str, Any]:
    return {"color": color, "ms": 6, "mew": 1.4, "mfc": color if filled else "white"}


def _not_drawn(data: TradeOff, points: Sequence[Point]) -> str:
    drawn = {p.arm for p in points}
    missing = [row.spec.label for row in data.table.rows if row.spec.name not in drawn]
    if not missing or not points:
        return ""
    why = (
        "not stated by the paper, not drawn" if data.is_published else "no result or not measured, not drawn"
    )
    return f"{why}: {', '.join(missing)}"
