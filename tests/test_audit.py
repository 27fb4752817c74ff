"""Eight tests that an audit of another implementation found missing there, carried over to this code.

Expected values are literals of the paper's formulas (Eqs. 2 to 6, Algorithm 1), means and counts; none is
computed by the code under test. e = exp(4) = 54.598150 is the weight of a unit vector of width 4 whose key
is met by a query of 2.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from tests.gold import walk

BACKENDS = ("reference", "eager")
EXECUTIONS = ("per_read", "score_on_write", "two_phase")
QUERY = [2.0, 0.0, 0.0, 0.0]


def vectors(*rows: list[float]) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32).view(1, 1, -1) for row in rows]


def block(num_sublayers: int, block_size: int, execution: str, query: list[float] = QUERY) -> AttnRes:
    mixer = AttnRes(num_sublayers, len(query), block_size=block_size, eps=1e-6, execution=execution)
    with torch.no_grad():
        mixer.queries.copy_(torch.tensor(query))
    return mixer


def assert_literal(value: Tensor, literal: list[float], because: str, tolerance: float = 1e-5) -> None:
    assert (value.flatten().double() - torch.tensor(literal, dtype=torch.float64)).abs().max() < tolerance, (
        because
    )


# A: no scale, mean inside the RMS


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scale_and_norm(backend: str) -> None:
    """Weights e / (e + 1): 0.8808 would mean an L2 norm, 0.7311 both that and 1 / sqrt(d)."""
    sources = vectors([1, 0, 0, 0], [0, 1, 0, 0])
    mixed, _ = ops.depth_mix(sources, torch.tensor(QUERY), eps=1e-6, backend=backend)
    assert_literal(mixed, [0.9820138, 0.0179862, 0, 0], "Eq. 2: q . RMSNorm(k), no temperature")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_scale_and_norm_in_every_execution(execution: str) -> None:
    sources = vectors([1, 0, 0, 0], [0, 1, 0, 0])
    read = walk(block(1, 1, execution), sources[0], sources[1:])[1]
    assert_literal(read, [0.9820138, 0.0179862, 0, 0], "Eq. 2: q . RMSNorm(k), no temperature")


# B: uniform start


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_b_a_zero_query_gives_the_arithmetic_mean(execution: str) -> None:
    """Of the raw values: a mix of normalised ones would be off by order one."""
    generator = torch.Generator().manual_seed(5)
    sources = [3 * torch.randn(2, 3, 8, generator=generator) for _ in range(5)]
    read = walk(block(4, 1, execution, [0.0] * 8), sources[0], sources[1:])[4]
    mean = sum(source.double() for source in sources) / 5
    assert (read.double() - mean).abs().max() < 1e-6


# C: source sets of Eq. 6


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_c_walk_through_the_source_sets(execution: str) -> None:
    """S = 2; b_0 = 3 e_0 is no sum of outputs, so folding it into a block would show.

    With n sources beside b_0, their keys zero in channel 0, b_0 weighs e / (e + n), each other 1 / (e + n):
    1 / (e + 1) = 0.01798621, 1 / (e + 2) = 0.01766842.
    """
    embedding, *outputs = vectors([3, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1])
    reads = walk(block(4, 2, execution), embedding, outputs)
    one, two = 0.01798621, 0.01766842
    assert_literal(reads[0], [3, 0, 0, 0], "Eq. 6: the first read sees b_0 alone")
    assert_literal(reads[1], [3 - 3 * one, one, 0, 0], "Eq. 6, i = 2: [b_0, partial sum of f_1]")
    assert_literal(reads[2], [3 - 3 * one, one, one, 0], "Eq. 6, i = 1: [b_0, b_1], b_1 = f_1 + f_2")
    assert_literal(reads[3], [3 - 6 * two, two, two, two], "Eq. 6, i = 2: [b_0, b_1, partial sum of f_3]")
    assert_literal(reads[4], [3 - 6 * two, 2 * two, 2 * two, 2 * two], "output read: [b_0, b_1, b_2]")


# D: both phases of Algorithm 1 on one scale


def test_d_two_phases_have_one_scale() -> None:
    """d = 8, unit vectors: keys sqrt(8), logits sqrt(8) (1, 1/2, -1), as numbers worked out by hand."""
    eye = torch.eye(8)
    query = torch.tensor([[1.0, 0.5, -1.0, 0, 0, 0, 0, 0]])
    first = ops.attend_with_stats([eye[0], eye[1]], query, eps=0.0)
    second = ops.attend_with_stats([eye[2]], query, eps=0.0)
    assert second.l.item() == 1.0
    assert second.m.item() == pytest.approx(-math.sqrt(8), abs=1e-6)
    assert_literal(second.o, [0, 0, 1, 0, 0, 0, 0, 0], "one key: numerator is the value")
    assert first.m.item() == pytest.approx(math.sqrt(8), abs=1e-6)
    merged = ops.normalise_stats(ops.merge_stats(first, second))
    total = math.exp(math.sqrt(8)) + math.exp(math.sqrt(2)) + math.exp(-math.sqrt(8))
    weights = [
        math.exp(math.sqrt(8)) / total,
        math.exp(math.sqrt(2)) / total,
        math.exp(-math.sqrt(8)) / total,
    ]
    assert weights == pytest.approx([0.8021754, 0.1950223, 0.0028024], abs=1e-6)
    assert_literal(merged, [*weights, 0, 0, 0, 0, 0], "Algorithm 1, line 12", 1e-6)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_d_two_phases_have_one_scale_in_a_network(execution: str) -> None:
    """L = 4, S = 4, the read of b_0 and the partial sum e_1 + e_2: logits sqrt(8) and 2 (1/2 - 1)."""
    eye = torch.eye(8).view(8, 1, 1, 8)
    mixer = block(4, 4, execution, [1.0, 0.5, -1.0, 0, 0, 0, 0, 0])
    read = walk(mixer, eye[0], [eye[1], eye[2], eye[3], eye[4]])[2]
    weight = 1 / (1 + math.exp(-math.sqrt(8) - 1))
    assert_literal(read, [weight, 1 - weight, 1 - weight, 0, 0, 0, 0, 0], "Algorithm 1, line 12", 1e-5)


# E and F: our own kernels against the paper's formula, in values and gradients


def paper_read(
    sources: np.ndarray, query: np.ndarray, upstream: np.ndarray, eps: float
) -> dict[str, np.ndarray]:
    """Eq. 2 and its Jacobian written out in float64: sources [S, D], upstream [D]."""
    width = sources.shape[1]
    inverse = 1 / np.sqrt((sources**2).mean(1) + eps)
    keys = sources * inverse[:, None]
    logits = keys @ query
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    mixed = weights @ sources
    grad_logits = weights * (sources @ upstream - mixed @ upstream)
    projected = query[None] - keys * logits[:, None] / width
    grad_sources = weights[:, None] * upstream[None] + (grad_logits * inverse)[:, None] * projected
    return {"mixed": mixed, "weights": weights, "query": grad_logits @ keys, "sources": grad_sources}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_sources", [2, 5, 12])
def test_e_f_float32_kernels_against_the_paper_in_float64(num_sources: int, backend: str) -> None:
    """Values to 1e-5, gradients to 1e-5 of their size (the audit asks for 1e-4 and 1e-3)."""
    rng = np.random.default_rng(num_sources)
    sources, query, upstream = (
        rng.normal(size=(num_sources, 16)),
        rng.normal(size=16) / 4,
        rng.normal(size=16),
    )
    expected = paper_read(sources, query, upstream, 1e-6)
    leaves = [torch.tensor(row, dtype=torch.float32, requires_grad=True) for row in sources]
    q = torch.tensor(query, dtype=torch.float32, requires_grad=True)
    mixed, weights = ops.depth_mix(leaves, q, eps=1e-6, backend=backend)
    mixed.backward(torch.tensor(upstream, dtype=torch.float32))
    found = {
        "mixed": mixed.detach(),
        "weights": weights[:, 0].detach(),
        "query": q.grad,
        "sources": torch.stack([leaf.grad for leaf in leaves]),
    }
    for name, value in found.items():
        scale = np.abs(expected[name]).max()
        assert np.abs(value.double().numpy() - expected[name]).max() < 1e-5 * scale, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_f_gradient_against_central_differences_of_the_paper(backend: str) -> None:
    """Step 1e-3, within 1e-2: a scale of 1 / sqrt(d) in the gradient alone would be off by a factor of 4."""
    rng = np.random.default_rng(1)
    sources, query, upstream = rng.normal(size=(4, 16)), rng.normal(size=16), rng.normal(size=16)
    q = torch.tensor(query, dtype=torch.float32, requires_grad=True)
    mixed, _ = ops.depth_mix(
        [torch.tensor(s, dtype=torch.float32) for s in sources], q, eps=1e-6, backend=backend
    )
    mixed.backward(torch.tensor(upstream, dtype=torch.float32))
    for j in range(16):
        step = np.zeros(16)
        step[j] = 1e-3
        high, low = (paper_read(sources, query + sign * step, upstream, 1e-6)["mixed"] for sign in (1, -1))
        difference = (high - low) @ upstream / 2e-3
        assert abs(q.grad[j].item() - difference) < 1e-2 * np.abs(q.grad.numpy()).max()


# G: the scaled sum counts sources


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_sources", [1, 2, 3, 9, 40])
def test_g_the_scaled_sum_counts_the_sources(num_sources: int, backend: str) -> None:
    """At zero query every exp(logit - m) is one: no source is lost or counted twice, nor by a merge."""
    generator = torch.Generator().manual_seed(num_sources)
    sources = [torch.randn(2, 8, generator=generator) for _ in range(num_sources)]
    queries = torch.zeros(3, 8)
    stats = ops.attend_with_stats(sources, queries, backend=backend)
    assert torch.equal(stats.l, torch.full((3, 1, 2), float(num_sources)))
    assert (stats.o - sum(sources)).abs().max() < 1e-5
    more = ops.merge_stats(stats, ops.attend_with_stats(sources[:1], queries, backend=backend))
    assert torch.equal(more.l, torch.full((3, 1, 2), float(num_sources + 1)))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_g_a_boundary_does_not_count_twice(execution: str) -> None:
    """S = 2: after two sublayers there are two sources, not three; weights are one over their number."""
    mixer = block(5, 2, execution, [0.0] * 4)
    recorded: dict[int, Tensor] = {}
    mixer.tap = recorded.__setitem__
    embedding, *outputs = vectors(*torch.eye(6)[:, :4].tolist())
    walk(mixer, embedding, outputs)
    assert [len(recorded[l]) for l in range(6)] == [1, 2, 2, 3, 3, 4]
    for weights in recorded.values():
        assert (weights * len(weights) - 1).abs().max() < 1e-6


# H: the two ends of the block size, and the tail


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_h_blocks_of_one_sublayer_attend_to_every_output(execution: str) -> None:
    """L = 3, S = 1: weights e / (e + n) on b_0 and 1 / (e + n) on each of n outputs."""
    embedding, *outputs = vectors([3, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    reads = walk(block(3, 1, execution), embedding, outputs)
    e = math.exp(4)
    for n in range(4):
        others = [1 / (e + n) if i < n else 0.0 for i in range(3)]
        assert_literal(reads[n], [3 * e / (e + n), *others], "N = L is Full")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_h_one_block_is_a_learned_mix_of_embedding_and_running_sum(execution: str) -> None:
    """N = 1 is no plain residual: b_0 weighs e / (e + 1) beside the sum of all outputs, b_0 not in it."""
    embedding, *outputs = vectors([3, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    reads = walk(block(3, 3, execution), embedding, outputs)
    b0, rest = 3 * 0.98201379, 0.01798621
    assert_literal(reads[1], [b0, rest, 0, 0], "[b_0, f_1]")
    assert_literal(reads[2], [b0, rest, rest, 0], "[b_0, f_1 + f_2]")
    assert_literal(reads[3], [b0, rest, rest, rest], "[b_0, b_1]")
    zero = walk(block(3, 3, execution, [0.0] * 4), embedding, outputs)
    assert_literal(zero[3], [1.5, 0.5, 0.5, 0.5], "at zero query half the residual sum")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_h_the_last_partial_sum_is_a_block(execution: str) -> None:
    """L = 5, S = 2: the output read sees [b_0, b_1, b_2, b_3], b_3 = f_5; 1 / (e + 3) = 0.01736166."""
    outputs = vectors([0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 1, 1, 1], [0, 5, 0, 0])
    reads = walk(block(5, 2, execution), vectors([3, 0, 0, 0])[0], outputs)
    w = 0.01736166
    assert_literal(reads[5], [3 - 9 * w, 7 * w, 2 * w, 2 * w], "Section 3.2: a short last block counts")
