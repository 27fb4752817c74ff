"""Every literal of the gold file, for both backends and all three executions, in float64 and float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from tests.gold import CANCELLING, MIXES, TOLERANCES, WALKS, cancelled_size, error, set_read, walk
from tests.toy import default_dtype

BACKENDS = ("reference", "eager")
EXECUTIONS = ("per_read", "score_on_write", "two_phase")
WALK_IDS = [f"L{w['L']}_S{w['block_size']}" for w in WALKS]


def check(case: dict[str, Any], tolerance: float, **values: Tensor) -> None:
    """Relative errors, except the two gradients of the two cases in which they cancel."""
    sizes = {}
    if case["name"] in CANCELLING:
        sizes = dict(zip(("grad_query", "grad_key_weight"), cancelled_size(case), strict=True))
    errors = {name: error(value, case[name], sizes.get(name, 0.0)) for name, value in values.items()}
    assert max(errors.values()) < tolerance, errors


def test_the_file_holds_what_it_should() -> None:
    assert len(MIXES) == 26
    assert len(WALKS) == 6


def test_what_cancels_in_the_two_cases_is_all_but_nothing() -> None:
    """Both are below 1e-4 of their terms there, and elsewhere above a fiftieth (or exactly zero)."""
    for case in MIXES:
        for size, name in zip(cancelled_size(case), ("grad_query", "grad_key_weight"), strict=True):
            largest = max(abs(x) for x in case[name])
            if case["name"] in CANCELLING:
                assert 0 < largest < 1e-4 * size
            else:
                assert largest == 0 or largest > size / 50


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", MIXES, ids=lambda case: case["name"])
def test_mix(case: dict[str, Any], dtype: torch.dtype, backend: str) -> None:
    sources = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in case["sources"]]
    query, gain, upstream = (
        torch.tensor(case[name], dtype=dtype, requires_grad=name != "upstream")
        for name in ("query", "key_weight", "upstream")
    )
    mixed, weights = ops.depth_mix(
        sources,
        query,
        key_weight=gain,
        key_norm=case["key_norm"],
        act=case["act"],
        heads=case["heads"],
        eps=case["eps"],
        backend=backend,
    )
    mixed.backward(upstream)
    assert mixed.dtype == weights.dtype == dtype
    check(
        case,
        TOLERANCES[dtype],
        mixed=mixed,
        weights=weights.T,
        grad_sources=torch.stack([source.grad for source in sources]),
        grad_query=query.grad,
        grad_key_weight=gain.grad,
    )


@pytest.mark.parametrize("place", ["inner", "output"])
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", MIXES, ids=lambda case: case["name"])
def test_mix_as_a_read_of_full(case: dict[str, Any], dtype: torch.dtype, execution: str, place: str) -> None:
    """The mix of n sources is read n - 1 of Full, either inside a deeper network or as its output read."""
    num_sources, width = len(case["sources"]), len(case["query"])
    if place == "output" and num_sources == 1:
        pytest.skip("an output read has two sources at least")
    read = num_sources - 1
    sources = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in case["sources"]]
    query, gain, upstream = (
        torch.tensor(case[name], dtype=dtype) for name in ("query", "key_weight", "upstream")
    )
    with default_dtype(dtype):
        mixer = AttnRes(
            num_sources + 1 if place == "inner" else read,
            width,
            key_norm=case["key_norm"],
            act=case["act"],
            heads=case["heads"],
            eps=case["eps"],
            execution=execution,
        )
    recorded: dict[int, Tensor] = {}
    mixer.tap = recorded.__setitem__
    set_read(mixer, read, query, gain)
    more = [torch.ones(width, dtype=dtype)] * (mixer.num_sublayers + 1 - num_sources)
    mixed = walk(mixer, sources[0], [*sources[1:], *more])[read]
    mixed.backward(upstream)
    grad = mixer.queries.grad
    grad_query = torch.zeros_like(query) if grad is None else grad[read]
    if mixer.key_gains is None:  # the gain sits in the query: the chain rule gives both
        grad_query, grad_gain = grad_query * gain, grad_query * query
    else:
        grad_gain = torch.zeros_like(gain) if grad is None else mixer.key_gains.grad[read]
    check(
        case,
        TOLERANCES[dtype],
        mixed=mixed,
        weights=recorded[read].T,
        grad_sources=torch.stack([source.grad for source in sources]),
        grad_query=grad_query,
        grad_key_weight=grad_gain,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("case", WALKS, ids=WALK_IDS)
def test_block_walk(case: dict[str, Any], dtype: torch.dtype, execution: str, backend: str) -> None:
    embedding, *outputs = (
        torch.tensor(x, dtype=dtype) for x in (case["embedding"], *case["sublayer_outputs"])
    )
    with default_dtype(dtype):
        mixer = AttnRes(
            case["L"],
            len(embedding),
            block_size=case["block_size"],
            eps=case["eps"],
            execution=execution,
            backend=backend,
        )
    for l, (query, gain) in enumerate(zip(case["queries"], case["key_weights"], strict=True)):
        set_read(mixer, l, torch.tensor(query, dtype=dtype), torch.tensor(gain, dtype=dtype))
    recorded: dict[int, Tensor] = {}
    mixer.tap = recorded.__setitem__
    reads = walk(mixer, embedding, outputs)
    for l, literal in enumerate([*case["reads"], case["output_read"]]):
        assert error(reads[l], literal) < TOLERANCES[dtype], f"read {l}"
    for l, literal in enumerate(case["source_sets"]):
        assert mixer.source_labels(l) == literal["sources"]
        assert error(recorded[l][:, 0], literal["weights"]) < TOLERANCES[dtype], f"weights of read {l}"
