"""Scores and mixes in Triton as operators of torch: schemas, shapes for tracing, whole graphs, counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("triton")

from repro.ops import triton as kernels
from tests.kernels import DEVICE
from tests.toy import normal

OPS = torch.ops.attnres


def tensor(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return normal(name, *shape, dtype=dtype).to(DEVICE)


def well_formed(operator: Any, *arguments: Any) -> Any:
    found = torch.library.opcheck(operator.default, arguments)
    assert set(found.values()) == {"SUCCESS"}
    return operator(*arguments)


@pytest.mark.parametrize(("added", "groups"), [(False, 0), (True, 1), (True, 2)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_scores_are_well_formed_operators(dtype: torch.dtype, added: bool, groups: int) -> None:
    source, addend = (tensor(name, 2, 3, 8, dtype=dtype) for name in "sa")
    queries = tensor("queries", 5, 8)
    z, inverse, total = well_formed(OPS.score, source, addend if added else None, queries, 2, groups, 1e-6)
    scored, grad_in = (total, addend) if added else (source, None)
    well_formed(OPS.score_backward, z, grad_in, scored, queries, z, inverse, 2, groups)


@pytest.mark.parametrize(("act", "on_prior"), [("softmax", False), ("softmax", True), ("linear", True)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_mixes_are_well_formed_operators(dtype: torch.dtype, act: str, on_prior: bool) -> None:
    sources = [tensor(f"source {i}", 2, 3, 8, dtype=dtype) for i in range(3)]
    z, lse = tensor("z", 3, 2, 3, 2, 2), tensor("lse", 2, 3, 2, 2)
    prior = (sources[:2], lse) if on_prior else ([], None)
    outputs, lse = well_formed(OPS.mix, sources, z, *prior, act, torch.float32)
    whole = (lse, lse, [True, False], [None, outputs[1] if on_prior else None], prior[1])
    well_formed(OPS.mix_backward, sources[:2], *whole, lse, sources, z, act, [None, sources[0], None])


def test_a_graph_stays_whole_around_them() -> None:
    """Traced by torch.compile without a break, with the numbers of the eager call."""

    def two_phases(history: list[Tensor], queries: Tensor) -> Tensor:
        z = torch.stack([kernels.score_forward(v, None, queries, 1, 1, 1e-6)[0] for v in history])
        outputs, lse = kernels.mix_forward(history, z, [], None, "softmax", None)
        return sum(outputs) + lse.sum()  # type: ignore[return-value]

    history, queries = [tensor(f"source {i}", 3, 8) for i in range(3)], tensor("queries", 2, 8)
    whole = torch.compile(two_phases, fullgraph=True, backend="aot_eager")
    assert torch.equal(whole(history, queries), two_phases(history, queries))


def test_operations_are_counted() -> None:
    """48 channels in all. By hand: 2 for each multiply-add of a channel, 1 for each addition."""
    sources = [tensor(f"source {i}", 2, 3, 8) for i in range(3)]
    z, lse, queries = tensor("z", 3, 2, 3, 2, 2), tensor("lse", 2, 3, 2, 2), tensor("queries", 5, 8)

    def counted(operator: Any, *arguments: Any) -> float:
        with FlopCounterMode(display=False) as counter:
            operator(*arguments)
        return counter.get_total_flops() / 48

    # Five queries; squares; the sum with the addend.
    assert counted(OPS.score, sources[0], sources[1], queries, 2, 1, 1e-6) == 2 * 5 + 2 + 1
    assert counted(OPS.score, sources[0], None, queries, 2, 0, 1e-6) == 2 * 5
    scored = OPS.score(sources[0], None, queries, 2, 1, 1e-6)
    saved = (sources[0], queries, *scored[:2], 2, 1)
    # Each query twice (its own gradient and the source's); the norm; the gradient that is added.
    assert counted(OPS.score_backward, scored[0], sources[1], *saved) == 2 * 2 * 5 + 2 + 1
    # Two queries of three sources, and of a prior each.
    assert counted(OPS.mix, sources, z, sources[:2], lse, "softmax", None) == 2 * 2 * (3 + 1)
    # Products and weighted gradients; one prior for a delta; one gradient that is added.
    whole = (lse, lse, [True, False], [None, sources[0]], lse)
    added = [None, sources[0], None]
    count = counted(OPS.mix_backward, sources[:2], *whole, None, sources, z, "softmax", added)
    assert count == 2 * 2 * 2 * 3 + 2 + 1
