"""Operations on lists of sources where numbers are narrow, extreme or not numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from repro import ops
from tests.toy import close, normal, sources_of

BACKENDS = ("reference", "eager")
ACTS = ("softmax", "sigmoid", "sigmoid_normalized")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_narrow_sources_are_computed_in_float32_with_one_cast_at_the_end(
    dtype: torch.dtype, backend: str
) -> None:
    """Equal to the float32 result of the same (rounded) numbers, rounded once."""
    sources = sources_of(9, 2, 3, 16, dtype=dtype)
    query = normal("query", 16, dtype=torch.float32).requires_grad_()
    mixed, weights = ops.depth_mix(sources, query, backend=backend)
    wide, wide_weights = ops.depth_mix([x.detach().float() for x in sources], query, backend="reference")
    assert mixed.dtype == dtype
    assert weights.dtype == torch.float32
    assert close(weights, wide_weights, 1e-6)
    assert (mixed.float() - wide).abs().max() <= torch.finfo(dtype).eps * wide.abs().max()
    mixed.float().sum().backward()
    assert sources[0].grad.dtype == dtype
    assert query.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_changes_nothing(backend: str) -> None:
    """Forward and backward under bfloat16 autocast are bit-equal to those without it."""
    sources = sources_of(5, 2, 3, 16, dtype=torch.float32)
    query = normal("query", 16, dtype=torch.float32).requires_grad_()
    queries = normal("queries", 3, 16, dtype=torch.float32).requires_grad_()

    def run() -> list[Tensor]:
        mixed, weights = ops.depth_mix(sources, query, heads=2, backend=backend)
        a = ops.attend_with_stats(sources[:3], queries, backend=backend)
        merged = ops.merge_stats(a, ops.attend_with_stats(sources[3:], queries, backend=backend))
        read = ops.normalise_stats(merged)
        loss = mixed.sin().sum() + read.cos().sum()
        return [mixed, weights, *merged, *torch.autograd.grad(loss, [*sources, query, queries])]

    plain = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run()
    for a, b in zip(cast, plain, strict=True):
        assert a.dtype == b.dtype
        if backend == "eager":
            assert torch.equal(a, b)
        else:  # autograd's own backward runs under autocast here
            assert close(a, b, 1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("where", ["source", "query", "key_weight"])
def test_nan_is_never_silent(where: str, act: str, backend: str) -> None:
    """Not even with one source, or with a weight that has underflowed to zero."""
    for num_sources in (1, 3):
        sources = [normal(f"source {i}", 2, 4) for i in range(num_sources)]
        query, gain = normal("query", 4), torch.ones(4, dtype=torch.float64)
        sources[0] *= -1e4 * torch.sign((sources[0] * query).sum(-1, keepdim=True))
        target = {"source": sources[-1], "query": query, "key_weight": gain}[where]
        target[..., 1] = torch.nan
        mixed, weights = ops.depth_mix(sources, query, key_weight=gain, act=act, backend=backend)
        assert mixed.isnan().all(-1).all() or (num_sources == 1 and mixed.isnan().any(-1).all())
        assert weights.isnan().any(0).all()
        stats = ops.attend_with_stats(sources, query[None], key_weight=gain[None], backend=backend)
        assert all(part.isnan().any() for part in stats)


def test_sharp_logits_stay_finite() -> None:
    """Logits of thousands: exact one-hot weights, no overflow, zero gradient of the query."""
    sources = [torch.eye(4)[i].requires_grad_() for i in range(3)]
    query = torch.tensor([0.0, 5000.0, 0.0, 0.0], requires_grad=True)
    mixed, weights = ops.depth_mix(sources, query)
    assert weights[:, 0].tolist() == [0.0, 1.0, 0.0]
    assert mixed.tolist() == [0.0, 1.0, 0.0, 0.0]
    mixed.sum().backward()
    assert query.grad.tolist() == [0.0] * 4
