"""Counted traffic: toy kernels against hand-computed bytes, and two-phase schedules against their formula."""

from collections import Counter
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from repro.bench import formulas
from repro.bench.accounts import Case, account, problems
from repro.bench.aten import AtenTraffic
from repro.bench.counting import Access, counting
from repro.bench.drive import drive

pytestmark = pytest.mark.skipif(
    not triton.knobs.runtime.interpret, reason="kernels are counted in the interpreter: TRITON_INTERPRET=1"
)


@triton.jit
def rows_kernel(p_x, p_gain, p_out, p_sum, stride, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    x = tl.load(p_x + row * stride + o, mask=o < D, other=0.0).to(tl.float32)
    gain = tl.load(p_gain + o, mask=o < D, other=0.0)
    tl.store(p_out + row * D + o, (x * gain).to(p_out.dtype.element_ty), mask=o < D)
    tl.store(p_sum + row, tl.sum(x, 0))


def test_masked_lanes_are_not_counted() -> None:
    """3 rows of 5 fp16 values in blocks of 8: the gain is read by each of the 3 programs."""
    x, gain = torch.ones(3, 7, dtype=torch.float16)[:, :5], torch.ones(5)
    out, sums = torch.empty(3, 5, dtype=torch.float16), torch.empty(3)
    with counting() as traffic:
        rows_kernel[(3,)](x, gain, out, sums, 7, D=5, BLOCK=8)
    assert traffic.bytes == {
        Access("rows_kernel", "p_x", (3, 5), "load"): 3 * 5 * 2,
        Access("rows_kernel", "p_gain", (5,), "load"): 3 * 5 * 4,
        Access("rows_kernel", "p_out", (3, 5), "store"): 3 * 5 * 2,
        Access("rows_kernel", "p_sum", (3,), "store"): 3 * 4,
    }
    assert traffic.launches == {"rows_kernel": 1}
    assert traffic.total(direction="load") == 30 + 60
    assert sums.tolist() == [5.0, 5.0, 5.0]


@triton.jit
def total_kernel(p_parts, p_total, steps, N: tl.constexpr):
    o = tl.arange(0, N)
    total = tl.zeros([N], tl.float32)
    for i in tl.static_range(len(p_parts)):
        total += tl.load(p_parts[i] + o * steps[i])
    tl.atomic_add(p_total + o, total, mask=o < N - 1)


def test_views_that_interleave_are_told_apart() -> None:
    """Columns of one storage in a tuple, one of them expanded; atomics are a load and a store."""
    x = torch.arange(8.0).reshape(4, 2)
    one = torch.ones(1).expand(4)
    total = torch.zeros(4)
    with counting() as traffic:
        total_kernel[(1,)]((x[:, 1], x[:, 0], one), total, (2, 2, 0), N=4)
    assert traffic.total(argument="p_parts") == 3 * 4 * 4
    assert traffic.total(argument="p_parts", shape=(4,), direction="load") == 3 * 4 * 4
    assert traffic.total(argument="p_total", direction="load") == 3 * 4
    assert traffic.total(argument="p_total", direction="store") == 3 * 4
    assert total.tolist() == [2.0, 6.0, 10.0, 0.0]


@triton.jit
def two_kernel(p_a, p_b, p_out, step, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(p_out + o, tl.load(p_a + o * step) + tl.load(p_b + o * step) + tl.load(p_b + o * step))


def test_interleaved_arguments_by_name() -> None:
    x = torch.arange(8.0).reshape(4, 2)
    with counting() as traffic:
        two_kernel[(1,)](x[:, 0], x[:, 1], torch.empty(4), 2, N=4)
    assert traffic.total(argument="p_a") == 4 * 4
    assert traffic.total(argument="p_b") == 2 * 4 * 4


@triton.jit
def block_kernel(p_x, p_out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    x = tl.make_block_ptr(p_x, (M, N), (N, 1), (tl.program_id(0) * BM, 0), (BM, BN), (1, 0))
    out = tl.make_tensor_descriptor(p_out, (M, N), (N, 1), (BM, BN))
    value = tl.load(x, boundary_check=(0, 1), padding_option="zero")
    out.store([tl.program_id(0) * BM, 0], value)


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr")
def test_block_pointers_and_descriptors_are_counted_inside_their_bounds() -> None:
    x, out = torch.randn(5, 12), torch.zeros(5, 12)
    with counting() as traffic:
        block_kernel[(2,)](x, out, 5, 12, BM=4, BN=16)
    assert traffic.total(argument="p_x", direction="load") == 5 * 12 * 4
    assert traffic.total(argument="p_out", direction="store") == 5 * 12 * 4
    assert torch.equal(x, out)


def test_memory_of_no_argument_is_an_error() -> None:
    x, other = torch.zeros(64), torch.zeros(64)
    away = (other.data_ptr() - x.data_ptr()) // 4
    with counting(), pytest.raises(InterpreterError, match="outside of all arguments"):
        two_kernel[(1,)](x, x, torch.empty(4), away, N=4)
    with counting() as traffic:
        two_kernel[(1,)](x, x, torch.empty(4), 1, N=4)
    two_kernel[(1,)](x, x, torch.empty(4), 1, N=4)
    assert traffic.launches == {"two_kernel": 1}, "nothing is counted outside"


def aten_bytes(function: Any) -> dict[tuple[str, str], int]:
    found: Counter[Access] = Counter()
    with AtenTraffic(found):
        function()
    result: Counter[tuple[str, str]] = Counter()
    for access, count in found.items():
        result[access.kernel.removeprefix("aten::"), access.direction] += count
    return dict(result)


def test_operators_are_charged_inputs_and_outputs_once() -> None:
    x = torch.randn(4, 8)
    assert aten_bytes(lambda: x + x.t().t()) == {("add", "load"): 256, ("add", "store"): 128}
    assert aten_bytes(lambda: x.to(torch.float16)) == {("_to_copy", "load"): 128, ("_to_copy", "store"): 64}
    assert aten_bytes(lambda: torch.empty(4, 8).copy_(x[:1].expand(4, 8))) == {
        ("copy_", "load"): 32,
        ("copy_", "store"): 128,
    }
    assert aten_bytes(lambda: (x[:2], x.expand(3, 4, 8), x.view(32), x.unbind(0))) == {}


def test_autograds_own_additions_are_charged() -> None:
    """A tensor used twice: its two gradients are added by autograd, in place of no line of ours."""
    x = torch.randn(4, 8, requires_grad=True)

    def twice() -> None:
        z = x.clone()
        torch.autograd.backward([z.view(32), z.view(32)], [torch.ones(32), torch.ones(32)])

    found = aten_bytes(twice)
    assert found["add", "load"] == 2 * 128
    assert found["add", "store"] == 128


SHAPES = [(16, 8), (8, 4), (5, 3), (2, 2), (12, 5)]


def test_table_1_in_the_typical_case() -> None:
    assert formulas.total(formulas.paper(False, 16, 8)) == 5.5 * 128
    assert formulas.total(formulas.paper(True, 16, 8)) == 24 * 128


@pytest.mark.parametrize(("S", "N"), SHAPES)
def test_the_way_from_table_1_ends_at_the_full_account(S: int, N: int) -> None:
    for full, inner in ((False, 1), (True, 1), (True, S)):
        closed = formulas.full_forward(S, N, inner, 64) if full else formulas.block_forward(S, N)
        way = formulas.paper(full, S, N) + formulas.reconciliation(full, S, N, inner, 64)
        assert formulas.total(way) == formulas.total(closed)
        assert sum(term.read for term in way) == sum(term.read for term in closed)


def walk_block(S: int, N: int) -> int:
    """Forward accesses of Block, step by step."""
    count, blocks = 1, 1  # the embedding is scored
    for block in range(N):
        results = S + (block == N - 1)
        if block:
            count += blocks + results  # phase 1
        for read in range(1, S):
            count += 3 if read == 1 else 5  # result, output, read; partial sum in and out
        count += 3  # partial sum and output in, block sum out
        blocks += 1
    return count + 3  # output read: result, last block sum, read


def walk_full(S: int, N: int, inner: int, most: int) -> int:
    """Forward accesses of Full, step by step: `written` sources, of which a level has mixed some."""
    count, written = 1, 1
    for group in range(N):
        last = group == N - 1
        if group:
            queries = S + last
            count += written + queries
            for _ in range(most, written, most):
                count += 4 * queries  # float32, out and in
        mixed = written
        for start in range(0, S, inner):
            queries = inner + (last and start + inner == S)
            if written > mixed:
                count += written - mixed + 2 * queries
            local = written
            for read in range(queries):
                if written > local:
                    count += written - local + 2
                if read < inner:
                    written += 1
                    count += 1  # scored
    return count


def walk_backward(steps: list[tuple[range, int, int]], num_sources: int) -> int:
    """Fewest accesses of scores and of mixes: (sources, reads, reads that end here on a prior), in order."""
    count, reached = 3 * num_sources, set[int]()
    for sources, reads, ends in reversed(steps):
        count += reads + ends + 2 * len(sources) + len(reached & set(sources))
        reached |= set(sources)
    return count


def walk_block_backward(S: int, N: int) -> int:
    steps = [(range(block + 1), S + (block == N - 1), 0) for block in range(N)]
    steps.append((range(N, N + 1), 1, 1))
    return walk_backward(steps, N + 1) + 5 * N * (S - 1)


def walk_full_backward(S: int, N: int, inner: int) -> int:
    steps: list[tuple[range, int, int]] = []
    for group in range(0, N * S, S):
        steps.append((range(group + 1), S + (group + S == N * S), 0))
        for start in range(group, group + S, inner):
            reads = inner + (start + inner == N * S)
            if start > group:
                steps.append((range(group + 1, start + 1), reads, 1))
            steps += [(range(start + 1, start + 1 + t), 1, 1) for t in range(1, reads)]
    return walk_backward(steps, N * S + 1)


@pytest.mark.parametrize(("S", "N"), SHAPES)
def test_closed_forms_are_the_steps_added_up(S: int, N: int) -> None:
    assert formulas.total(formulas.block_forward(S, N)) == walk_block(S, N)
    assert formulas.total(formulas.block_backward(S, N)) == walk_block_backward(S, N)
    for inner in (i for i in range(1, S + 1) if S % i == 0):
        for most in (7, 64):
            assert formulas.total(formulas.full_forward(S, N, inner, most)) == walk_full(S, N, inner, most)
        assert formulas.total(formulas.full_backward(S, N, inner)) == walk_full_backward(S, N, inner)


@pytest.mark.parametrize("case", [Case("Block", 8, 2, 1), Case("Full", 16, 2, 4)], ids=["Block", "Full"])
def test_the_schedule_moves_what_the_formula_says(case: Case) -> None:
    """At two widths and numbers of tokens, by kernels alone: no operator of torch touches an activation."""
    runs = [
        drive(case.mixer(width, "two_phase"), tokens, torch.float16)
        for width, tokens in ((40, 2), (56, 1))  # longer than any axis of scalars
    ]
    for run in runs:
        assert account(run.forward, run).total == formulas.total(case.formula("forward"))
        beside = {
            access.kernel for access in run.forward.bytes if account(run.forward, run, access.kernel).total
        }
        assert not {name for name in beside if name.startswith("aten::")}
    assert problems(case, runs) == []
    first, second = (account(run.backward, run) for run in runs)
    assert (first.read, first.write) == (second.read, second.write)


def test_what_is_beyond_its_limit_is_named() -> None:
    case = Case("Block", 8, 2, 1)
    single = drive(case.mixer(24, "per_read"), 1, torch.float16)
    found = problems(case, [single])
    assert any("the formula says" in problem for problem in found)
    assert any("of the bound" in problem for problem in found)


def test_liger_reads_a_stack_twice() -> None:
    """L = 8, S = 4: reads of 2, 2, 2, 2, 3, 3, 3 and (output) 3 sources; the first has one and no kernel."""
    pytest.importorskip("liger_kernel")
    from repro.bench.liger_reads import LigerReads

    reads, sources = 8, 4 * 2 + 4 * 3
    run = drive(LigerReads(8, 24, 4), 2, torch.float16)
    kernel = account(run.forward, run, "_attn_res_fwd_kernel")
    assert (kernel.read, kernel.write) == (2 * sources, reads)
    stack = account(run.forward, run, "aten::stack")
    assert (stack.read, stack.write) == (sources, sources)
    kernel = account(run.backward, run, "_attn_res_bwd_kernel")
    assert (kernel.read, kernel.write) == (2 * sources + reads, sources)
