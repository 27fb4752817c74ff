"""Reads cut into phases: values and gradients are those of the whole read, at no more memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro import ops
from repro.ops import eager_mix
from tests.cuts import Cut, Node, by_definition, by_phases, cuts, gradients, loss_of, upstream, with_gradients
from tests.toy import error, normal, sources_of

BACKENDS = ("reference", "eager")


def wide(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf.detach().double().requires_grad_() for name, leaf in leaves.items()}


def equal(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """By the largest element; a gradient of the queries may cancel to nothing and is then held to one."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        size = max(value.abs().max().item(), 1.0 if name == "gradient of queries" else 1e-3)
        assert (found[name] - value).abs().max().item() <= tolerance * size, name


# Any cut is the whole read

LEADING = st.sampled_from([(), (3,), (2, 3)])
#: From how many products on a mix is batched: nearly all mixes here, or those that are in earnest.
BATCHED_FROM = st.sampled_from([2, 12])


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=60, deadline=None)
@given(cut=cuts(), leading=LEADING, sharpness=st.sampled_from([0.0, 1.0, 20.0]), batched=BATCHED_FROM)
def test_any_cut_is_the_whole_read(
    backend: str, cut: Cut, leading: tuple[int, ...], sharpness: float, batched: int
) -> None:
    leaves = cut.leaves(8, leading, torch.float64, sharpness)
    with patch.object(eager_mix, "BATCHED_FROM", batched):
        found = with_gradients(cut, by_phases(cut, leaves, backend), leaves)
    equal(found, with_gradients(cut, by_definition(cut, leaves), leaves), 1e-11)


@settings(max_examples=60, deadline=None)
@given(cut=cuts(), leading=LEADING, sharpness=st.sampled_from([0.0, 0.3]), batched=BATCHED_FROM)
def test_any_cut_in_float32(cut: Cut, leading: tuple[int, ...], sharpness: float, batched: int) -> None:
    leaves = cut.leaves(8, leading, torch.float32, sharpness)
    with patch.object(eager_mix, "BATCHED_FROM", batched):
        found = with_gradients(cut, by_phases(cut, leaves), leaves)
    assert {value.dtype for value in found.values()} == {torch.float32}
    exact = wide(leaves)
    equal(found, with_gradients(cut, by_definition(cut, exact), exact), 1e-5)


#: Three reads: one ends at once, one merges after a second mix, one after a third; two partial sums.
THREE = Cut(
    Node(
        (0, 2),
        {0: "ends", 1: "goes on", 2: "goes on"},
        (Node((2, 5), {1: "merges", 2: "goes on"}, (Node((5, 6), {2: "merges"}),)),),
    ),
    heads=2,
    addends=frozenset({1, 4}),
    partials=frozenset({2}),
)


@pytest.mark.parametrize("act", ["softmax", "sigmoid", "normalised"])
def test_sources_may_be_used_as_returned_or_as_they_were(act: str) -> None:
    """Only the order of sums of gradients differs."""
    leaves = THREE.leaves(8, (2, 3), torch.float64)
    threaded, original = (
        with_gradients(cut, by_phases(cut, leaves), leaves)
        for cut in (replace(THREE, act=act), replace(THREE, act=act, threaded=False))
    )
    equal(threaded, original, 1e-13)


#: As short as a graph with every operation can be, since tracing takes a second an operation.
TWO = Cut(
    Node((0, 1), {0: "goes on", 1: "goes on"}, (Node((1, 2), {0: "merges", 1: "ends"}),)),
    partials=frozenset({0}),
)
SOME_LOST = replace(TWO, lost=frozenset({"read 0", "source 1"}))


@pytest.mark.filterwarnings("ignore")
def test_traced_whole_by_torch_compile() -> None:
    """Also where a later loss does not use all that the graph returns: its gradients are zeros then."""
    leaves = TWO.leaves(8, (2, 3), torch.float64)
    torch._dynamo.reset()
    found = torch.compile(lambda x: by_phases(TWO, x), backend="aot_eager", fullgraph=True)(leaves)
    for cut in (SOME_LOST, TWO):
        loss = loss_of(found, upstream(cut, leaves["source 0"]))
        grads = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        traced = found | {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}
        equal(traced, with_gradients(cut, by_definition(cut, leaves), leaves), 1e-11)


@pytest.mark.filterwarnings("ignore")
def test_traced_whole_with_its_loss() -> None:
    """What the loss does not use never leaves the graph."""
    leaves = SOME_LOST.leaves(8, (2, 3), torch.float64)
    grads = upstream(SOME_LOST, leaves["source 0"])
    torch._dynamo.reset()
    run = torch.compile(
        lambda x: loss_of(by_phases(SOME_LOST, x), grads), backend="aot_eager", fullgraph=True
    )
    found, expected = run(leaves), loss_of(by_definition(SOME_LOST, leaves), grads)
    assert error(found, expected) < 1e-11
    equal(gradients(found, leaves), gradients(expected, leaves), 1e-11)


# Histories that are results


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("on_prior", [False, True])
def test_gradcheck_of_plain_histories(on_prior: bool, heads: int) -> None:
    """Mixes and their lse, of two reads that end in a mix whose third is merged."""
    sources = sources_of(3, 2, 4)
    logits = sources_of(3, 2, 3, heads, name="logit")
    output, query = normal("output", 2, 4).requires_grad_(), normal("query", 4).requires_grad_()

    def run(output: Tensor, query: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        sources, logits = tensors[:3], tensors[3:]
        priors: list[ops.History] = []
        if on_prior:
            priors, _ = ops.mix(sources[:2], logits[:2], continued=[True] * 3, backend="eager")
            sources, logits = sources[2:], logits[2:]
        (a, b, c), _ = ops.mix(sources, logits, priors, continued=[False, False, True], backend="eager")
        read, _ = ops.merge(c, None, output, query, ops.Norm(heads, 1, 1e-6), backend="eager")
        return a.mixed, a.lse, b.mixed, b.lse, read

    assert torch.autograd.gradcheck(run, (output, query, *sources, *logits))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prior_must_have_been_mixed_to_be_continued(backend: str) -> None:
    """Its gradient would be that of a result, and the later phase's would be wrong."""
    source, logit = normal("source", 3, 4), normal("logit", 3, 2, 1)
    (plain, prior), _ = ops.mix([source], [logit], continued=[False, True], backend=backend)
    with pytest.raises(ValueError, match="continued"):
        ops.mix([source], [logit], [prior, plain], backend=backend)
    with pytest.raises(ValueError, match="continued"):
        ops.merge(plain, None, source, normal("query", 4), backend=backend)
    ops.merge(prior, None, source, normal("query", 4), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_source_is_the_read_and_its_logit_learns_nothing(backend: str, dtype: torch.dtype) -> None:
    source = normal("source", 3, 5, 8, dtype=dtype).requires_grad_()
    queries = normal("queries", 2, 8, dtype=torch.float32).requires_grad_()
    logits, passed = ops.score(source, queries, ops.Norm(heads=2), backend=backend)
    histories, _ = ops.mix([passed], [logits], backend=backend)
    upstream = [normal(f"upstream {q}", 3, 5, 8, dtype=dtype) for q in range(2)]
    for history in histories:
        assert torch.equal(history.mixed.to(dtype), source)
    torch.autograd.backward([h.mixed.to(dtype) for h in histories], upstream)
    assert queries.grad is not None
    assert not queries.grad.any()
    assert source.grad is not None
    assert error(source.grad, upstream[0] + upstream[1]) < 2 * torch.finfo(dtype).eps


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_read_that_nobody_uses_sends_nothing_however_large_its_logits(compiled: bool) -> None:
    """exp(200) overflows in float32; times a gradient of zero it would be no number."""

    def run(source: Tensor, other: Tensor, logits: Tensor) -> list[ops.History]:
        return ops.mix([source, other], list(logits), continued=[True, True], backend="eager")[0]

    if compiled:
        torch._dynamo.reset()
    source, other = sources_of(2, 3, 4, dtype=torch.float32)
    logits = (200 + normal("logits", 2, 3, 2, 1, dtype=torch.float32)).requires_grad_()
    used, lost = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(
        source, other, logits
    )
    output, query = normal("output", 3, 4, dtype=torch.float32), normal("query", 4, dtype=torch.float32)
    reads = [ops.merge(history, None, output, query, backend="eager")[0] for history in (used, lost)]
    grads = torch.autograd.grad(reads[0].sum(), (source, other, logits))
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[2][..., 1, :].any()


# Sharp reads of rounded numbers

SHARP_WIDTH, SHARP_TOKENS = 64, 32


def _sharp(dtype: torch.dtype) -> tuple[list[Tensor], Tensor, Tensor]:
    """Four sources, the first of weight 0.999 or so, query, and the gradient of the read."""
    direction = normal("direction", SHARP_WIDTH)
    sources = [normal(f"sharp {i}", SHARP_TOKENS, SHARP_WIDTH) for i in range(4)]
    sources[0] = 0.1 * sources[0] + direction
    query = 0.145 * direction
    upstream = normal("upstream", SHARP_TOKENS, SHARP_WIDTH)
    return [source.to(dtype) for source in sources], query.float(), upstream.to(dtype)


def _one_mix(sources: list[Tensor], query: Tensor, scored: list[Tensor]) -> Tensor:
    (history,), _ = ops.mix(sources, scored, dtype=sources[0].dtype, backend="eager")
    return history.mixed


def _two_mixes(sources: list[Tensor], query: Tensor, scored: list[Tensor]) -> Tensor:
    prior, _ = ops.mix(sources[:2], scored[:2], continued=[True], backend="eager")
    (history,), _ = ops.mix(sources[2:], scored[2:], prior, dtype=sources[0].dtype, backend="eager")
    return history.mixed


def _merge(sources: list[Tensor], query: Tensor, scored: list[Tensor]) -> Tensor:
    (prior,), _ = ops.mix(sources[:3], scored[:3], continued=[True], backend="eager")
    return ops.merge(prior, None, sources[3], query, backend="eager")[0]


def _merge_of_the_sharp_source(sources: list[Tensor], query: Tensor, scored: list[Tensor]) -> Tensor:
    return _merge(sources[::-1], query, scored[::-1])


@pytest.mark.parametrize("read", [_one_mix, _two_mixes, _merge, _merge_of_the_sharp_source])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_query_of_a_sharp_read_learns_through_rounded_storage(
    dtype: torch.dtype, read: Callable[..., Tensor]
) -> None:
    """delta = g . h of the rounded h would be off by as much as the products that it is subtracted from."""
    sources, query, upstream = _sharp(dtype)
    values, g = torch.stack(sources).double(), upstream.double()
    keys = values / (values.square().mean(-1, keepdim=True) + 1e-8).sqrt()
    weights = torch.softmax(keys @ query.double(), 0)
    assert 0.998 < weights[0].mean() < 0.9999
    products = (values * g).sum(-1)
    mixed = (weights.unsqueeze(-1) * values).sum(0)

    def of_query(delta: Tensor) -> Tensor:
        return torch.einsum("st,std->d", weights * (products - delta), keys)

    exact = of_query((g * mixed).sum(-1))
    naive = error(of_query((g * mixed.to(dtype).double()).sum(-1)), exact)

    query.requires_grad_()
    logits = [ops.score(source, query.unsqueeze(0), backend="eager")[0] for source in sources]
    result = read(sources, query, logits)
    assert result.dtype == dtype
    (grad,) = torch.autograd.grad(result, query, upstream)
    tolerance = 1e-3
    assert error(grad.double(), exact) < tolerance
    assert naive > 10 * tolerance


# What is kept for the backward pass


def _kept(run: Callable[[], Any]) -> tuple[Any, list[Tensor]]:
    """What a call returns, and the tensors of at least a source's size that it saves."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    return result, [tensor for tensor in saved if tensor.numel() >= TOKENS * KEPT_WIDTH]


TOKENS, KEPT_WIDTH = 10, 64


def _places(tensors: list[Tensor]) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("reads", [1, 3])
def test_kept_are_sources_and_scalars(reads: int, dtype: torch.dtype) -> None:
    """No stack, no wide copy, no product; and of a merge one tensor beside the partial sum."""
    sources = sources_of(6, TOKENS, KEPT_WIDTH, dtype=dtype)
    queries = normal("queries", reads, KEPT_WIDTH, dtype=torch.float32).requires_grad_()
    query = queries[0]
    logits = []
    for source in sources[:5]:
        (z, _), kept = _kept(partial(ops.score, source, queries, backend="eager"))
        assert _places(kept) == {source.data_ptr()}
        logits.append(z)
    (z, total), kept = _kept(lambda: ops.score(sources[5], queries, addend=sources[0], backend="eager"))
    assert _places(kept) == _places([total])

    (first, _), kept = _kept(
        lambda: ops.mix(sources[:3], logits[:3], continued=[True] * reads, backend="eager")
    )
    assert _places(kept) == _places(sources[:3])
    (second, _), kept = _kept(
        lambda: ops.mix(
            [*sources[3:5], total], [*logits[3:], z], first, continued=[True] * reads, backend="eager"
        )
    )
    assert _places(kept) == _places([*sources[3:5], total])

    prior = second[0]
    (read, total), kept = _kept(lambda: ops.merge(prior, sources[0], sources[1], query, backend="eager"))
    # delta comes from the read where it was not rounded; only then the prior need not stay.
    assert _places(kept) == _places([total, read if dtype == torch.float32 else prior.mixed])


def test_gradients_of_a_history_in_any_layout() -> None:
    """Returned sources used transposed: their gradients are no slots of one stack, nor rows in order."""
    source = normal("source", 3, 4, 8).requires_grad_()
    logits = normal("logits", 3, 4, 9, 1).requires_grad_()
    results = []
    for plain in (False, True):
        reads, (passed,) = ops.mix([source], [logits], backend="reference" if plain else "eager")
        loss = (passed.transpose(0, 1) * normal("w", 4, 3, 8)).sum() + reads[2].mixed.sin().sum()
        results.append(torch.autograd.grad(loss, (source, logits)))
    for found, expected in zip(*results, strict=True):
        assert (found - expected).abs().max() < 1e-12
