"""The Triton kernels as operators of torch: tracing, derivatives, operation counts, autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from repro.ops import reference
from repro.ops import triton as kernels
from tests.kernels import DEVICE, deviation
from tests.toy import normal

ACTS = ("softmax", "sigmoid", "sigmoid_normalized")
OPS = torch.ops.attnres


def inputs(num: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    sources = [normal(f"source {i}", *shape, dtype=dtype) for i in range(num)]
    query = normal("query", shape[-1], dtype=dtype)
    return [x.to(DEVICE).requires_grad_() for x in sources], query.to(DEVICE).requires_grad_()


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.parametrize("act", ACTS)
def test_the_read_is_a_well_formed_operator(act: str, num: int) -> None:
    sources, query = inputs(num, 2, 3, 8, dtype=torch.float32)
    found = torch.library.opcheck(OPS.read.default, (sources, query, act, 2, 1, 1e-6))
    assert set(found.values()) == {"SUCCESS"}


def test_the_merge_is_a_well_formed_operator() -> None:
    prior, partial, output = (normal(name, 2, 3, 8, dtype=torch.float32).to(DEVICE) for name in "abc")
    query, gain = (normal(name, 8, dtype=torch.float32).to(DEVICE) for name in "qg")
    lse = normal("lse", 2, 3, 2, dtype=torch.float32).to(DEVICE)
    for part, norm in ((partial, None), (None, gain)):
        options = ("softmax", 2, 1, 1e-6, 1e-6)
        arguments = (prior, lse, part, output, query, norm, *options)
        found = torch.library.opcheck(OPS.merge.default, arguments)
        assert set(found.values()) == {"SUCCESS"}
        mixed, total, z, inverse, whole = OPS.merge(*arguments)
        p = output if part is None else total
        saved = (prior, p, query, z, inverse, whole, mixed, norm, "softmax", 2, 1, 1e-6)
        found = torch.library.opcheck(OPS.merge_backward.default, (output, partial, *saved))
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize(("heads", "options"), [(1, {}), (2, {"head_norm": True}), (2, {"key_norm": False})])
@pytest.mark.parametrize("act", ACTS)
def test_gradcheck_of_a_read_and_its_weights(act: str, heads: int, options: dict[str, Any]) -> None:
    sources, query = inputs(3, 2, 4)
    gain = normal("gain", 4).to(DEVICE).requires_grad_()

    def run(query: Tensor, gain: Tensor, *sources: Tensor) -> tuple[Tensor, Tensor]:
        return kernels.depth_mix(sources, query, key_weight=gain, act=act, heads=heads, eps=1e-6, **options)

    assert torch.autograd.gradcheck(run, (query, gain, *sources))


def test_gradcheck_of_logits_and_their_log_sum() -> None:
    """One source too, where logit and log-sum move with the query though the weight cannot."""
    for num in (1, 3):
        sources, query = inputs(num, 2, 4)

        def run(query: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
            mixed, z, _, lse = OPS.read(sources, query, "softmax", 2, 1, 1e-6)
            return mixed, z, lse

        assert torch.autograd.gradcheck(run, (query, *sources))


def test_a_function_with_a_read_compiles_to_one_graph() -> None:
    """Value and gradients as without compilation, and the same graph serves other tokens."""

    def run(query: Tensor, *sources: Tensor) -> Tensor:
        mixed, weights = kernels.depth_mix([x * 2 for x in sources], query, heads=2)
        return mixed.sin().sum() + weights.square().sum()

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in ((2, 3, 8), (4, 5, 8)):
        sources, query = inputs(3, *shape, dtype=torch.float32)
        expected = torch.autograd.grad(run(query, *sources), [query, *sources])
        found = torch.autograd.grad(compiled(query, *sources), [query, *sources])
        for a, b in zip(found, expected, strict=True):
            assert deviation(a, b.cpu()) < 1e-6


def test_operations_are_counted() -> None:
    """Per source and channel: score, square, sum (6); and in the backward pass five of these, and g . h."""
    sources, query = inputs(3, 2, 5, 8, dtype=torch.float32)
    channels = 2 * 5 * 8
    for options, forward, backward in (
        ({}, 6 * 3, 10 * 3 + 2),
        ({"key_norm": False}, 4 * 3, 8 * 3 + 2),
        ({"act": "sigmoid"}, 6 * 3, 10 * 3),
    ):
        with FlopCounterMode(display=False) as counter:
            mixed, _ = kernels.depth_mix(sources, query, **options)
        assert counter.get_total_flops() == forward * channels
        with FlopCounterMode(display=False) as counter:
            mixed.sum().backward()
        assert counter.get_total_flops() == backward * channels


def test_the_operations_of_a_merge_are_counted() -> None:
    x, lse, query = torch.randn(5, 8).to(DEVICE), torch.randn(5, 1).to(DEVICE), torch.randn(8).to(DEVICE)
    with FlopCounterMode(display=False) as counter:
        mixed, total, *saved = kernels.merge_forward(x, lse, x, x, query, "softmax", 1, 1, 1e-6)
    assert counter.get_total_flops() == (1 + 4 + 4) * 5 * 8
    with FlopCounterMode(display=False) as counter:
        kernels.merge_backward(x, x, x, total, query, *saved, mixed, "softmax", 1, 1)
    assert counter.get_total_flops() == (10 + 2 + 1) * 5 * 8


def test_autocast_changes_nothing() -> None:
    """Inputs enter as they are, sums are in float32, the output has the sources' dtype."""
    sources, query = inputs(5, 4, 64, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        mixed, weights = kernels.depth_mix(sources, query)
        mixed.square().sum().backward()
    plain, plain_weights = kernels.depth_mix(sources, query)
    assert mixed.dtype == weights.dtype == torch.float32
    assert torch.equal(mixed, plain)
    assert torch.equal(weights, plain_weights)
    half = [source.detach().half() for source in sources]
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        mixed, weights = kernels.depth_mix(half, query)
    assert mixed.dtype == torch.float16
    assert weights.dtype == torch.float32
    expected, _ = reference.depth_mix([x.cpu().double() for x in half], query.cpu().double())
    assert deviation(mixed, expected) < 2e-3


def test_only_the_sources_that_need_it_get_a_gradient() -> None:
    sources, query = inputs(3, 2, 8, dtype=torch.float32)
    sources[1] = sources[1].detach()
    kernels.depth_mix(sources, query.detach())[0].sum().backward()
    assert sources[0].grad is not None
    assert sources[1].grad is None
    assert query.grad is None
