"""Logits of sources against queries that differ from token to token, held to the definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro.ops import Norm
from repro.ops.reference import keys
from repro.ops.token_scores import token_scores
from tests.toy import normal, sources_of

NORMS = [Norm(), Norm(1, 0), Norm(3, 1), Norm(3, 3), Norm(2, 0)]


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("reads", [1, 4])
def test_logits_are_products_with_keys(norm: Norm, reads: int) -> None:
    sources, queries = sources_of(5, 2, 3, 6), normal("queries", 2, 3, reads, 6)
    options: dict[str, Any] = {"key_norm": norm.groups > 0, "head_norm": norm.groups > 1}
    found = token_scores(sources, queries, norm)
    assert len(found) == 5
    for source, logits in zip(sources, found, strict=True):
        key = keys(source, heads=norm.heads, eps=norm.eps, **options).unsqueeze(-3)  # [2, 3, 1, H, 6 / H]
        expected = (key * queries.unflatten(-1, (norm.heads, -1))).sum(-1)
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm", NORMS, ids=str)
@pytest.mark.parametrize("reads", [1, 2])
def test_gradcheck(norm: Norm, reads: int) -> None:
    def run(queries: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        return token_scores(sources, queries, norm)

    queries = normal("queries", 2, reads, 6).requires_grad_()
    assert torch.autograd.gradcheck(run, (queries, *sources_of(3, 2, 6)))


def test_bfloat16_is_scored_in_float32() -> None:
    sources = [normal(f"source {i}", 2, 4, dtype=torch.bfloat16) for i in range(3)]
    queries = normal("queries", 2, 2, 4, dtype=torch.bfloat16)
    found = token_scores(sources, queries, Norm())
    expected = token_scores([s.float() for s in sources], queries.float(), Norm())
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
