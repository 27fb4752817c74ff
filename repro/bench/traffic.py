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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from analysis.tables import Column, Table, to_csv, to_markdown, to_text
from repro.bench import formulas
from repro.bench.counting import Access, Traffic
from repro.bench.drive import Pass, drive
from repro.bench.formulas import Term
from repro.depth.attnres import AttnRes
from repro.runs.atomic import write_bytes

NUM_SUBLAYERS, NUM_BLOCKS = 128, 8
#: The first for the table, both for the check that nothing else depends on the width.
WIDTHS = (2304, 1168)
TOKENS = 2
#: Two bytes per element, as bfloat16, whose arithmetic the interpreter gets wrong.
DTYPE = torch.float16
#: Forward accesses per token and sublayer, in units of d, that may not be exceeded.
FORWARD_LIMIT = {"Block": 6.1, "Full": 14.0}
#: Counted backward accesses, as a multiple of the bound.
BACKWARD_LIMIT = 1.15


@dataclass(frozen=True)
class Case:
    """A scheme of L sublayers in blocks (Full: groups of reads) of S, and reads per inner group of Full."""

    scheme: str
    size: int
    number: int
    inner: int

    @property
    def full(self) -> bool:
        return self.scheme == "Full"

    @property
    def num_sublayers(self) -> int:
        return self.size * self.number

    def mixer(self, width: int, execution: str, backend: str) -> AttnRes:
        block_size = None if self.full else self.size
        return AttnRes(self.num_sublayers, width, block_size=block_size, execution=execution, backend=backend)

    def formula(self, direction: str) -> list[Term]:
        """The full account: of every access forward, of the fewest backward."""
        if self.full:
            closed: Callable[..., list[Term]] = {
                "forward": formulas.full_forward,
                "backward": formulas.full_backward,
            }[direction]
            return closed(self.size, self.number, self.inner)
        closed = {"forward": formulas.block_forward, "backward": formulas.block_backward}[direction]
        return closed(self.size, self.number)


def kind(access: Access, width: int) -> str:
    """Activations (counted in units of d), parameters (with their gradients and partial sums), or scalars."""
    if not access.shape or access.shape[-1] != width:
        return "scalars"
    parameter = "quer" in access.argument or access.kernel == "sum_partials_kernel" or len(access.shape) < 3
    return "parameters" if parameter else "activations"


@dataclass(frozen=True)
class Account:
    """Accesses of one direction of a pass. read, write: in units of d, over the model and per token."""

    read: float
    write: float
    scalar_bytes: float  # per token, over the model
    parameter_bytes: float  # of the pass
    launches: int

    @property
    def total(self) -> float:
        return self.read + self.write


def account(traffic: Traffic, run: Pass, kernel: str | None = None) -> Account:
    """Of one kernel or operator, or of all."""
    sums = {(name, way): 0 for name in ("activations", "parameters", "scalars") for way in ("load", "store")}
    for access, count in traffic.bytes.items():
        if kernel in (None, access.kernel):
            sums[kind(access, run.width), access.direction] += count
    unit = run.tokens * run.width * run.itemsize
    return Account(
        sums["activations", "load"] / unit,
        sums["activations", "store"] / unit,
        (sums["scalars", "load"] + sums["scalars", "store"]) / run.tokens,
        sums["parameters", "load"] + sums["parameters", "store"],
        sum(n for name, n in traffic.launches.items() if kernel in (None, name)),
    )


def record(case: Case, execution: str, direction: str, item: str, counted: Account | Term) -> dict[str, Any]:
    """A row of traffic.csv: per token and sublayer, accesses in units of d."""
    L = case.num_sublayers
    row: dict[str, Any] = {
        "scheme": case.scheme,
        "num_sublayers": L,
        "num_blocks": case.number,
        "block_size": case.size,
        "execution": execution,
        "direction": direction,
        "item": item,
        "read_d": counted.read / L,
        "write_d": counted.write / L,
        "total_d": counted.total / L,
    }
    row["scalar_bytes"] = counted.scalar_bytes / L if isinstance(counted, Account) else None
    row["launches"] = counted.launches if isinstance(counted, Account) else None
    return row


def whole(label: str, terms: Sequence[Term]) -> Term:
    return Term(label, sum(term.read for term in terms), sum(term.write for term in terms))


def counted_rows(case: Case, execution: str, run: Pass) -> Iterator[dict[str, Any]]:
    """Of a pass: everything, then by kernel and operator."""
    for direction, traffic in (("forward", run.forward), ("backward", run.backward)):
        yield record(case, execution, direction, "counted", account(traffic, run))
        for kernel in sorted({access.kernel for access in traffic.bytes}):
            part = account(traffic, run, kernel)
            if part.total or part.launches:
                yield record(case, execution, direction, f"kernel {kernel}", part)


def account_rows(case: Case) -> Iterator[dict[str, Any]]:
    """What is known without counting: Table 1's account, the full one, and the way from one to the other."""
    paper = formulas.paper(case.full, case.size, case.number)
    way = formulas.reconciliation(case.full, case.size, case.number, case.inner)
    for item, terms in (("Table 1", paper), ("difference", way), ("formula", case.formula("forward"))):
        yield record(case, "two_phase", "forward", item, whole(item, terms))
        for term in terms:
            yield record(case, "two_phase", "forward", f"{item}: {term.label}", term)
    bound = case.formula("backward")
    yield record(case, "two_phase", "backward", "bound", whole("bound", bound))
    for term in bound:
        yield record(case, "two_phase", "backward", f"bound: {term.label}", term)


def problems(case: Case, runs: Sequence[Pass]) -> list[str]:
    """What makes the command fail."""
    found = []
    L = case.num_sublayers
    formula, bound = formulas.total(case.formula("forward")), formulas.total(case.formula("backward"))
    for run in runs:
        forward, backward = account(run.forward, run).total, account(run.backward, run).total
        at = f"{case.scheme} at width {run.width}"
        if forward != formula:
            found.append(f"{at}: {forward:g} accesses forward, the formula says {formula}")
        if forward / L > FORWARD_LIMIT[case.scheme]:
            found.append(f"{at}: {forward / L:.2f} d forward, the limit is {FORWARD_LIMIT[case.scheme]}")
        if backward < bound:
            found.append(f"{at}: {backward:g} accesses backward are fewer than the bound, {bound}")
        if backward > BACKWARD_LIMIT * bound:
            found.append(f"{at}: {backward:g} accesses backward, {backward / bound:.3f} of the bound")
    return found


def tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Comparison, reconciliation, kernels and bound, for reading."""
    found = {(r["scheme"], r["execution"], r["direction"], r["item"]): r for r in records}

    def cell(*key: str) -> str:
        return f"{found[key]['total_d']:.2f}" if key in found else "not installed"

    schemes = list(dict.fromkeys(r["scheme"] for r in records))
    rows = []
    for name in schemes:
        forward = found[name, "two_phase", "forward", "counted"]["total_d"]
        limits = {"forward": FORWARD_LIMIT[name], "backward": None}
        backward = found[name, "two_phase", "backward", "counted"]["total_d"]
        bound = found[name, "two_phase", "backward", "bound"]["total_d"]
        for direction in ("forward", "backward"):
            key = (name, "two_phase", direction)
            rows.append(
                {
                    "scheme": f"{name}, {direction}",
                    "paper": cell(*key, "Table 1") if direction == "forward" else "–",
                    "formula": cell(*key, "formula" if direction == "forward" else "bound"),
                    "counted": f"{forward if direction == 'forward' else backward:.2f}",
                    "limit": f"{limits[direction] or BACKWARD_LIMIT * bound:.2f}",
                    "single": cell(name, "per_read", direction, "counted"),
                    "liger": cell(name, "liger", direction, "counted"),
                    "scalars": f"{found[(*key, 'counted')]['scalar_bytes']:.0f}",
                }
            )
    columns = [Column("scheme", "scheme", numeric=False), Column("paper", "Table 1")]
    columns += [Column("formula", "formula or bound"), Column("counted", "counted"), Column("limit", "limit")]
    columns += [Column("single", "single reads"), Column("liger", "liger-kernel")]
    columns += [Column("scalars", "scalars, bytes")]
    notes = [
        "Accesses per token and sublayer in units of d (one activation of one token), loads and stores.",
        f"L = {NUM_SUBLAYERS} sublayers, N = {NUM_BLOCKS} blocks (Full: groups of reads); widths "
        f"{' and '.join(map(str, WIDTHS))} give the same counts.",
        "Forward: the closed form of the schedule; backward: the fewest accesses that it allows (limit: "
        f"{BACKWARD_LIMIT} of it).",
        "Single reads: the same reads one by one; liger-kernel reads a stack of the sources, and the copy "
        "counts. Both with the additions of autograd.",
        f"Scalars: logits, 1 / RMS, log-sum-exp and the like per token and sublayer, at width {WIDTHS[0]}; "
        "queries and their gradients, read once per program, are in neither column.",
    ]
    result = [Table("Memory traffic of depth mixing, two-phase", columns, rows, notes)]
    terms = [Column("item", "", numeric=False), Column("read", "read"), Column("write", "written")]
    terms += [Column("total", "total")]
    parts = (
        ("forward", "Table 1: ", "Table 1's account", "Table 1"),
        ("forward", "difference: ", "from Table 1 to the full count", "difference"),
        ("forward", "kernel ", "counted forward", "counted"),
        ("backward", "bound: ", "fewest accesses backward", "bound"),
        ("backward", "kernel ", "counted backward", "counted"),
    )
    for name in schemes:
        for direction, prefix, title, whole_item in parts:
            chosen = [
                r
                for r in records
                if (r["scheme"], r["execution"], r["direction"]) == (name, "two_phase", direction)
                and (r["item"].startswith(prefix) or r["item"] == whole_item)
            ]
            chosen.sort(key=lambda r: r["item"] == whole_item)  # the sum last
            lines = [
                {
                    "item": "sum" if r["item"] == whole_item else r["item"].removeprefix(prefix),
                    "read": f"{r['read_d']:.3f}",
                    "write": f"{r['write_d']:.3f}",
                    "total": f"{r['total_d']:.3f}",
                }
                for r in chosen
            ]
            result.append(Table(f"{name}: {title}", terms, lines))
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
    records: list[dict[str, Any]] = []
    found: list[str] = []
    size = NUM_SUBLAYERS // NUM_BLOCKS
    for case in (Case("Block", size, NUM_BLOCKS, 1), Case("Full", size, NUM_BLOCKS, 4)):
        records += account_rows(case)
        runs = []
        for width in WIDTHS:
            runs.append(drive(case.mixer(width, "two_phase", "triton"), TOKENS, DTYPE))
            print(
                f"{case.scheme} two-phase, width {width}, after {time.perf_counter() - start:.0f} s",
                flush=True,
            )
        records += counted_rows(case, "two_phase", runs[0])
        found += problems(case, runs)
        singles = [("per_read", "triton")] + [("liger", "liger")] * bool(find_spec("liger_kernel"))
        for label, backend in singles:
            run = drive(case.mixer(64, "per_read", backend), 1, DTYPE)
            records += counted_rows(case, label, run)
            print(f"{case.scheme} {label}: {time.perf_counter() - start:.0f} s", flush=True)
    for suffix, text in ((".csv", to_csv(records)), (".md", to_markdown(tables(records)))):
        print(write_bytes(options.results / f"traffic{suffix}", text.encode()))
    print(to_text(tables(records)[0]))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
