"""Differences and intervals as text: signs, and digits that show which end is not zero."""

from __future__ import annotations

import math

from analysis.stats import Interval


def interval_text(interval: Interval) -> str:
    """``-0.013 [-0.017, -0.009]``, with more digits where an end that is not zero would read as zero."""
    if not math.isfinite(interval.low):
        return signed(interval.estimate)
    ends = [end for end in (interval.low, interval.high) if end != 0]
    digits = next((n for n in range(3, 9) if all(round(end, n) != 0 for end in ends)), 9)
    low, high = (
        signed(end, digits) if end == 0 or round(end, digits) else f"{end:+.0e}"
        for end in (interval.low, interval.high)
    )
    return f"{signed(interval.estimate, digits)} [{low}, {high}]"


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign; none for what rounds to zero."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]
