"""The evidence of a check as cells of the verdict table: our value, its interval, the paper's, the reason.

Checks word their evidence for a terminal: ``-0.064 [-0.223, +0.095], paper -0.029, underpowered``; several
values are separated by semicolons. What has another form is shown as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = r"[+\-−]?(?:\d[\d.,]*(?:e[+\-]?\d+)?|inf)"
_INTERVAL = re.compile(rf"\s*\[({_NUMBER}), ({_NUMBER})\]")
_PAPER = re.compile(rf", paper ({_NUMBER})(?=,|$)")
_REASON = re.compile(r", (agrees|differs|no difference|underpowered|no verdict under \d+ seeds)$")


@dataclass(frozen=True)
class Evidence:
    """values and intervals belong together by position; an interval is empty where there is none."""

    values: Sequence[str]
    intervals: Sequence[str]
    paper: str = ""
    reason: str = ""


def read_evidence(text: str) -> Evidence:
    """The parts of a check's evidence."""
    reason = _REASON.search(text)
    text = _REASON.sub("", text)
    paper = _PAPER.search(text)
    text = _PAPER.sub("", text)
    values, intervals = [], []
    for part in text.split("; "):
        interval = _INTERVAL.search(part)
        values.append(_INTERVAL.sub("", part, count=1).strip())
        intervals.append(interval.group().strip() if interval else "")
    return Evidence(values, intervals, paper.group(1) if paper else "", reason.group(1) if reason else "")
