"""Relatives of AttnRes: precision, tracing, counts, facts and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from repro.depth.attnres import AttnRes
from repro.depth.attnres_keys import LowRankKeys
from repro.depth.attnres_logits import RecencyBias, Temperature
from repro.depth.attnres_weights import Entmax, Sparsemax, TopK
from repro.depth.facts import num_parameters, state_per_token
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, randomised
from tests.relatives import ONE_OF_EACH, PROJECTED, Scheme, make
from tests.toy import error, normal

# Precision and tracing

NARROW: list[tuple[Scheme, dict[str, Any]]] = [
    *ONE_OF_EACH,
    (LowRankKeys, {"keys": PROJECTED[1], "norm_over": "rank"}),
]


@pytest.mark.parametrize(("scheme", "options"), NARROW, ids=str)
def test_autocast_keeps_mixing_in_float32(scheme: Scheme, options: dict[str, Any]) -> None:
    """bfloat16 outputs on a float32 embedding: sums, logits and reads of the same numbers in float32."""
    for execution in EXECUTIONS:
        mixer = randomised(scheme(5, WIDTH, block_size=2, execution=execution, **options))
        embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
        narrow = [y.bfloat16() for y in outputs]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reads = walk(mixer, embedding, narrow)
        for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
            assert a.dtype == torch.float32
            assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("scheme", "options"), [(LowRankKeys, {"norm_over": "rank"}), (RecencyBias, {}), (Entmax, {})], ids=str
)
def test_torch_compile_sees_one_graph(scheme: Scheme, options: dict[str, Any]) -> None:
    mixer = randomised(scheme(2, WIDTH, block_size=2, **options))
    sources = [normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(3)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-5


# Counts, facts and bad input


def test_parameter_counts() -> None:
    """L + 1 = 7 reads of width D = 12 and rank r = 5, queries and gains; what each adds beside them."""
    count: Callable[..., int] = lambda scheme, **options: num_parameters(scheme(6, 12, **options))  # noqa: E731
    assert count(AttnRes) == 2 * 7 * 12
    assert count(LowRankKeys, rank=5) == 2 * 7 * 5
    assert count(LowRankKeys) == 2 * 7 * 3  # a quarter of the width
    assert count(LowRankKeys, rank=5, keys="projected") == 2 * 7 * 5 + 5 * 12
    assert count(LowRankKeys, rank=5, keys="projected_per_read") == 2 * 7 * 5 + 7 * 5 * 12
    assert count(RecencyBias) == 2 * 7 * 12 + 6  # distances 1 to 6
    assert count(RecencyBias, block_size=4) == 2 * 7 * 12 + 2  # b0, b1, b2 or a partial sum
    assert count(RecencyBias, bias="latest") == 2 * 7 * 12 + 7
    assert count(RecencyBias, bias="slope", slope=1.0) == 2 * 7 * 12
    assert count(Temperature) == 2 * 7 * 12 + 7
    assert count(TopK, top_k=2) == count(Sparsemax) == count(Entmax) == 2 * 7 * 12


@pytest.mark.parametrize(
    ("scheme", "options"),
    [(LowRankKeys, {"norm_over": "rank"}), (RecencyBias, {}), (Temperature, {}), (Entmax, {})],
)
def test_state_is_that_of_attnres(scheme: Scheme, options: dict[str, Any]) -> None:
    assert state_per_token(lambda width: scheme(8, width, **options), 8) == (9, 0)
    assert state_per_token(lambda width: scheme(8, width, block_size=4, **options), 8) == (3, 0)


def test_facts_name_the_relative_and_its_sources() -> None:
    schemes = [make(scheme, 6, **options) for scheme, options in ONE_OF_EACH]
    assert {mixer.facts().system for mixer in schemes} == {
        "LR-AttnRes", "AttnRes, recency bias", "AttnRes, learned temperature", "AttnRes, top-k",
        "AttnRes, sparsemax", "AttnRes, entmax",
    }  # fmt: skip
    assert make(RecencyBias, 6, block_size=2).facts().source == AttnRes(6, 4, block_size=2).facts().source
    assert make(RecencyBias, 6).facts().source == "[h[1]..h[l-1]]"
    assert make(RecencyBias, 6, block_size=2).facts().system == "AttnRes, recency bias, blocks"
    assert make(Temperature, 6, block_size=2).facts().system == "AttnRes, learned temperature, blocks"


def test_flops_count_low_rank_scores() -> None:
    """L = 2, D = 8, r = 2: 1 + 2 + 3 reads of sources (2 D mixing and 2 r scores each); 3 keys of 2 r."""
    flops = LowRankKeys(2, 8, rank=2, norm_over="rank").flops_per_token()
    assert flops == 6 * (16 + 4) + 3 * 4
    projected = LowRankKeys(2, 8, rank=2, norm_over="rank", keys="projected").flops_per_token()
    assert projected == flops + 3 * 2 * 2 * 8
    assert LowRankKeys(2, 8, rank=2).flops_per_token() == AttnRes(2, 8).flops_per_token()


@pytest.mark.parametrize(
    ("scheme", "options", "key", "allowed"),
    [
        (LowRankKeys, {"rank": 0}, "rank", "from 1 to the width, 8, or null"),
        (LowRankKeys, {"rank": 9}, "rank", "from 1 to the width, 8, or null"),
        (LowRankKeys, {"rank": 2.5}, "rank", "whole number"),
        (LowRankKeys, {"keys": "cut"}, "keys", "sliced, projected, projected_per_read"),
        (LowRankKeys, {"norm_over": "heads"}, "norm_over", "width, rank"),
        (LowRankKeys, {"heads": 2}, "heads", "1 with low-rank keys"),
        (LowRankKeys, {"query": "mixed_state"}, "query", "learned"),
        (LowRankKeys, {"norm_over": "rank", "act": "sigmoid"}, "act", "softmax"),
        (RecencyBias, {"bias": "alibi"}, "bias", "distance, latest, slope"),
        (RecencyBias, {"bias": "slope"}, "slope", "positive"),
        (RecencyBias, {"bias": "slope", "slope": 0}, "slope", "positive"),
        (RecencyBias, {"bias": "slope", "slope": True}, "slope", "positive"),
        (RecencyBias, {"slope": 1.0}, "slope", "null unless"),
        (RecencyBias, {"act": "sigmoid_normalized"}, "act", "softmax"),
        (TopK, {"top_k": 1}, "top_k", "from 2 to 7"),
        (TopK, {"top_k": 8}, "top_k", "from 2 to 7"),  # the output read of L = 6 sees 7 sources
        (TopK, {"top_k": 4, "block_size": 3}, "top_k", "from 2 to 3"),
        (TopK, {"top_k": True}, "top_k", "whole number"),
        (TopK, {"top_k": 2, "act": "sigmoid"}, "act", "softmax"),
        (Sparsemax, {"act": "sigmoid"}, "act", "softmax"),
        (Entmax, {"act": "sigmoid"}, "act", "softmax"),
    ],
    ids=str,
)
def test_bad_options_are_one_line(scheme: Scheme, options: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(6, 8, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert allowed in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_read_of_another_package_gives_no_logits() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.backend"):
        Sparsemax(6, 8, backend="fla")
    assert LowRankKeys(6, 8, backend="fla").execution == "per_read"  # its queries are folded
