"""Accounts of memory traffic: what is counted as what, in which unit, beside which formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repro.bench import formulas
from repro.bench.counting import Access, Traffic
from repro.bench.drive import Pass
from repro.bench.formulas import Term
from repro.depth.attnres import AttnRes
from repro.ops.triton.rows import MAX_SOURCES

DIRECTIONS = ("forward", "backward")
#: Rows of one and of two chunks of the mixing kernels: accesses per d must be equal, and scalars, which each
#: chunk reads again, are affine in the number of chunks.
WIDTHS = (256, 512)
#: For which the table states the scalars.
SCALAR_WIDTH = 4096
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

    def mixer(self, width: int, execution: str) -> AttnRes:
        block_size = None if self.full else self.size
        return AttnRes(
            self.num_sublayers, width, block_size=block_size, execution=execution, backend="triton"
        )

    def formula(self, direction: str) -> list[Term]:
        """The full account: of every access forward, of the fewest backward."""
        shape = (self.size, self.number)
        if direction == "forward":
            if self.full:
                return formulas.full_forward(*shape, self.inner, MAX_SOURCES)
            return formulas.block_forward(*shape)
        return formulas.full_backward(*shape, self.inner) if self.full else formulas.block_backward(*shape)


def kind(access: Access, width: int) -> str:
    """Activations (counted in units of d), parameters (with their gradients and partial sums), or scalars."""
    if not access.shape or access.shape[-1] != width:
        return "scalars"
    if access.kernel.startswith("aten::"):
        return "parameters" if len(access.shape) < 3 else "activations"  # activations are [1, tokens, D]
    named = any(part in access.argument for part in ("quer", "gain", "norm"))
    return "parameters" if named or access.kernel == "sum_partials_kernel" else "activations"


@dataclass(frozen=True)
class Account:
    """Accesses of one direction of a pass. read, write: in units of d, over the model and per token."""

    read: float
    write: float
    scalar_bytes: float  # per token, over the model
    parameters: float  # per token, in units of d, over the model
    launches: int

    @property
    def total(self) -> float:
        return self.read + self.write


def account(traffic: Traffic, run: Pass, kernel: str | None = None, argument: str | None = None) -> Account:
    """Of one kernel or operator (and argument), or of all."""
    sums = {(name, way): 0 for name in ("activations", "parameters", "scalars") for way in ("load", "store")}
    for access, count in traffic.bytes.items():
        if kernel in (None, access.kernel) and argument in (None, access.argument):
            sums[kind(access, run.width), access.direction] += count
    unit = run.tokens * run.width * run.itemsize
    return Account(
        sums["activations", "load"] / unit,
        sums["activations", "store"] / unit,
        (sums["scalars", "load"] + sums["scalars", "store"]) / run.tokens,
        (sums["parameters", "load"] + sums["parameters", "store"]) / unit,
        sum(n for name, n in traffic.launches.items() if kernel in (None, name)),
    )


def accounts(
    runs: Sequence[Pass], direction: str, kernel: str | None = None, argument: str | None = None
) -> Account:
    """Of a pass at a width of one chunk and one of two: the first, with its scalars as at SCALAR_WIDTH."""
    found = [account(getattr(run, direction), run, kernel, argument) for run in runs]
    first = found[0]
    if len(found) == 1:
        return first
    per_chunk = found[1].scalar_bytes - first.scalar_bytes
    chunks = SCALAR_WIDTH // runs[0].width
    return replace(first, scalar_bytes=first.scalar_bytes + (chunks - 1) * per_chunk)


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


def counted_rows(case: Case, execution: str, runs: Sequence[Pass]) -> Iterator[dict[str, Any]]:
    """Of passes at one or two widths: everything, then by kernel and operator; scalars also by argument."""
    for direction in DIRECTIONS:
        yield record(case, execution, direction, "counted", accounts(runs, direction))
        found = getattr(runs[0], direction).bytes
        for kernel in sorted({access.kernel for access in found}):
            part = accounts(runs, direction, kernel)
            if part.total or part.launches:
                yield record(case, execution, direction, f"kernel {kernel}", part)
        for kernel, argument in sorted({(access.kernel, access.argument) for access in found}):
            part = accounts(runs, direction, kernel, argument)
            if part.scalar_bytes and not part.total:
                yield record(case, execution, direction, f"scalars {kernel} {argument}".strip(), part)


def parameter_rows(case: Case, run: Pass) -> Iterator[dict[str, Any]]:
    """Accesses of queries, their gradients and partial sums, as units of d per token."""
    for direction in DIRECTIONS:
        found = getattr(run, direction)
        for kernel in sorted({access.kernel for access in found.bytes}):
            part = account(found, run, kernel)
            if part.parameters:
                item = f"parameters {kernel}"
                row = record(case, "two_phase", direction, item, Term(item, 0, 0))
                yield {
                    **row,
                    "read_d": None,
                    "write_d": None,
                    "total_d": part.parameters / case.num_sublayers,
                }


def account_rows(case: Case) -> Iterator[dict[str, Any]]:
    """What is known without counting: Table 1's account, the full one, and the way from one to the other."""
    paper = formulas.paper(case.full, case.size, case.number)
    way = formulas.reconciliation(case.full, case.size, case.number, case.inner, MAX_SOURCES)
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
