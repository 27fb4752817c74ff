"""`make traffic`: bytes that the Triton kernels move, counted in the interpreter, beside the paper's Table 1.

Table 1's typical case (L = 128, N = 8, S = 16): the paper's account, the full one in closed form, and what
a pass through the mixer was counted to move, forward and backward, at two widths. Beside it the same reads
one by one with our single-read kernel and, where it is installed, liger-kernel's. Writes traffic.csv and
traffic.md; exits 1 where a count is not the formula, or is beyond its limit.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs

from analysis.tables import Column, Table, to_csv, to_markdown, to_text
from repro.bench.accounts import (
    BACKWARD_LIMIT,
    DIRECTIONS,
    FORWARD_LIMIT,
    SCALAR_WIDTH,
    WIDTHS,
    Case,
    account_rows,
    counted_rows,
    parameter_rows,
    problems,
)
from repro.bench.drive import Pass, drive
from repro.bench.liger_reads import LigerReads
from repro.depth.base import DepthMixer
from repro.runs.atomic import write_bytes

Record = dict[str, Any]
#: Parameters are counted apart, where tiles of rows are full and rows as long as in a model.
PARAMETER_CASE, PARAMETER_WIDTH, PARAMETER_TOKENS = Case("Block", 16, 2, 1), 2048, 64
NUM_SUBLAYERS, NUM_BLOCKS = 128, 8
TOKENS = 2
#: Two bytes per element, as bfloat16, whose arithmetic the interpreter gets wrong.
DTYPE = torch.float16


def comparison(records: Sequence[Record]) -> Table:
    """One line per scheme and direction: the paper, the formula, the counts, and the peers."""
    found = {(r["scheme"], r["execution"], r["direction"], r["item"]): r for r in records}
    rows = []
    for name in dict.fromkeys(r["scheme"] for r in records):
        for way in DIRECTIONS:
            counted = found[name, "two_phase", way, "counted"]
            closed = found[name, "two_phase", way, "formula" if way == "forward" else "bound"]["total_d"]
            paper = found.get((name, "two_phase", way, "Table 1"))
            others = {label: found.get((name, label, way, "counted")) for label in ("per_read", "liger")}
            limit = FORWARD_LIMIT[name] if way == "forward" else BACKWARD_LIMIT * closed
            row = {"scheme": f"{name}, {way}", "formula": f"{closed:.2f}", "limit": f"{limit:.2f}"}
            row |= {"counted": f"{counted['total_d']:.2f}", "scalars": f"{counted['scalar_bytes']:.0f}"}
            row |= {"paper": f"{paper['total_d']:.2f}"} if paper else {}
            row |= {label: f"{r['total_d']:.2f}" for label, r in others.items() if r}
            rows.append(row)
    columns = [Column("scheme", "scheme", numeric=False), Column("paper", "Table 1")]
    columns += [Column("formula", "formula or bound"), Column("counted", "counted"), Column("limit", "limit")]
    columns += [Column("per_read", "single reads"), Column("liger", "liger-kernel")]
    columns += [Column("scalars", "scalars, bytes")]
    notes = [
        "Accesses per token and sublayer in units of d (one activation of one token), loads and stores, "
        f"counted in the interpreter of triton {triton.__version__} (torch {torch.__version__}).",
        f"L = {NUM_SUBLAYERS} sublayers, N = {NUM_BLOCKS} blocks (Full: groups of reads). Widths "
        f"{' and '.join(map(str, WIDTHS))} give the same counts.",
        "Forward: closed form of the schedule. Backward: the fewest accesses that the schedule allows; the "
        f"limit is {BACKWARD_LIMIT} of it.",
        "Single reads: the same reads one by one; liger-kernel reads a stack of the sources, and the copy "
        "counts. Both with the additions of autograd.",
        f"Scalars: logits, 1 / RMS, log-sum-exp, delta, products, per token and sublayer at width "
        f"{SCALAR_WIDTH} (each chunk of a row reads its weights again, mostly from cache).",
    ]
    return Table("Memory traffic of depth mixing, two-phase", columns, rows, notes)


def beside(records: Sequence[Record]) -> list[Table]:
    """What is no activation: scalars of the two-phase passes, and parameters."""
    columns = [Column("direction", "", numeric=False), Column("item", "", numeric=False)]
    result = []
    for name in dict.fromkeys(r["scheme"] for r in records):
        rows = [
            {
                "direction": r["direction"],
                "item": r["item"].removeprefix("scalars "),
                "bytes": f"{r['scalar_bytes']:.1f}",
            }
            for r in records
            if r["scheme"] == name and r["execution"] == "two_phase" and r["item"].startswith("scalars ")
        ]
        title = f"{name}: scalars, bytes per token and sublayer at width {SCALAR_WIDTH}"
        result.append(Table(title, [*columns, Column("bytes", "bytes")], rows))
    rows = [
        {
            "direction": r["direction"],
            "item": r["item"].removeprefix("parameters "),
            "total": f"{r['total_d']:.3f}",
        }
        for r in records
        if r["item"].startswith("parameters ")
    ]
    notes = [
        "From cache: every program reads its query, and from this width on a program of the merge has one "
        "row. Backward, partial sums are at most 512 per query, whatever the number of tokens.",
    ]
    title = (
        f"Queries, gains and their gradients, in units of d per token and sublayer (Block, L = "
        f"{PARAMETER_CASE.num_sublayers}, width {PARAMETER_WIDTH}, {PARAMETER_TOKENS} tokens)"
    )
    return [*result, Table(title, [*columns, Column("total", "total")], rows, notes)]


def details(records: Sequence[Record]) -> list[Table]:
    """Line by line: the paper's account, the way to ours, and where the counted accesses are."""
    columns = [Column("item", "", numeric=False), Column("read", "read"), Column("write", "written")]
    columns += [Column("total", "total")]
    parts = (
        ("forward", "Table 1: ", "Table 1's account", "Table 1"),
        ("forward", "difference: ", "from Table 1 to every access", "difference"),
        ("forward", "formula: ", "every access, in closed form", "formula"),
        ("forward", "kernel ", "counted forward", "counted"),
        ("backward", "bound: ", "fewest accesses backward", "bound"),
        ("backward", "kernel ", "counted backward", "counted"),
    )
    result = []
    for name in dict.fromkeys(r["scheme"] for r in records):
        for way, prefix, title, everything in parts:
            of_part = [
                r
                for r in records
                if (r["scheme"], r["execution"], r["direction"]) == (name, "two_phase", way)
            ]
            lines = [r for r in of_part if r["item"].startswith(prefix) and r["total_d"]]
            lines += [r for r in of_part if r["item"] == everything]
            cells = [
                {
                    "item": "sum" if r["item"] == everything else r["item"].removeprefix(prefix),
                    **{key: f"{r[f'{key}_d']:.3f}" for key in ("read", "write", "total")},
                }
                for r in lines
            ]
            result.append(Table(f"{name}: {title}", columns, cells))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m repro.bench.traffic", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results/published"))
    options = parser.parse_args(arguments)
    if not knobs.runtime.interpret:  # read when kernels are defined: too late in this process
        command = [sys.executable, "-m", "repro.bench.traffic", "--results", str(options.results)]
        os.execve(sys.executable, command, {**os.environ, "TRITON_INTERPRET": "1"})
    torch.set_num_threads(1)

    start = time.perf_counter()
    records: list[Record] = []
    found: list[str] = []

    def passes(case: Case, label: str, mixers: Sequence[DepthMixer]) -> list[Pass]:
        runs = [drive(mixer, TOKENS, DTYPE) for mixer in mixers]
        records.extend(counted_rows(case, label, runs))
        print(f"{case.scheme}, {label}: counted after {time.perf_counter() - start:.0f} s", flush=True)
        return runs

    size = NUM_SUBLAYERS // NUM_BLOCKS
    for case in (Case("Block", size, NUM_BLOCKS, 1), Case("Full", size, NUM_BLOCKS, 4)):
        records.extend(account_rows(case))
        mixers = [case.mixer(width, "two_phase") for width in WIDTHS]
        found += problems(case, passes(case, "two_phase", mixers))
        passes(case, "per_read", [case.mixer(WIDTHS[0], "per_read")])
        if find_spec("liger_kernel"):
            block_size = 1 if case.full else case.size
            passes(case, "liger", [LigerReads(NUM_SUBLAYERS, WIDTHS[0], block_size)])
    mixer = PARAMETER_CASE.mixer(PARAMETER_WIDTH, "two_phase")
    records.extend(parameter_rows(PARAMETER_CASE, drive(mixer, PARAMETER_TOKENS, DTYPE)))
    tables = [comparison(records), *details(records), *beside(records)]
    for suffix, text in ((".csv", to_csv(records)), (".md", to_markdown(tables))):
        print(write_bytes(options.results / f"traffic{suffix}", text.encode()))
    print(to_text(tables[0]))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
