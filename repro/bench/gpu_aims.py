"""What a check was run for: kernels at the speed of a copy, no package faster. A missed aim fails nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from repro.bench.supervised import Row

#: Share of the measured copy bandwidth that kernels are to reach, and our backend.
AIM, OURS = 0.85, "triton"
#: A peer is faster by more than two runs of the same code differ.
TIE = 1.02


def aims(rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    """Per direction the slowest kernel against a copy; per read the fastest peer against ours."""
    timed = [row for row in rows if row["quantity"] == "time" and row["status"] == "done"]
    for direction in ("forward", "backward"):
        shares = [
            (row["share_of_copy"], row)
            for row in timed
            if row["section"] == "kernels"
            and row["direction"] == direction
            and row["share_of_copy"] is not None
        ]
        if shares:
            least, row = min(shares, key=lambda pair: pair[0])
            met = sum(share >= AIM for share, _ in shares)
            yield {
                "aim": f"{direction} at {AIM:.0%} of the copy bandwidth",
                "found": f"{met} of {len(shares)}; least {least:.0%} ({_where(row)})",
                "": "reached" if met == len(shares) else "MISSED",
            }
    for ours in (row for row in timed if row["section"] == "peers" and row["backend"] == OURS):
        peers = [row for row in timed if row["section"] == "peers" and _same_read(row, ours)]
        if peers:
            best = min(peers, key=lambda row: row["value"])
            yield {
                "aim": f"{ours['direction']} of a read no slower than {best['backend']}, {_where(ours)}",
                "found": f"{ours['value']:.3f} and {best['value']:.3f} ms",
                "": "reached" if ours["value"] <= TIE * best["value"] else "MISSED",
            }


def _same_read(row: Row, ours: Row) -> bool:
    same = ("operation", "direction", "dtype", "tokens", "width", "sources")
    return row["backend"] != OURS and all(row[key] == ours[key] for key in same)


def _where(row: Row) -> str:
    sources = f", {row['sources']} sources" if row["sources"] else ""
    return f"{row['operation']}, {row['dtype']}, width {row['width']}{sources}"
