"""What a check found: rows of the file, the printed table, and what makes the command fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.tables import Column, Table
from repro.bench.gpu_aims import aims
from repro.bench.supervised import Outcome, Row

COLUMNS = (
    *("gpu", "section", "operation", "backend", "direction", "dtype", "tokens", "width", "sources"),
    *("quantity", "value", "unit", "low", "high", "ratio", "limit", "within"),
    *("gigabytes_per_s", "share_of_copy", "share_of_roofline", "host_us", "status", "note"),
)
#: Same work by the same code: one line of a table, whose directions stand side by side.
_LINE = ("section", "operation", "backend", "dtype", "width", "sources")


def records(outcomes: Sequence[Outcome], marks: Row) -> list[Row]:
    """One row per number, and one per case that has an end to tell; `marks` on all of them."""
    rows = [row | {"section": o.case.section, "status": "done"} for o in outcomes for row in o.rows]
    rates = {(row["operation"], row["dtype"]): row["value"] for row in rows if row["section"] == "card"}
    found = [row | _judged(row) | _shares(row, rates) for row in rows]
    for outcome in outcomes:
        if outcome.status != "done":
            who = {"section": outcome.case.section, "operation": outcome.case.name}
            found.append(who | {"status": outcome.status, "note": outcome.note})
    names = (*COLUMNS, *(name for name in marks if name not in COLUMNS))
    return [{name: _rounded((row | marks).get(name)) for name in names} for row in found]


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _judged(row: Row) -> Row:
    return {"within": row["value"] <= row["limit"]} if "limit" in row else {}


def _shares(row: Row, rates: Mapping[tuple[str, str], float]) -> Row:
    """Achieved bandwidth, and the time that the rates of the card allow over the time taken."""
    copy = rates.get(("copy", "float32"))
    if row.get("quantity") != "time" or "bytes" not in row:
        return {}
    bandwidth = row["bytes"] / row["value"] / 1e6
    if copy is None:
        return {"gigabytes_per_s": bandwidth}
    least = row["bytes"] / copy / 1e6
    dtype = "bfloat16" if row.get("units") == "matrix" else "float32"
    rate = rates.get(("matrix product", dtype))
    if rate is not None:
        least = max(least, row.get("flops", 0) / rate / 1e9)
    return {
        "gigabytes_per_s": bandwidth,
        "share_of_copy": bandwidth / copy,
        "share_of_roofline": least / row["value"],
    }


def problems(rows: Sequence[Row]) -> list[str]:
    """What makes the command fail: a bound that does not hold or was not looked at, and broken cases.

    A peer may fail or be left out, and a measurement of time may be left out.
    """
    found = []
    for row in rows:
        label = " ".join(str(row[key]) for key in _LINE if row[key] is not None)
        if row["within"] is False:
            found.append(f"{label}: {row['quantity']} is {row['value']:.2g}, the limit is {row['limit']:.2g}")
        unchecked = row["section"] == "accuracy" and row["status"] in ("left out", "skipped")
        if row["section"] != "peers" and (row["status"] == "failed" or unchecked):
            found.append(f"{label}: {row['status']}, {row['note']}")
    return found


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """For the terminal, section by section; those without rows are left out."""
    for table in (
        _table("The card", ["operation", "dtype", "rate"], _of_card(rows)),
        _table(
            "Errors against float64: the worst result of each case",
            ["operation", "dtype", "width", "sources", "worst", "error", "limit", ""],
            _of_errors(rows),
        ),
        _table(
            "Kernels: ms, share of the copy bandwidth, share of the roofline",
            [
                "operation",
                "dtype",
                "width",
                "sources",
                "forward",
                "copy",
                "roof",
                "backward",
                "copy ",
                "roof ",
            ],
            _of_times(rows, ("kernels", "graph")),
        ),
        _table(
            "Reads side by side: ms, share of the copy bandwidth",
            ["backend", "width", "sources", "forward", "copy", "backward", "copy "],
            _of_times(rows, ("peers",)),
        ),
        _table(
            "Training steps: ms and MiB, and over PreNorm's",
            ["operation", "backend", "step", "step ratio", "memory", "memory ratio"],
            _of_training(rows),
        ),
        _table("What the kernels aim at", ["aim", "found", ""], aims(rows)),
        _table("Not done", ["section", "operation", "status", "note"], _of_rest(rows)),
    ):
        if table.rows:
            yield table


def _table(title: str, names: Sequence[str], rows: Iterator[dict[str, str]]) -> Table:
    text = ("aim", "found", "operation", "dtype", "worst", "", "backend", "section", "status", "note")
    columns = [Column(name, name.strip(), numeric=name not in text) for name in names]
    return Table(title, columns, [{k: v for k, v in row.items() if v != "None"} for row in rows])


def _lines(rows: Sequence[Row], sections: Sequence[str]) -> Iterator[tuple[dict[str, str], list[Row]]]:
    """Rows of one line each, in order of appearance."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["section"] in sections and row["status"] == "done":
            found.setdefault(tuple(row[key] for key in _LINE), []).append(row)
    for key, members in found.items():
        yield {name: str(value) for name, value in zip(_LINE, key, strict=True)}, members


def _of_card(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for line, members in _lines(rows, ("card",)):
        yield line | {"rate": f"{members[0]['value']:.4g} {members[0]['unit']}"}
    for line, members in _lines(rows, ("compile",)):
        yield line | {"rate": f"{members[0]['value']:.4g} s, {members[0]['quantity']}"}


def _of_errors(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for line, members in _lines(rows, ("accuracy", "graph", "compiled")):
        judged = [row for row in members if row["within"] is not None]
        if not judged:
            continue
        worst = max(judged, key=lambda row: (not row["within"], row["value"] / (row["limit"] or 1.0)))
        yield line | {
            "worst": worst["quantity"].removeprefix("error of "),
            "error": f"{worst['value']:.1e}",
            "limit": f"{worst['limit']:.1e}",
            "": "ok" if worst["within"] else "FAILS",
        }


def _of_times(rows: Sequence[Row], sections: Sequence[str]) -> Iterator[dict[str, str]]:
    for line, members in _lines(rows, sections):
        cells = {}
        for row in members:
            if row["quantity"] == "time":
                end = "" if row["direction"] == "forward" else " "
                cells[row["direction"]] = f"{row['value']:.3f}"
                for name, key in (("copy", "share_of_copy"), ("roof", "share_of_roofline")):
                    if row[key] is not None:
                        cells[name + end] = f"{row[key]:.0%}"
        if cells:
            yield line | cells


def _of_training(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for line, members in _lines(rows, ("training",)):
        cells = {}
        for row in members:
            if row["direction"] in ("step", "memory"):
                cells[row["direction"]] = f"{row['value']:.1f}"
                cells[f"{row['direction']} ratio"] = f"{row['ratio']:.3f}"
        yield line | cells


def _of_rest(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    for row in rows:
        if row["status"] != "done":
            yield {key: str(row[key]) for key in ("section", "operation", "status", "note")}
