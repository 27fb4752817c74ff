"""Input-dependent queries of low rank and from a lagged activation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.lagged_query import LaggedQuery
from repro.depth.low_rank_query import LowRankQuery
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import WIDTH, randomised, results, same
from tests.toy import Toy, default_dtype, error, normal, rms_norm


def make(scheme: Any, num_sublayers: int, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


# Low rank


@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
@pytest.mark.parametrize("options", [{}, {"block_size": 3}, {"heads": 2, "query_norm": "rms"}], ids=str)
def test_full_rank_with_an_identity_is_the_full_matrix(query: str, options: dict[str, Any]) -> None:
    """q = U V x with V = I: the matrix is U, which is kept transposed. Reads, weights, common gradients."""
    low = randomised(make(LowRankQuery, 8, rank=WIDTH, query=query, **options))
    full = randomised(make(AttnRes, 8, query=query, **options))
    with torch.no_grad():
        low.query_down.copy_(torch.eye(WIDTH).expand(9, -1, -1))
        low.query_up.copy_(full.query_projections.mT)
    found, expected = results(low), results(full)
    assert found.pop("gradient of query_down").any()
    found["gradient of query_projections"] = found.pop("gradient of query_up").mT
    same(found, expected, 1e-11)


def test_a_query_of_rank_one_is_a_learned_query_times_a_scalar() -> None:
    """q = u (v . x): with x the latest source at unit length."""
    mixer = randomised(make(LowRankQuery, 4, rank=1))
    sources = [normal(f"source {i}", 2, 3, WIDTH) for i in range(5)]
    for l, read in enumerate(walk(mixer, sources[0], sources[1:])):
        x = rms_norm(sources[l], 1e-8) / WIDTH**0.5
        query = (x @ mixer.query_down[l, 0]).unsqueeze(-1) * mixer.query_up[l, 0]
        expected, _ = ops.depth_mix(
            sources[: l + 1], query, key_weight=mixer.key_gains[l], backend="reference"
        )
        torch.testing.assert_close(read, expected, rtol=1e-12, atol=1e-13)


def uniform(mixer: Any) -> None:
    """Every read of a fresh scheme on Full is the mean of its sources."""
    sources = [normal(f"source {i}", 2, 3, WIDTH) for i in range(mixer.num_sublayers + 1)]
    for l, read in enumerate(walk(mixer, sources[0], sources[1:])):
        assert error(read, torch.stack(sources[: l + 1]).mean(0)) < 1e-13


def test_low_rank_starts_uniform_and_learns_from_there() -> None:
    """U is zero, V drawn with standard deviation r^-1/2; the first gradient reaches U."""
    mixer = make(LowRankQuery, 6, rank=4)
    assert mixer.normal_init == {"query_down": 0.5}
    with torch.no_grad():
        mixer.query_down.normal_(0, 0.5, generator=torch.Generator().manual_seed(0))
    uniform(mixer)
    toy = Toy(6, WIDTH)
    (toy.run(mixer, eps=1e-8) * normal("loss", 2, 5, WIDTH)).sum().backward()
    assert mixer.query_up.grad is not None
    assert mixer.query_up.grad[1:].flatten(1).any(1).all()


# Lagged


@pytest.mark.parametrize(
    "options",
    [
        {"lag": 4},
        {"lag": 1},
        {"lag": 100},
        {"lag": 4, "query": "mixed_state"},
        {"lag": 4, "block_size": 4},
        {"lag": 4, "block_size": 4, "query": "mixed_state"},
        {"lag": 8, "block_size": 3},
        {"lag": 1, "block_size": 5, "query_norm": "none"},
        {"lag": 8, "num_blocks": 5, "key_gain": False},
        {"lag": 4, "heads": 3, "block_size": 4},
        {"lag": 8, "heads": 2, "head_norm": True},
        {"lag": 8, "key_norm": False, "block_size": 2},
        {"lag": 8, "act": "sigmoid", "block_size": 4},
        {"lag": 8, "act": "sigmoid_normalized", "block_size": 4},
        {"lag": 8, "act": "sigmoid_normalized"},
    ],
    ids=str,
)
def test_two_phase_is_exact(options: dict[str, Any]) -> None:
    """Reads, weights and all gradients are those of the reads one by one."""
    expected = results(
        randomised(make(LaggedQuery, 18, execution="per_read", backend="reference", **options))
    )
    mixer = randomised(make(LaggedQuery, 18, **options))
    assert mixer.execution == "two_phase"
    same(results(mixer), expected, 1e-10)


def test_where_queries_come_from() -> None:
    """Blocks of two, groups of two: reads 0, 1 from the embedding, 2, 3 from b_1, 4, 5, 6 from b_2."""
    mixer = randomised(make(LaggedQuery, 6, block_size=2, lag=2))
    e, *f = (normal(f"source {i}", 2, 3, WIDTH) for i in range(7))
    b1, b2, b3 = f[0] + f[1], f[2] + f[3], f[4] + f[5]
    sources = [[e], [e, f[0]], [e, b1], [e, b1, f[2]], [e, b1, b2], [e, b1, b2, f[4]], [e, b1, b2, b3]]
    for l, read in enumerate(walk(mixer, e, f)):
        origin = (e, e, b1, b1, b2, b2, b2)[l]
        query = (rms_norm(origin, 1e-8) / WIDTH**0.5) @ mixer.query_projections[l].T
        expected, _ = ops.depth_mix(sources[l], query, key_weight=mixer.key_gains[l], backend="reference")
        torch.testing.assert_close(read, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
def test_a_lag_of_one_is_the_input_dependent_query_but_for_the_output_read(query: str) -> None:
    """Groups of one read on Full; the output read shares the group of the last sublayer, one read earlier."""
    lagged = randomised(make(LaggedQuery, 7, lag=1, query=query))
    latest = randomised(make(AttnRes, 7, query=query))
    sources = [normal(f"source {i}", 2, 3, WIDTH) for i in range(8)]
    found, expected = (walk(mixer, sources[0], sources[1:]) for mixer in (lagged, latest))
    assert all(error(a, b) < 1e-12 for a, b in zip(found[:7], expected[:7], strict=True))
    assert error(found[7], expected[7]) > 1e-3


@pytest.mark.parametrize("execution", ["two_phase", "per_read"])
def test_lagged_queries_start_uniform(execution: str) -> None:
    uniform(make(LaggedQuery, 9, lag=4, execution=execution))


def test_a_history_is_mixed_once_for_its_group() -> None:
    """L = 16, lag 8: two products over the history, of 8 and 9 reads."""
    mixer = randomised(make(LaggedQuery, 16, lag=8))
    opened = []
    mix_group = mixer._mix_group
    mixer._mix_group = lambda state, level, group: opened.append(group) or mix_group(state, level, group)
    results(mixer)
    assert opened == [range(8), range(8, 17)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", [LaggedQuery, LowRankQuery])
def test_torch_compile_sees_one_graph(scheme: Any) -> None:
    options = {"lag": 2} if scheme is LaggedQuery else {"rank": 2}
    mixer = randomised(make(scheme, 4, **options))
    sources = [normal(f"source {i}", 2, 3, WIDTH) for i in range(5)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-12


# Both


def test_counts() -> None:
    """Per read: 2 r D, or D^2; and a gain."""
    assert sum(p.numel() for p in make(LowRankQuery, 5, 8, rank=3).parameters()) == 6 * (2 * 3 * 8 + 8)
    assert sum(p.numel() for p in make(LaggedQuery, 5, 8).parameters()) == 6 * (8 * 8 + 8)
    full, low = make(AttnRes, 5, 8, query="latest_source"), make(LowRankQuery, 5, 8, rank=3)
    assert full.flops_per_token() - low.flops_per_token() == 6 * (2 * 8 * 8 - 2 * 2 * 3 * 8)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (LowRankQuery, {"rank": 2, "block_size": 2}),
        (LaggedQuery, {"lag": 2, "block_size": 2}),
        (LaggedQuery, {"lag": 3, "query": "mixed_state"}),
    ],
)
def test_gradcheck(scheme: Any, options: Any) -> None:
    mixer = randomised(make(scheme, 5, 4, **options))
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


@pytest.mark.parametrize(
    ("scheme", "options", "key", "message"),
    [
        (LowRankQuery, {"rank": 0}, "rank", "from 1 to the width, 8"),
        (LowRankQuery, {"rank": 9}, "rank", "from 1 to the width, 8"),
        (LowRankQuery, {"rank": 2.5}, "rank", "a whole number"),
        (LowRankQuery, {"query": "learned"}, "query", "one of latest_source, mixed_state"),
        (LaggedQuery, {"query": "learned"}, "query", "one of latest_source, mixed_state"),
        (LaggedQuery, {"lag": 0}, "lag", "at least 1"),
        (LaggedQuery, {"lag": True}, "lag", "at least 1"),
        (LaggedQuery, {"window": 3}, "window", "null where queries are lagged"),
    ],
)
def test_bad_options_name_their_key(scheme: Any, options: Any, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        scheme(6, 8, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (LowRankQuery, {"rank": 2}),
        (LaggedQuery, {"lag": 2}),
        (LaggedQuery, {"lag": 2, "block_size": 2}),
        (LaggedQuery, {"lag": 2, "execution": "per_read"}),
    ],
)
def test_autocast_keeps_mixing_in_float32(scheme: Any, options: dict[str, Any]) -> None:
    """bfloat16 outputs on a float32 embedding: logits and reads of the same numbers stay wide."""
    with default_dtype(torch.float32):
        mixer = randomised(scheme(5, WIDTH, **options))
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
    narrow = [y.bfloat16() for y in outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reads = walk(mixer, embedding, narrow)
    for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
