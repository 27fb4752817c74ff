"""The executions of AttnRes compute the same numbers, in every precision and when traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro.depth.attnres import AttnRes
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, build, results, same
from tests.toy import error, normal


@pytest.mark.parametrize("num_sublayers", range(1, 10))
def test_executions_are_equal_for_every_block_size(num_sublayers: int) -> None:
    """Reads, weights and every gradient, short last blocks included, against the definition."""
    for block_size in range(1, num_sublayers + 1):
        options: dict[str, Any] = {"block_size": block_size}
        expected = results(build(num_sublayers, **options, execution="per_read", backend="reference"))
        for execution in EXECUTIONS:
            same(results(build(num_sublayers, **options, execution=execution)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"act": "sigmoid"},
        {"act": "sigmoid_normalized"},
        {"act": "sigmoid", "block_size": 4},
        {"act": "sigmoid_normalized", "block_size": 4},
        {"key_norm": False},
        {"key_gain": False, "block_size": 4},
        {"heads": 3, "block_size": 4},
        {"heads": 3, "head_norm": True},
        {"heads": 2, "act": "sigmoid", "block_size": 8},
        {"num_blocks": 5},
        {"window": 1},
        {"window": 3},
        {"window": 3, "window_output": "window"},
        {"window": 2, "act": "sigmoid", "heads": 2},
    ],
    ids=str,
)
def test_executions_are_equal_for_every_option(options: dict[str, Any]) -> None:
    """20 sublayers, so that two-phase has three groups of reads."""
    expected = results(build(20, **options, execution="per_read", backend="reference"))
    for execution in EXECUTIONS:
        same(results(build(20, **options, execution=execution)), expected, 1e-11)


@settings(max_examples=15, deadline=None)
@given(num_sublayers=st.integers(1, 40), data=st.data(), execution=st.sampled_from(EXECUTIONS[1:]))
def test_executions_are_equal_at_any_depth(num_sublayers: int, data: st.DataObject, execution: str) -> None:
    num_blocks = data.draw(st.integers(1, num_sublayers))
    expected = results(build(num_sublayers, num_blocks=num_blocks, execution="per_read"))
    same(results(build(num_sublayers, num_blocks=num_blocks, execution=execution)), expected, 1e-11)


@pytest.mark.parametrize("block_size", [1, 4])
def test_executions_agree_in_float32(block_size: int) -> None:
    options: dict[str, Any] = {"block_size": block_size, "width": 64}
    expected = results(build(32, **options, execution="per_read"))
    for execution in EXECUTIONS:
        found = results(build(32, **options, execution=execution, dtype=torch.float32), torch.float32)
        same({name: value.double() for name, value in found.items()}, expected, 1e-5)


@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
def test_where_a_query_depends_on_the_input_every_read_is_computed_when_it_comes(query: str) -> None:
    assert AttnRes(4, WIDTH, query=query, execution="two_phase").execution == "per_read"
    assert AttnRes(4, WIDTH, window=2, execution="two_phase").execution == "score_on_write"
    assert AttnRes(4, WIDTH, execution="auto").execution == "two_phase"


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_gradcheck(execution: str) -> None:
    """All reads of a Block network of five sublayers, in everything, against finite differences."""
    mixer = build(5, 4, block_size=2, execution=execution)
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:  # the parameters among them are perturbed in place
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


# Precision


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("options", [{}, {"block_size": 2}, {"act": "sigmoid"}], ids=str)
def test_autocast_keeps_mixing_in_float32(options: dict[str, Any], execution: str) -> None:
    """bfloat16 outputs on a float32 embedding: sums, logits and reads of the same numbers in float32."""
    mixer = build(5, dtype=torch.float32, execution=execution, **options)
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
    narrow = [y.bfloat16() for y in outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reads = walk(mixer, embedding, narrow)
    for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bfloat16_streams_are_mixed_in_float32(execution: str) -> None:
    """All-bfloat16 Full: every read is within one rounding of the float32 mix of the same numbers."""
    mixer = build(20, dtype=torch.float32, execution=execution)
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.bfloat16) for i in range(21))
    reads = walk(mixer, embedding, outputs)
    wide = walk(mixer, embedding.float(), [y.float() for y in outputs])
    for a, b in zip(reads, wide, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).abs().max() <= 2**-8 * b.abs().max()


# Tracing


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"block_size": 2}, {"window": 2}, {"query": "mixed_state"}], ids=str)
def test_torch_compile_sees_one_graph(options: dict[str, Any]) -> None:
    """A whole pass is traced without a break, and computes what it computed."""
    mixer = build(3, dtype=torch.float32, **options)
    sources = [normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(4)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-6


@pytest.mark.filterwarnings("error:Dynamo detected")
@pytest.mark.parametrize("options", [{"block_size": 2}, {}], ids=str)
def test_torch_compile_sees_one_graph_without_gradients_too(options: dict[str, Any]) -> None:
    """As in validation: a forward with as many arguments as named parameters once lost its context there."""
    mixer = build(9, **options, execution="two_phase")
    embedding, *outputs = (normal(f"source {i}", 1, 2, WIDTH) for i in range(10))
    with torch.no_grad():
        expected = walk(mixer, embedding, outputs)
        compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
        for a, b in zip(compiled(embedding, *outputs), expected, strict=True):
            assert error(a, b) < 1e-12
