"""Append-only JSON lines: one mapping with an integer ``step`` per line.

Only whole lines count. A last line without its newline was being written when its process died (or is being
written now) and is no row; any other line that cannot be read is damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repro.runs import plain
from repro.runs.atomic import DamagedRecord, append_line, log, read_bytes, write_bytes


def append_row(path: str | Path, row: Mapping[str, Any]) -> None:
    """Appends one row; raises ValueError where it has no integer step, DataError where the disk refuses."""
    value = plain.to_plain(row)
    if not _is_step(value.get("step")):
        raise ValueError("a row needs an integer 'step'")
    append_line(path, plain.encode(value).encode("utf-8"))


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a file in order, none where there is no file; never changes the file.

    Raises DamagedRecord, naming the line.
    """
    return [row for row, _ in _parse(Path(path))[0]]


def count_rows(path: str | Path) -> int:
    """Number of whole lines."""
    return _read(Path(path)).count(b"\n")


def cut_rows(path: str | Path, step: int) -> int:
    """Drops the rows after `step` and a half-written last line; returns the number of rows that stay.

    What stays is kept byte for byte. Raises DamagedRecord before anything is changed.
    """
    path = Path(path)
    rows, half = _parse(path)
    kept = [line for row, line in rows if row["step"] <= step]
    if half:
        log.warning("%s: dropped a half-written last line", path)
    if half or len(kept) < len(rows):
        write_bytes(path, b"".join(kept))
    return len(kept)


def _parse(path: Path) -> tuple[list[tuple[dict[str, Any], bytes]], bool]:
    *lines, rest = _read(path).split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = plain.decode(line.decode("utf-8"))
        except ValueError:
            row = None
        if not isinstance(row, dict) or not _is_step(row.get("step")):
            raise DamagedRecord(f"{path}: line {number} is damaged")
        rows.append((row, line + b"\n"))
    return rows, bool(rest)


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except FileNotFoundError:
        return b""


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
