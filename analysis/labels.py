"""Labels beside points that cover neither each other nor a point: the nearest free place of a fixed list.

Places are rings of directions around the point, in pixels of the figure as it is drawn; what does not stand
right beside its point gets a thin line to it. No place is random, so a picture is the same when drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

_PAD = 1.5
_RINGS = (7, 12, 18, 26, 36, 48, 62, 78, 96, 116, 138)  # pixels at 100 per inch
_DIRECTIONS = 16
_MARKER = 4.5
_ROUNDS = 4
_HARD = 1e4

_Line = tuple[tuple[float, float], tuple[float, float]]
_Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels


@dataclass(frozen=True)
class _Place:
    box: _Box
    foot: tuple[float, float]
    ring: int

    @property
    def has_line(self) -> bool:
        """Whether the label is too far from its point to go without a line to it."""
        return self.ring > 1


def label_points(
    axes: Axes, points: Sequence[tuple[float, float, str]], *, bars: Sequence[Bbox] = (), size: float = 8.5
) -> None:
    """Write each text beside its point (data coordinates); call when limits and layout are final.

    bars: boxes in pixels that a label should rather not cover (intervals, lines).  Points at one place should
    be one point with one text.
    """
    figure: Any = axes.figure
    renderer = figure.canvas.get_renderer()
    spots = [(float(x), float(y)) for x, y in (axes.transData.transform(p[:2]) for p in points)]
    extents = [_extent(axes, text, size, renderer) for _, _, text in points]
    chosen = _arrange(spots, extents, [_box(bar) for bar in bars], _box(axes.get_window_extent(renderer)))
    for spot, place, (_, _, text) in zip(spots, chosen, points, strict=True):
        _write(axes, text, place, size)
        if place.has_line:
            ends = axes.transData.inverted().transform([spot, place.foot])
            axes.plot(ends[:, 0], ends[:, 1], color="#222222", lw=0.7, zorder=4, scalex=False, scaley=False)


def _arrange(
    spots: Sequence[tuple[float, float]],
    extents: Sequence[tuple[float, float]],
    bars: Sequence[_Box],
    inside: _Box,
) -> list[_Place]:
    """The places: one label after another from the most crowded point, then each anew given all others."""
    markers = [(x - _MARKER, y - _MARKER, x + _MARKER, y + _MARKER) for x, y in spots]
    crowd = [sum(math.dist(a, b) < 80 for b in spots) for a in spots]
    order = sorted(range(len(spots)), key=lambda i: (-crowd[i], i))
    chosen: dict[int, _Place] = {}
    for _ in range(_ROUNDS):
        before = dict(chosen)
        for index in order:
            others = [(spots[i], place) for i, place in chosen.items() if i != index]
            boxes = [place.box for _, place in others] + [m for i, m in enumerate(markers) if i != index]
            lines = [_line(spot, place) for spot, place in others if place.has_line]
            chosen[index] = min(
                _places(spots[index], *extents[index]),
                key=lambda place, i=index, b=boxes, s=lines: _cost(  # type: ignore[misc]
                    place, spots[i], b, s, bars, inside
                ),
            )
        if chosen == before:
            break
    return [chosen[index] for index in range(len(spots))]


def _cost(
    place: _Place,
    spot: tuple[float, float],
    boxes: Sequence[_Box],
    lines: Sequence[_Line],
    bars: Sequence[_Box],
    inside: _Box,
) -> float:
    """Covered text and points first, then lines across text, then covered bars, then distance."""
    left, bottom, right, top = place.box
    padded = left - _PAD, bottom - _PAD, right + _PAD, top + _PAD
    covered = [area for box in boxes if (area := _overlap(padded, box)) > 0]
    if _overlap(place.box, inside) < 0.999 * (right - left) * (top - bottom):
        covered.append(_HARD)
    crossed = sum(_crosses(line, padded) for line in lines)
    if place.has_line:
        crossed += sum(_crosses(_line(spot, place), box) for box in boxes)
    softly = 0.15 * sum(_overlap(padded, bar) for bar in bars)
    return _HARD * len(covered) + 10 * sum(covered) + 0.3 * _HARD * crossed + softly + _RINGS[place.ring]


def _line(spot: tuple[float, float], place: _Place) -> _Line:
    """From the rim of the point to the label; the point may itself lie under its neighbour."""
    length = math.dist(spot, place.foot)
    share = min(1.0, 2 * _MARKER / length)
    start = (spot[0] + share * (place.foot[0] - spot[0]), spot[1] + share * (place.foot[1] - spot[1]))
    return start, place.foot


def _extent(axes: Axes, text: str, size: float, renderer: Any) -> tuple[float, float]:
    probe = axes.text(0, 0, text, fontsize=size)
    box = probe.get_window_extent(renderer)
    probe.remove()
    return box.width, box.height


def _places(spot: tuple[float, float], width: float, height: float) -> list[_Place]:
    found = []
    for ring, radius in enumerate(_RINGS):
        for step in range(_DIRECTIONS):
            angle = 2 * math.pi * step / _DIRECTIONS
            dx, dy = math.cos(angle), math.sin(angle)
            x, y = spot[0] + radius * dx, spot[1] + radius * dy
            left = x - width * (0.5 - 0.5 * max(-1.0, min(1.0, 1.6 * dx)))
            bottom = y - height * (0.5 - 0.5 * max(-1.0, min(1.0, 1.6 * dy)))
            found.append(_Place((left, bottom, left + width, bottom + height), (x, y), ring))
    return found


def _write(axes: Axes, text: str, place: _Place, size: float) -> None:
    x, y = axes.transData.inverted().transform(place.box[:2])
    axes.text(
        x,
        y,
        text,
        fontsize=size,
        ha="left",
        va="bottom",
        zorder=6,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5},
    )


def _box(box: Bbox) -> _Box:
    return float(box.x0), float(box.y0), float(box.x1), float(box.y1)


def _overlap(a: _Box, b: _Box) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _crosses(line: _Line, box: _Box) -> bool:
    """Whether a segment enters a box: the part within both pairs of its sides is not empty."""
    (x0, y0), (x1, y1) = line
    start, end = 0.0, 1.0
    for at, step, low, high in ((x0, x1 - x0, box[0], box[2]), (y0, y1 - y0, box[1], box[3])):
        if step == 0:
            if not low < at < high:
                return False
            continue
        near, far = sorted(((low - at) / step, (high - at) / step))
        start, end = max(start, near), min(end, far)
    return start < end
