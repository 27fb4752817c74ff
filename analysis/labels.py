"""Labels beside points that cover neither each other nor a point: the nearest free place of a fixed list.

Places are rings of directions around the point, in pixels of the figure as it is drawn; what does not stand
right beside its point gets a thin line to it. No place is random, so a picture is the same when drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from analysis import style

_RINGS = (7, 12, 18, 26, 36, 48, 62, 78, 96, 116, 138)  # pixels at 100 per inch
_DIRECTIONS = 16
_PAD = 1.5


@dataclass(frozen=True)
class _Place:
    box: Bbox
    foot: tuple[float, float]
    ring: int


def label_points(
    axes: Axes, points: Sequence[tuple[float, float, str]], *, bars: Sequence[Bbox] = (), size: float = 8.5
) -> None:
    """Write each text beside its point (data coordinates); call when limits and layout are final.

    bars: boxes in pixels that a label should rather not cover (intervals).
    """
    figure: Any = axes.figure
    renderer = figure.canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    spots = [tuple(axes.transData.transform((x, y))) for x, y, _ in points]
    markers = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    placed: list[Bbox] = []
    lines: list[tuple[tuple[float, float], tuple[float, float]]] = []
    crowd = [sum(math.dist(a, b) < 80 for b in spots) for a in spots]
    for index in sorted(range(len(points)), key=lambda i: (-crowd[i], i)):
        text, spot = points[index][2], spots[index]
        probe = axes.text(0, 0, text, fontsize=size)
        extent = probe.get_window_extent(renderer)
        probe.remove()
        others = [box for place, box in enumerate(markers) if place != index]

        def cost(place: _Place, spot=spot, others=others) -> float:  # type: ignore[no-untyped-def]
            padded = place.box.padded(_PAD)
            hard = sum(_overlap(padded, box) for box in (*placed, *others))
            hard += place.box.width * place.box.height - _overlap(place.box, inside)
            hard += 200 * sum(_crosses(line, padded) for line in lines)
            leader = (spot, place.foot)
            hard += 200 * sum(_crosses(leader, box) for box in (*placed, *others)) if place.ring > 1 else 0
            return 100 * hard + 0.15 * sum(_overlap(padded, bar) for bar in bars) + _RINGS[place.ring]

        best = min(_places(spot, extent.width, extent.height), key=cost)
        placed.append(best.box)
        _write(axes, text, best, size)
        if best.ring > 1:
            lines.append((spot, best.foot))
            ends = axes.transData.inverted().transform([spot, best.foot])
            axes.plot(ends[:, 0], ends[:, 1], color="#222222", lw=0.7, zorder=4, scalex=False, scaley=False)


def _places(spot: tuple[float, float], width: float, height: float) -> list[_Place]:
    found = []
    for ring, radius in enumerate(_RINGS):
        for step in range(_DIRECTIONS):
            angle = 2 * math.pi * step / _DIRECTIONS
            dx, dy = math.cos(angle), math.sin(angle)
            x, y = spot[0] + radius * dx, spot[1] + radius * dy
            left = x - width * (0.5 - 0.5 * max(-1.0, min(1.0, 1.6 * dx)))
            bottom = y - height * (0.5 - 0.5 * max(-1.0, min(1.0, 1.6 * dy)))
            found.append(_Place(Bbox.from_bounds(left, bottom, width, height), (x, y), ring))
    return found


def _write(axes: Axes, text: str, place: _Place, size: float) -> None:
    x, y = axes.transData.inverted().transform((place.box.x0, place.box.y0))
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        ha="left",
        va="bottom",
        zorder=6,
        path_effects=[patheffects.withStroke(linewidth=2, foreground="white")],
    )


def _overlap(a: Bbox, b: Bbox) -> float:
    width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return width * height if width > 0 and height > 0 else 0.0


def _crosses(line: tuple[tuple[float, float], tuple[float, float]], box: Bbox) -> bool:
    """Whether a segment enters a box (sampled every two pixels)."""
    (x0, y0), (x1, y1) = line
    count = max(2, int(math.dist(*line) / 2))
    return any(
        box.x0 < x0 + (x1 - x0) * k / count < box.x1 and box.y0 < y0 + (y1 - y0) * k / count < box.y1
        for k in range(count + 1)
    )
