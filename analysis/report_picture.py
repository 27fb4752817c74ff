"""A rendered picture as part of the page: a data URI, as small as its form allows."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from analysis.report_html import Markup, tag
from repro.errors import DataError

# Above this an SVG holds so many points that pixels are the shorter form.
LARGE_SVG = 400_000
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_PATH = re.compile(r'(?<= d=")[^"]*(?=")')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_PIXELS_PER_POINT = 96 / 72


def picture_html(svg: Path, alternative: str) -> Markup:
    """The picture as an ``img`` with its own size, so that the page does not move while it loads.

    svg: the vector file; beside it lies a ``.png``, taken where the SVG is large and the PNG smaller.
    alternative: what the picture is, for those who do not see it.
    """
    source = svg.read_text(encoding="utf-8")
    width, height = size(source)
    data, kind = short_svg(source).encode("utf-8"), "image/svg+xml"
    png = svg.with_suffix(".png")
    if len(data) > LARGE_SVG and png.exists() and png.stat().st_size < len(data):
        data, kind = png.read_bytes(), "image/png"
    return tag(
        "img",
        src=f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}",
        alt=alternative,
        width=str(round(width)),
        height=str(round(height)),
    )


def size(svg: str) -> tuple[float, float]:
    """Width and height in CSS pixels of an SVG whose root states them in points, as matplotlib's does."""
    found = re.search(r'<svg[^>]*?\bwidth="([\d.]+)pt"[^>]*?\bheight="([\d.]+)pt"', svg)
    if found is None:
        raise DataError("an SVG states no width and height in points; render the item again")
    width, height = map(float, found.groups())
    return width * _PIXELS_PER_POINT, height * _PIXELS_PER_POINT


def short_svg(svg: str) -> str:
    """The same drawing in fewer bytes: no metadata, path coordinates to 0.01 units (1/100 point or finer)."""
    svg = _METADATA.sub("", svg)

    def shorten(path: re.Match[str]) -> str:
        numbers = _LONG_NUMBER.sub(
            lambda number: f"{float(number.group()):.2f}".rstrip("0").rstrip("."), path.group()
        )
        return " ".join(numbers.split())

    return _PATH.sub(shorten, svg)
