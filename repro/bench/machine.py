"""Was anything else running? Work of other processes on this machine, and what a result file says of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

#: cores' worth of other work, and interquartile range of PreNorm's step over its median: above, not quiet
OTHERS_LIMIT = 0.15
SPREAD_LIMIT = 0.10


def load_average() -> float | None:
    """Over the last minute, this process included."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


class Watch:
    """Cores' worth of work that others did since it was made."""

    def __init__(self) -> None:
        self._started = self._now()

    def others(self) -> float | None:
        """None where the system does not say (no /proc/stat)."""
        busy, own, wall = (now - then for now, then in zip(self._now(), self._started, strict=True))
        return None if busy != busy else round(max(0.0, busy - own) / max(wall, 1e-9), 3)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        own = os.times()
        return _busy_seconds(), own.user + own.system, time.perf_counter()


def others_now(seconds: float = 1.0) -> float | None:
    """`Watch.others` over a short wait."""
    watch = Watch()
    time.sleep(seconds)
    return watch.others()


def is_quiet(others: float | None, spread: float) -> bool:
    return (others is None or others <= OTHERS_LIMIT) and spread <= SPREAD_LIMIT


def _busy_seconds() -> float:
    """Core seconds since boot that were neither idle nor waiting for a disk; NaN where unknown."""
    try:
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
    except (OSError, ValueError):
        return float("nan")
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
