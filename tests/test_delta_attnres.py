"""Additive routing (Delta-AttnRes) and cumulative states: definitions, and where they equal PreNorm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.cumulative import CumulativeAttnRes
from repro.depth.delta import DeltaAttnRes
from repro.depth.prenorm import PreNorm
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, randomised, results, same
from tests.test_matrix import Network
from tests.toy import Toy, default_dtype, error, normal


def make(scheme: Any, num_sublayers: int, width: int = WIDTH, **options: Any) -> AttnRes:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


def mix(mixer: AttnRes, l: int, sources: list[Tensor]) -> Tensor:
    """Read l of these sources by the definition."""
    read, _ = ops.depth_mix(
        sources, mixer.queries[l], key_weight=mixer.key_gains[l], backend="reference", eps=mixer.eps
    )
    return read


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("sources", ["deltas", "states"])
def test_additive_routing_follows_its_definition(sources: str, execution: str) -> None:
    """h_l + the attention-weighted sum over the embedding and deltas, or over h_0..h_l; the end reads h_L."""
    mixer = randomised(make(DeltaAttnRes, 20, sources=sources, execution=execution))
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH) for i in range(21))
    stream, listed, expected = embedding, [embedding], []
    for l, output in enumerate(outputs):
        expected.append(stream + mix(mixer, l, listed))
        stream = stream + output
        listed.append(output if sources == "deltas" else stream)
    expected.append(stream)
    for a, b in zip(walk(mixer, embedding, outputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_zero_queries_scale_prenorm() -> None:
    """The deltas add up to the stream, so their mean is h_l / (l + 1); a norm removes the scale."""
    toy = Toy(20, 16)
    mixer, prenorm = make(DeltaAttnRes, 20, 16, eps=0.0), PreNorm(20, 16)
    *reads, end = toy.walk(mixer)
    *streams, last = toy.walk(prenorm)
    for l, (read, stream) in enumerate(zip(reads, streams, strict=True)):
        assert error(read, (1 + 1 / (l + 1)) * stream) < 1e-12
    assert error(end, last) < 1e-12
    states = make(DeltaAttnRes, 20, 16, eps=0.0, sources="states")
    assert error(toy.run(states), toy.run(prenorm)) > 1e-3  # another function


def test_zero_queries_over_blocks_scale_prenorm_too() -> None:
    """Block sums and the partial sum add up to the stream as well: (1 + 1 / number of sources) h_l."""
    toy = Toy(8, 16)
    mixer = make(DeltaAttnRes, 8, 16, eps=0.0, block_size=3)
    for l, (read, stream) in enumerate(zip(toy.walk(mixer)[:8], toy.walk(PreNorm(8, 16))[:8], strict=True)):
        num_sources = (1, 2, 2, 2, 3, 3, 3, 4)[l]
        assert error(read, (1 + 1 / num_sources) * stream) < 1e-12


@pytest.mark.parametrize("sources", ["deltas", "states"])
def test_closed_gates_are_prenorm_bit_for_bit(sources: str) -> None:
    """At any queries: what is routed is multiplied by zero."""
    toy = Toy(20, 16)
    mixer = randomised(make(DeltaAttnRes, 20, 16, sources=sources, gated=True))
    with torch.no_grad():
        mixer.gates.zero_()
    for a, b in zip(toy.walk(mixer, eps=1e-8), toy.walk(PreNorm(20, 16), eps=1e-8), strict=True):
        assert torch.equal(a, b)


def test_open_gates_are_the_ungated_sum() -> None:
    gated, plain = (randomised(make(DeltaAttnRes, 9, gated=g)) for g in (True, False))
    with torch.no_grad():
        gated.gates.fill_(1.0)
    found, expected = results(gated), results(plain)
    assert found.pop("gradient of gates").all()
    same(found, expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_cumulative_attnres_lists_the_newest_state_twice(execution: str) -> None:
    """The loop of that code: mix the list of states and the running state, add the output to the latter.

    The list starts with the embedding, which is also the running state, and every new state is appended.
    """
    mixer = randomised(make(CumulativeAttnRes, 20, execution=execution))
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH) for i in range(21))
    state, blocks, expected = embedding, [embedding], []
    for l, output in enumerate(outputs):
        expected.append(mix(mixer, l, [*blocks, state]))
        state = state + output
        blocks.append(state)
    expected.append(state)
    for a, b in zip(walk(mixer, embedding, outputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_executions_of_cumulative_attnres_agree() -> None:
    """Weights (of the two copies together) and gradients too."""
    expected = results(randomised(make(CumulativeAttnRes, 20, execution="per_read", backend="reference")))
    assert expected["weights 3"].shape[0] == 4
    for execution in EXECUTIONS:
        found = results(randomised(make(CumulativeAttnRes, 20, execution=execution)))
        same(found, expected, 1e-11)
    for l in range(20):
        assert error(expected[f"weights {l}"].sum(0), torch.ones(1, 2, 3)) < 1e-12


def test_counting_twice_doubles_the_weight_at_zero_queries() -> None:
    """Read 2 of states a, b, c: (a + b + 2 c) / 4."""
    mixer = make(CumulativeAttnRes, 3)
    a, f, g, h = (normal(f"source {i}", 1, 1, WIDTH) for i in range(4))
    read = walk(mixer, a, [f, g, h])[2]
    assert error(read, (a + (a + f) + 2 * (a + f + g)) / 4) < 1e-14


@pytest.mark.parametrize("scheme", [DeltaAttnRes, CumulativeAttnRes])
def test_counts(scheme: Any) -> None:
    """No output read: L queries and L gains of width D."""
    assert sum(p.numel() for p in make(scheme, 9, 4).parameters()) == 2 * 9 * 4
    assert make(scheme, 9, 4).num_sources(9) == 0


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (DeltaAttnRes, {"gated": True}),
        (DeltaAttnRes, {"sources": "states"}),
        (CumulativeAttnRes, {}),
    ],
)
def test_gradcheck(scheme: Any, options: Any) -> None:
    mixer = randomised(make(scheme, 5, 4, **options))
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


@pytest.mark.parametrize(
    ("scheme", "options", "key"),
    [
        (DeltaAttnRes, {"sources": "blocks"}, "sources"),
        (DeltaAttnRes, {"gated": "yes"}, "gated"),
        (DeltaAttnRes, {"sources": "states", "block_size": 4}, "block_size"),
        (CumulativeAttnRes, {"block_size": 4}, "block_size"),
        (CumulativeAttnRes, {"act": "sigmoid"}, "act"),
    ],
)
def test_bad_options_name_their_key(scheme: Any, options: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(8, 4, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert "\n" not in str(caught.value)


def test_the_matrix_at_zero_queries() -> None:
    """Row l is 1 + 1 / (l + 1) up to the diagonal; the output row is that of PreNorm, ones."""
    network = Network(4, 16)
    entries = network.matrix(make(DeltaAttnRes, 4, 16)).weights.flatten(2).mean(-1)
    expected = torch.ones(5, 5, dtype=torch.float64).tril()
    for l in range(4):
        expected[l] *= 1 + 1 / (l + 1)
    torch.testing.assert_close(entries, expected, rtol=0, atol=1e-13)
