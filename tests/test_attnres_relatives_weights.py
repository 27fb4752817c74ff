"""What the weights of each relative of AttnRes are for: zeros, ties, distances, ranks, temperatures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.attnres_keys import LowRankKeys
from repro.depth.attnres_logits import RecencyBias, Temperature
from repro.depth.attnres_weights import Entmax, Sparsemax, TopK
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, randomised, results
from tests.relatives import Scheme, make
from tests.toy import error, normal, randomise

# What each is for


def recorded(mixer: AttnRes) -> dict[int, Tensor]:
    """Weights [S, H, B, T] of all reads of a walk over 12 random vectors of unit size."""
    found: dict[int, Tensor] = {}
    mixer.tap = found.__setitem__
    vectors = [normal(f"source {i}", 2, 6, mixer.width) for i in range(mixer.num_sublayers + 1)]
    walk(mixer, vectors[0], vectors[1:])
    return found


@pytest.mark.parametrize("execution", ["per_read", "score_on_write"])
@pytest.mark.parametrize("scheme", [Sparsemax, Entmax])
def test_sparse_weights_sum_to_one_and_have_zeros(scheme: Scheme, execution: str) -> None:
    weights = recorded(randomise(make(scheme, 12, 16, execution=execution), 0.5))
    for l, found in weights.items():
        assert (found.sum(0) - 1).abs().max() < 1e-14
        assert (found >= 0).all()
        assert l < 4 or (found == 0).any()  # with more than four sources and logits of deviation 2
    assert 1 < (weights[12] > 0).sum(0).double().mean() < 12


@pytest.mark.parametrize("execution", ["per_read", "score_on_write"])
def test_top_k_keeps_k_sources_per_token_and_their_ratios(execution: str) -> None:
    mixer = randomise(make(TopK, 12, 16, top_k=3, execution=execution), 0.3)
    plain = make(AttnRes, 12, 16)
    plain.load_state_dict(mixer.state_dict())
    full = recorded(plain)
    for l, found in recorded(mixer).items():
        kept = found > 0
        assert (kept.sum(0) == min(3, l + 1)).all()
        assert (full[l].masked_fill(~kept, 2).amin(0) > full[l].masked_fill(kept, -1).amax(0)).all()
        renormalised = full[l] * kept / (full[l] * kept).sum(0)
        assert error(found, renormalised) < 1e-12


@pytest.mark.parametrize(
    ("scheme", "options"), [(TopK, {"top_k": 2}), (Sparsemax, {}), (Entmax, {}), (LowRankKeys, {"rank": 3})]
)
def test_the_order_of_sources_does_not_matter(scheme: Scheme, options: dict[str, Any]) -> None:
    """Weights move with their sources, those of a tie included (the first two sources are equal)."""
    mixer = randomise(make(scheme, 7, execution="per_read", **options))
    sources = [normal(f"source {max(i, 1)}", 2, 3, WIDTH) for i in range(6)]
    order = [3, 0, 5, 1, 4, 2]
    query = mixer._folded_queries()[6]
    read, weights = mixer._mix_sources(6, sources, query, None)
    again, permuted = mixer._mix_sources(6, [sources[i] for i in order], query, None)
    assert error(again, read) < 1e-14
    assert error(permuted, weights[order]) < 1e-14
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("block_size", [1, 2])
def test_a_slope_alone_gives_powers_of_two(block_size: int, execution: str) -> None:
    """slope = ln 2 at zero queries: every step back halves the weight; a block is one step."""
    mixer = make(RecencyBias, 4, block_size=block_size, bias="slope", slope=math.log(2), execution=execution)
    halves = {1: [1.0], 2: [1 / 3, 2 / 3], 3: [1 / 7, 2 / 7, 4 / 7], 4: [k / 15 for k in (1, 2, 4, 8)]}
    halves[5] = [k / 31 for k in (1, 2, 4, 8, 16)]
    sizes = {1: [1, 2, 3, 4, 5], 2: [1, 2, 2, 3, 3]}[block_size]
    for l, weights in recorded(mixer).items():
        assert weights[:, 0, 0, 0].tolist() == pytest.approx(halves[sizes[l]], abs=1e-15)


def test_low_rank_queries_have_that_rank() -> None:
    """W = U P: the queries as AttnRes has them span r dimensions, and all D where each read has its own P."""
    for keys, rank in (("sliced", 3), ("projected", 3), ("projected_per_read", 8)):
        mixer = randomise(make(LowRankKeys, 12, 8, rank=3, keys=keys))
        folded = mixer._folded_queries()
        assert folded.shape == (13, 8)
        assert torch.linalg.matrix_rank(folded) == rank
    sliced = randomise(make(LowRankKeys, 12, 8, rank=3))._folded_queries()
    assert sliced[:, :3].all()
    assert not sliced[:, 3:].any()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_temperature_divides_the_query(execution: str) -> None:
    hot, plain = randomised(make(Temperature, 7, execution=execution)), make(AttnRes, 7)
    with torch.no_grad():
        plain.queries.copy_(hot.queries / hot.log_temperatures.exp()[:, None])
        plain.key_gains.copy_(hot.key_gains)
    expected, found = results(plain), results(hot)
    for l in range(8):
        assert error(found[f"read {l}"], expected[f"read {l}"]) < 1e-13
