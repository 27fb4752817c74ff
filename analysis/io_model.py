"""Memory traffic of residual mechanisms per token and sublayer (Table 1, Appendix B), printed and derived.

Units: elements read or written. Letters: L sublayers, N blocks, S = L / N sublayers per block, m streams, d
width. Table 1 counts keys and values apart and leaves out what a sublayer does inside.

    python -m analysis.io_model --sublayers 54 --blocks 9 --streams 4 --width 2304
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pandas as pd

from analysis import tables
from analysis.counts import ZERO, Count
from analysis.tables import EMPTY, Column, Table
from repro.errors import ConfigError, DataError
from repro.runs.places import project_root

#: Shape for which the paper gives its typical values.
TYPICAL = {"L": 128, "N": 8, "S": 16, "m": 4}
NAMES = {
    "standard": "Standard residual",
    "mhc": "mHC",
    "attnres_full": "AttnRes Full, two-phase",
    "attnres_block": "AttnRes Block, two-phase",
    "naive_full": "AttnRes Full, naive",
    "naive_block": "AttnRes Block, naive",
}
#: Schemes of traffic.csv by mechanism here.
COUNTED = {"attnres_full": "Full", "attnres_block": "Block"}


@dataclass(frozen=True)
class Operation:
    """A row of Table 1: what is read and written, in symbols, and the same text."""

    name: str
    read: Count
    write: Count
    read_text: str
    write_text: str

    @property
    def total(self) -> Count:
        return self.read + self.write


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with its operations, the printed total and typical value (None: not a row of the paper)."""

    key: str
    operations: tuple[Operation, ...]
    printed: Count | None = None
    printed_text: str | None = None
    typical_text: str | None = None

    @property
    def name(self) -> str:
        return NAMES[self.key]

    @property
    def total(self) -> Count:
        """Sum of the operations."""
        return sum((operation.total for operation in self.operations), ZERO)


def _operation(name: str, read: str, write: str) -> Operation:
    return Operation(name, Count.parse(read), Count.parse(write), read, write)


def read_table1(path: Path) -> list[Mechanism]:
    """The printed rows (experiments/published/table1_io.csv)."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for key in dict.fromkeys(row["mechanism"] for row in rows):
        own = [row for row in rows if row["mechanism"] == key]
        operations = tuple(_operation(row["operation"], row["read"], row["write"]) for row in own)
        total, typical = own[0]["total"], own[0]["typical_L128_N8_S16_m4"]
        found.append(Mechanism(key, operations, Count.parse(total), total, typical))
    return found


def naive() -> list[Mechanism]:
    """Read by read, in Table 1's account: each source as key and as value, the mixture written.

    Full: read l of L has l sources, (L + 1) / 2 on average. Block: read i of block n has b_0, ..., b_{n-1}
    and, but for i = 1, the partial sum: (N + 1) / 2 + (S - 1) / S on average; each output but a block's first
    is added to the partial sum, which is read and written.
    """
    return [
        Mechanism("naive_full", (_operation("read of all sources", "(L+1)d", "d"),)),
        Mechanism(
            "naive_block",
            (
                _operation("read of all sources", "(N+3-2/S)d", "d"),
                _operation("partial sum", "(2-2/S)d", "(1-1/S)d"),
            ),
        ),
    ]


def appendix_b(L: int, S: int, d: int = 1) -> dict[str, int]:
    """Full in N = L / S groups of S, summed group by group as in Appendix B: elements over all sublayers."""
    N = L // S
    inter = sum(2 * (n - 1) * S * d for n in range(1, N + 1))
    intra = sum(sum(2 * (t - 1) * d for t in range(1, S + 1)) for _ in range(N))
    return {"read_inter": inter, "read_intra": intra, "write": 2 * L * d}


def best_group_size(L: int) -> tuple[list[int], float]:
    """The divisors S of L that minimise S + L / S, and the minimum over real S, at sqrt(L)."""
    totals = {S: S + L / S for S in range(1, L + 1) if L % S == 0}
    least = min(totals.values())
    return [S for S, total in totals.items() if total == least], 2 * L**0.5


def shape(num_sublayers: int, num_blocks: int, streams: int, width: int | None = None) -> dict[str, int]:
    """Letters and numbers; a ``ConfigError`` for a number of blocks that does not divide the sublayers."""
    for key, value in (("--sublayers", num_sublayers), ("--blocks", num_blocks), ("--streams", streams)):
        if value < 1:
            raise ConfigError(key, value, "a whole number of at least 1")
    if num_sublayers % num_blocks:
        raise ConfigError("--blocks", num_blocks, f"a divisor of the sublayers, {num_sublayers}")
    letters = {"L": num_sublayers, "N": num_blocks, "S": num_sublayers // num_blocks, "m": streams}
    return letters if width is None else {**letters, "d": width}


def in_widths(count: Count, letters: Mapping[str, int]) -> tuple[Fraction, Fraction]:
    """(a, b): the count is a d + b elements."""
    of_width, rest = count.split("d")
    return of_width.at(letters), rest.at(letters)


def units(count: Count, letters: Mapping[str, int]) -> str:
    """As `34d + 48`."""
    of_width, rest = in_widths(count, letters)
    return f"{float(of_width):g}d" + (f" + {float(rest):g}" if rest else "")


def measured(path: Path, letters: Mapping[str, int]) -> dict[str, dict[str, float]]:
    """Counted forward accesses of our kernels per token and sublayer, in units of d (`make traffic`).

    Mechanism -> execution -> total, for the shape that was counted; {} where the file is missing or was
    counted at another shape.
    """
    if not path.exists():
        return {}
    try:
        frame = pd.read_csv(path)
        rows = frame[
            (frame["item"] == "counted")
            & (frame["direction"] == "forward")
            & (frame["num_sublayers"] == letters["L"])
            & (frame["num_blocks"] == letters["N"])
        ]
        keys = zip(rows["scheme"].astype(str), rows["execution"].astype(str), strict=True)
        totals = dict(zip(keys, rows["total_d"].astype(float).tolist(), strict=True))
    except (KeyError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not a traffic table ({error}); make traffic writes it") from None
    return {
        key: {execution: total for (found, execution), total in totals.items() if found == scheme}
        for key, scheme in COUNTED.items()
        if any(found == scheme for found, _ in totals)
    }


#: Mechanism -> (mechanism, execution) of what was counted.
COUNTED_AS = {
    "attnres_full": ("attnres_full", "two_phase"),
    "attnres_block": ("attnres_block", "two_phase"),
    "naive_full": ("attnres_full", "per_read"),
    "naive_block": ("attnres_block", "per_read"),
}


def counted(mechanism: Mechanism, found: Mapping[str, Mapping[str, float]]) -> float | None:
    """The measured total that corresponds to a mechanism, in units of d."""
    scheme, execution = COUNTED_AS.get(mechanism.key, ("", ""))
    return found.get(scheme, {}).get(execution)


def table(
    mechanisms: Sequence[Mechanism],
    letters: Mapping[str, int],
    found: Mapping[str, Mapping[str, float]],
    title: str,
    notes: Sequence[str] = (),
) -> Table:
    """A row per operation; totals, typical values and measured ones stand in the first row of a mechanism."""
    columns = [
        Column("mechanism", "mechanism", numeric=False),
        Column("operation", "operation", numeric=False),
        Column("read", "read"),
        Column("write", "written"),
        Column("total", "total"),
        Column("typical", "paper"),
        Column("here", "at this shape"),
        Column("counted", "counted"),
    ]
    if "d" in letters:
        columns.insert(-1, Column("elements", "elements"))
    rows: list[Mapping[str, str]] = []
    for mechanism in mechanisms:
        for n, operation in enumerate(mechanism.operations):
            cells = {"operation": operation.name, "read": operation.read_text, "write": operation.write_text}
            if n == 0:
                own = counted(mechanism, found)
                cells |= {
                    "mechanism": mechanism.name,
                    "total": mechanism.printed_text or EMPTY,
                    "typical": mechanism.typical_text or EMPTY,
                    "here": units(mechanism.total, letters),
                    "counted": EMPTY if own is None else f"{own:.2f}d",
                }
                if "d" in letters:
                    cells["elements"] = f"{float(mechanism.total.at(letters)):,.0f}"
            else:
                cells |= dict.fromkeys(("mechanism", "total", "typical", "here", "counted", "elements"), "")
            rows.append(cells)
    return Table(title, columns, rows, notes)


def records(
    mechanisms: Sequence[Mechanism], letters: Mapping[str, int], found: Mapping[str, Mapping[str, float]]
) -> list[dict[str, object]]:
    """One record per operation, then one per mechanism, in units of d and scalars per token and sublayer."""
    rows: list[dict[str, object]] = []
    for mechanism in mechanisms:
        parts: list[tuple[str, Count, Count | None, Count | None]] = [
            (o.name, o.total, o.read, o.write) for o in mechanism.operations
        ]
        for name, total, read, write in [*parts, ("total", mechanism.total, None, None)]:
            of_width, scalars = in_widths(total, letters)
            row: dict[str, object] = {**letters, "mechanism": mechanism.key, "operation": name}
            row["read_d"] = None if read is None else float(in_widths(read, letters)[0])
            row["write_d"] = None if write is None else float(in_widths(write, letters)[0])
            row |= {"total_d": float(of_width), "scalars": float(scalars)}
            row["paper_total"] = mechanism.printed_text if name == "total" else None
            row["paper_typical"] = mechanism.typical_text if name == "total" else None
            row["counted_d"] = counted(mechanism, found) if name == "total" else None
            rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print Table 1 at any shape; exit code 2 and one line for a shape that cannot be."""
    parser = argparse.ArgumentParser(prog="python -m analysis.io_model", description=__doc__)
    convert: Callable[[str], int] = int
    for key, default in (("sublayers", 128), ("blocks", 8), ("streams", 4), ("width", None)):
        parser.add_argument(f"--{key}", type=convert, default=default)
    args = parser.parse_args(arguments)
    root = project_root()
    try:
        letters = shape(args.sublayers, args.blocks, args.streams, args.width)
        found = measured(root / "results" / "published" / "traffic.csv", letters)
        mechanisms = [*read_table1(root / "experiments" / "published" / "table1_io.csv"), *naive()]
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = ", ".join(f"{letter} = {value}" for letter, value in letters.items())
    print(tables.to_text(table(mechanisms, letters, found, f"Accesses per token and sublayer, {text}")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
