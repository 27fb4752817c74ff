"""Counted traffic: toy kernels against hand-computed bytes, and two-phase schedules against their formula."""

from collections import Counter
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from repro.bench.aten import AtenTraffic
from repro.bench.counting import Access, counting

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
