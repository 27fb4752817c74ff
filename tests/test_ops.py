"""Operations on lists of sources: gradients, statistics, shapes, and tracing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro import ops
from tests.toy import close, normal, sources_of

BACKENDS = ("reference", "eager")
ACTS = ("softmax", "sigmoid", "sigmoid_normalized")

OPTIONS = [
    {"act": act, "key_norm": key_norm, "heads": heads, "head_norm": head_norm}
    for act in ACTS
    for key_norm, heads, head_norm in ((True, 1, False), (False, 1, False), (True, 2, False), (True, 2, True))
]


# Gradients


@pytest.mark.parametrize("per_token", [False, True], ids=["learned", "per_token"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradcheck_of_a_mix(options: dict[str, Any], per_token: bool) -> None:
    """Both outputs, the weights included, against finite differences."""
    sources = sources_of(3, 2, 4)
    query = normal("query", *((2, 4) if per_token else (4,))).requires_grad_()
    gain = normal("gain", 4).requires_grad_()

    def run(query: Tensor, gain: Tensor, *sources: Tensor) -> tuple[Tensor, Tensor]:
        return ops.depth_mix(sources, query, key_weight=gain, eps=1e-6, backend="eager", **options)

    assert torch.autograd.gradcheck(run, (query, gain, *sources))


@pytest.mark.parametrize("options", OPTIONS[:4], ids=str)
def test_gradcheck_through_merged_statistics(options: dict[str, Any]) -> None:
    """Through numerator, maximum and scaled sum of both halves and of their merge."""
    options = {name: value for name, value in options.items() if name != "act"}
    sources = sources_of(3, 2, 4)
    queries, gains = normal("queries", 2, 4).requires_grad_(), normal("gains", 2, 4).requires_grad_()

    def run(queries: Tensor, gains: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        a = ops.attend_with_stats(sources[:2], queries, key_weight=gains, backend="eager", **options)
        b = ops.attend_with_stats(sources[2:], queries, key_weight=gains, backend="eager", **options)
        return (*a, *b, *ops.merge_stats(a, b))

    assert torch.autograd.gradcheck(run, (queries, gains, *sources))


@pytest.mark.parametrize("act", ["softmax", "sigmoid", "linear"])
@pytest.mark.parametrize(("num_queries", "heads"), [(1, 1), (3, 1), (1, 2), (3, 2)])
def test_gradcheck_of_a_mix_by_given_logits(act: str, num_queries: int, heads: int) -> None:
    sources = sources_of(3, 2, 4)
    logits = sources_of(3, 2, num_queries, heads, name="logit")

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        histories, _ = ops.mix(tensors[:3], tensors[3:], act=act, backend="eager")
        parts = [(h.mixed, h.lse) if act == "softmax" else (h.mixed,) for h in histories]
        return tuple(part for pair in parts for part in pair)

    assert torch.autograd.gradcheck(run, (*sources, *logits))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("act", ["softmax", "sigmoid_normalized"])
def test_one_source_is_the_output_and_the_query_learns_nothing(backend: str, act: str) -> None:
    source = normal("source", 3, 5, 8, dtype=torch.float32).requires_grad_()
    query = normal("query", 8, dtype=torch.float32).requires_grad_()
    gain = normal("gain", 8, dtype=torch.float32).requires_grad_()
    mixed, weights = ops.depth_mix([source], query, key_weight=gain, act=act, heads=2, backend=backend)
    assert torch.equal(mixed, source)
    assert torch.equal(weights, torch.ones(1, 2, 3, 5))
    mixed.backward(normal("upstream", 3, 5, 8, dtype=torch.float32))
    if backend == "eager" or act == "softmax":  # autograd of a / a may leave a rounding error
        assert not query.grad.any()
        assert not gain.grad.any()
        assert torch.equal(source.grad, normal("upstream", 3, 5, 8, dtype=torch.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_at_a_zero_query_the_mean_comes_out_and_the_gain_learns_nothing(backend: str) -> None:
    sources = sources_of(5, 2, 3, 8, dtype=torch.float32)
    gain = normal("gain", 8, dtype=torch.float32).requires_grad_()
    query = torch.zeros(8, requires_grad=True)
    mixed, _ = ops.depth_mix(sources, query, key_weight=gain, backend=backend)
    assert (mixed - sum(sources) / 5).abs().max() < 1e-6
    mixed.square().sum().backward()
    assert not gain.grad.any()
    assert query.grad.abs().min() > 0


def test_a_source_listed_twice_counts_twice() -> None:
    """Aliases are ordinary sources, and each place in the list sends its own gradient."""
    a, b = sources_of(2, 3, 4)
    query = normal("query", 4).requires_grad_()
    grads = []
    for backend in BACKENDS:
        mixed, weights = ops.depth_mix([a, b, a], query, backend=backend)
        grads.append((mixed, weights, *torch.autograd.grad(mixed.sin().sum(), (a, b, query))))
        assert torch.equal(weights[0], weights[2])
    for x, y in zip(*grads, strict=True):
        assert close(x, y, 1e-12)


def test_any_strides() -> None:
    """Transposed, sliced, reversed-in-memory and expanded sources give what their contiguous copies give."""
    base = normal("base", 4, 6, 3)
    strided = [
        base.permute(2, 0, 1)[..., ::2],
        base.permute(2, 1, 0)[:, 1:5, :3],
        normal("row", 3).expand(3, 4, 3),
    ]
    query = normal("query", 3)
    queries = normal("queries", 2, 3)
    results = []
    for copy in (False, True):
        leaves = [(x.contiguous() if copy else x).detach().requires_grad_() for x in strided]
        assert copy or not any(x.is_contiguous() for x in leaves)
        mixed, weights = ops.depth_mix(leaves, query)
        stats = ops.attend_with_stats(leaves, queries)
        loss = mixed.sin().sum() + stats.o.cos().sum() + stats.l.sum()
        results.append([mixed, weights, *stats, *torch.autograd.grad(loss, leaves)])
    for x, y in zip(*results, strict=True):
        assert close(x, y, 1e-13)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_any_leading_axes(leading: tuple[int, ...], backend: str) -> None:
    sources = sources_of(3, *leading, 4)
    mixed, weights = ops.depth_mix(sources, normal("query", 4), heads=2, backend=backend)
    assert mixed.shape == (*leading, 4)
    assert weights.shape == (3, 2, *leading)
    stats = ops.attend_with_stats(sources, normal("queries", 5, 4), heads=2, backend=backend)
    assert stats.o.shape == (5, *leading, 4)
    assert stats.m.shape == stats.l.shape == (5, 2, *leading)


def test_saved_for_backward_are_sources_and_scalars() -> None:
    """Nothing of the size of a stack, and no copy of a source, waits for the backward pass."""
    num_sources, width, tokens = 6, 64, 10
    sources = sources_of(num_sources, tokens, width)
    query, queries = normal("query", width).requires_grad_(), normal("queries", 3, width).requires_grad_()
    own = {source.data_ptr() for source in sources} | {query.data_ptr(), queries.data_ptr()}
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        ops.depth_mix(sources, query)
        ops.attend_with_stats(sources, queries)
    for tensor in saved:
        scalars = num_sources * tokens * 3  # per source, token and query
        assert tensor.data_ptr() in own or tensor.numel() <= scalars, tensor.shape


# Statistics


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num=st.integers(2, 7),
    cut=st.integers(1, 6),
    heads=st.sampled_from([1, 2, 4]),
    sharpness=st.sampled_from([0.0, 1.0, 200.0]),
)
def test_merged_statistics_are_those_of_the_union(
    seed: int, num: int, cut: int, heads: int, sharpness: float
) -> None:
    """o / l of a merge of any two halves is the softmax read over all sources, however sharp."""
    generator = torch.Generator().manual_seed(seed)
    sources = [torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(num)]
    queries = sharpness * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    cut = min(cut, num - 1)
    halves = [ops.attend_with_stats(part, queries, heads=heads) for part in (sources[:cut], sources[cut:])]
    merged = ops.normalise_stats(ops.merge_stats(*halves))
    swapped = ops.normalise_stats(ops.merge_stats(*halves[::-1]))
    for q in range(2):
        whole, _ = ops.depth_mix(sources, queries[q], heads=heads, backend="reference")
        assert close(merged[q], whole, 1e-12)
        assert close(swapped[q], whole, 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    num=st.integers(1, 5),
    heads=st.sampled_from([1, 2]),
    act=st.sampled_from(ACTS),
    key_norm=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_eager_is_the_reference(
    seed: int, num: int, heads: int, act: str, key_norm: bool, size: float
) -> None:
    """Values and gradients, and weights that are a distribution where they should be."""
    generator = torch.Generator().manual_seed(seed)
    sources = [
        (size * torch.randn(2, 4, generator=generator, dtype=torch.float64)).requires_grad_()
        for _ in range(num)
    ]
    query = (torch.randn(4, generator=generator, dtype=torch.float64) / size**0.5).requires_grad_()
    upstream = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    results = []
    for backend in BACKENDS:
        mixed, weights = ops.depth_mix(
            sources, query, key_norm=key_norm, act=act, heads=heads, backend=backend
        )
        results.append([mixed, weights, *torch.autograd.grad(mixed, [*sources, query], upstream)])
    *grads, grad_query = zip(*results, strict=True)
    for eager, reference in ((b, a) for a, b in grads):
        assert close(eager, reference, 1e-11)
    key_size = 1.0 if key_norm else size
    assert (grad_query[1] - grad_query[0]).abs().max() < 1e-11 * key_size * size  # may cancel to nothing
    if act != "sigmoid":
        assert (results[1][1].sum(0) - 1).abs().max() < 1e-14


def test_the_order_of_sources_does_not_matter() -> None:
    sources, query = sources_of(4, 3, 8), normal("query", 8)
    mixed, weights = ops.depth_mix(sources, query)
    turned, turned_weights = ops.depth_mix(sources[::-1], query)
    assert close(turned, mixed, 1e-14)
    assert close(turned_weights.flip(0), weights, 1e-14)


# Tracing, second order, no data


@pytest.mark.filterwarnings("ignore")
def test_under_torch_compile() -> None:
    """Same values and gradients when traced (graph breaks are allowed)."""
    sources, query = sources_of(3, 2, 4, dtype=torch.float32), normal("query", 4, dtype=torch.float32)
    queries = normal("queries", 2, 4, dtype=torch.float32).requires_grad_()
    query.requires_grad_()

    def run(query: Tensor, queries: Tensor, *sources: Tensor) -> Tensor:
        mixed, weights = ops.depth_mix(sources, query)
        stats = ops.attend_with_stats(sources, queries)
        scored = [ops.score(source, queries) for source in sources]
        reads, passed = ops.mix(
            [source for _, source in scored], [logits for logits, _ in scored], continued=[True, False]
        )
        merged, _ = ops.merge(reads[0], None, passed[0], queries[1])
        loss = mixed.sin().sum() + weights.square().sum() + ops.normalise_stats(stats).cos().sum()
        return loss + merged.sin().sum() + reads[1].mixed.sum()

    inputs = (query, queries, *sources)
    value = run(*inputs)
    plain = torch.autograd.grad(value, inputs)
    compiled = torch.compile(run, backend="aot_eager")(*inputs)
    assert close(compiled, value, 1e-6)
    for a, b in zip(torch.autograd.grad(compiled, inputs), plain, strict=True):
        assert close(a, b, 1e-5)


def test_second_order_gradients_are_refused() -> None:
    sources, query = sources_of(2, 3, 4), normal("query", 4).requires_grad_()
    mixed, _ = ops.depth_mix(sources, query)
    (grad,) = torch.autograd.grad(mixed.sin().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_shapes_without_data() -> None:
    """On the meta device, where autocast does not exist, and with no tokens at all."""
    for sources in ([torch.zeros(2, 3, 4, device="meta")] * 3, [torch.zeros(0, 3, 4)] * 3):
        query = torch.zeros(4, device=sources[0].device)
        mixed, weights = ops.depth_mix(sources, query, heads=2)
        stats = ops.attend_with_stats(sources, query.expand(5, 4))
        assert mixed.shape == sources[0].shape
        assert weights.shape == (3, 2, *sources[0].shape[:2])
        assert stats.o.shape == (5, *sources[0].shape)


def test_two_sources_are_one_graph_without_gradients() -> None:
    sources, query = [normal("a", 2, 4), normal("b", 2, 4)], normal("query", 4)
    with torch.no_grad():
        compiled = torch.compile(lambda *x: ops.depth_mix(x, query), backend="eager", fullgraph=True)
        for a, b in zip(compiled(*sources), ops.depth_mix(sources, query), strict=True):
            assert close(a, b, 1e-12)
