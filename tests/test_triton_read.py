"""One read in Triton: literals, random cases against float64, all gradients, with outputs poisoned by NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from repro.ops import reference
from repro.ops import triton as kernels
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward
from tests.gold import CANCELLING, MIXES, cancelled_size, error
from tests.kernels import DEVICE, DTYPES, TOLERANCES, deviation, poisoned, wide
from tests.toy import normal

__all__ = ["poisoned"]
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in lanes that are masked
]

ACTS = ("softmax", "sigmoid", "sigmoid_normalized")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", MIXES, ids=lambda case: case["name"])
def test_literals(case: dict[str, Any], dtype: torch.dtype) -> None:
    sources = [torch.tensor(x, dtype=dtype, device=DEVICE, requires_grad=True) for x in case["sources"]]
    query, gain, upstream = (
        torch.tensor(case[name], dtype=dtype, device=DEVICE, requires_grad=name != "upstream")
        for name in ("query", "key_weight", "upstream")
    )
    mixed, weights = kernels.depth_mix(
        sources,
        query,
        key_weight=gain,
        key_norm=case["key_norm"],
        act=case["act"],
        heads=case["heads"],
        eps=case["eps"],
    )
    mixed.backward(upstream)
    sizes = {}
    if case["name"] in CANCELLING:
        sizes = dict(zip(("grad_query", "grad_key_weight"), cancelled_size(case), strict=True))
    found = {
        "mixed": mixed,
        "weights": weights.T,
        "grad_sources": torch.stack([source.grad for source in sources if source.grad is not None]),
        "grad_query": query.grad,
        "grad_key_weight": gain.grad,
    }
    errors = {
        name: error(value.cpu(), case[name], sizes.get(name, 0.0))
        for name, value in found.items()
        if value is not None
    }
    assert len(errors) == 5
    assert max(errors.values()) < TOLERANCES[dtype], errors


# Random cases


class Case:
    """Sources of one drawn shape and layout, rounded to a dtype, and the read of them in float64."""

    def __init__(self, draw: dict[str, Any], dtype: torch.dtype) -> None:
        self.__dict__.update(draw)
        self.dtype = dtype
        lead, heads = tuple(draw["lead"]), draw["heads"]
        width = draw["channels"] * heads
        self.groups = {"none": 0, "width": 1, "head": heads}[draw["norm"]]
        name = str(sorted(draw.items()))
        self.sources = [
            lay_out(normal(f"{name} {i}", *lead, width).to(dtype).to(DEVICE), draw["layout"])
            for i in range(draw["num"])
        ]
        for i in draw["repeats"]:
            self.sources[i % draw["num"]] = self.sources[0]
        shape = (*lead, width) if draw["per_token"] else (width,)
        # Logits of order one: sharper weights leave differences of rounded terms only, in any arithmetic.
        size = width**-0.5 * (heads**0.5 if draw["norm"] == "head" else 1)
        self.query = (size * normal(f"{name} query", *shape)).to(wide(dtype)).to(DEVICE)
        self.upstream = normal(f"{name} upstream", *lead, width).to(dtype).to(DEVICE)
        scalars = (draw["num"], *lead, heads)
        self.grad_weights = None
        if draw["use_weights"]:
            self.grad_weights = normal(f"{name} weights", *scalars).to(wide(dtype)).to(DEVICE)

    def expected(self) -> tuple[Tensor, Tensor, list[Tensor], Tensor, float]:
        """mixed, weights [S, ..., H], gradients in float64, and the size of what the query's is a sum of."""
        sources = [source.cpu().double().requires_grad_() for source in self.sources]
        query = self.query.cpu().double().requires_grad_()
        mixed, weights = reference.depth_mix(
            sources,
            query,
            act=self.act,
            heads=self.heads,
            key_norm=self.groups > 0,
            head_norm=self.norm == "head",
            eps=1e-6,
        )
        weights = weights.movedim(1, -1)
        loss = (mixed * self.upstream.cpu().double()).sum()
        if self.grad_weights is not None:
            loss = loss + (weights * self.grad_weights.cpu().double()).sum()
        grads = torch.autograd.grad(loss, [query, *sources])
        return mixed, weights, list(grads[1:]), grads[0], self.terms(weights)

    def terms(self, weights: Tensor) -> float:
        """Largest entry of the sum of |weight| |g . v| |key|, of which the query's gradient is the rest."""
        total = torch.zeros(())
        for source, weight in zip(self.sources, weights.detach(), strict=True):
            value = source.cpu().double()
            options = {"key_norm": self.groups > 0, "heads": self.heads, "eps": 1e-6}
            key = reference.keys(value, head_norm=self.norm == "head", **options)
            product = (value * self.upstream.cpu().double()).unflatten(-1, (self.heads, -1)).sum(-1)
            total = total + ((weight * product).abs().unsqueeze(-1) * key.abs()).flatten(-2)
        while not self.per_token and total.dim() > 1:
            total = total.sum(0)
        return total.max().item() if total.numel() else 0.0


def lay_out(source: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides, or other numbers where the layout repeats a row."""
    if layout == "transposed" and source.dim() > 2:
        return source.transpose(0, -2).contiguous().transpose(0, -2)
    if layout == "padded":
        return torch.cat([source, torch.full_like(source, torch.nan)], -1)[..., : source.shape[-1]]
    if layout == "expanded" and source.dim() > 1:
        return source[:1].expand_as(source)
    if layout == "offset":
        return torch.cat([torch.full_like(source[..., :1], torch.nan), source], -1)[..., 1:]
    return source


CASES = st.fixed_dictionaries(
    {
        "act": st.sampled_from(ACTS),
        "num": st.sampled_from([1, 2, 3, 5, 9]) | st.integers(1, 70),
        "heads": st.sampled_from([1, 1, 2, 3, 5]),
        "channels": st.integers(1, 60),
        "lead": st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 3), (0,)]),
        "norm": st.sampled_from(["none", "width", "head"]),
        "layout": st.sampled_from(["plain", "transposed", "padded", "expanded", "offset"]),
        "repeats": st.sampled_from([(), (), (2, 5)]),
        "per_token": st.booleans(),
        "use_weights": st.booleans(),
    }
)


def case_of(**changes: Any) -> dict[str, Any]:
    plain = {"act": "softmax", "num": 3, "heads": 1, "channels": 5, "lead": (2,), "norm": "width"}
    return plain | {"layout": "plain", "repeats": (), "per_token": False, "use_weights": False} | changes


EDGES = [
    *(case_of(num=num) for num in (31, 32, 33, 63, 64, 65)),
    case_of(num=65, per_token=True, use_weights=True, act="sigmoid_normalized"),
    case_of(num=129, act="sigmoid", heads=2),
    case_of(num=512, channels=2, lead=(1,)),
    case_of(channels=1, lead=(300,)),
    case_of(channels=257),
    case_of(channels=300, lead=(2, 3), layout="transposed", per_token=True),
    case_of(channels=100, heads=3, norm="head", lead=(2, 3), layout="expanded"),
]


def check_case(draw: dict[str, Any], dtype: torch.dtype) -> None:
    case = Case(draw, dtype)
    lse: Tensor
    mixed, z, inverse, lse = read_forward(case.sources, case.query, case.act, case.heads, case.groups, 1e-6)
    exponents = z if case.act == "softmax" else torch.nn.functional.logsigmoid(z)
    weights = torch.sigmoid(z) if case.act == "sigmoid" else torch.exp(exponents - lse)
    saved = (mixed, case.sources, case.query, z, inverse, lse, case.act, case.heads, case.groups)
    grads, grad_query = read_backward(case.upstream, case.grad_weights, *saved)
    expected = case.expected()
    assert mixed.dtype == grads[0].dtype == dtype
    assert z.dtype == inverse.dtype == lse.dtype == grad_query.dtype == wide(dtype)
    assert len({grad.data_ptr() for grad in grads if grad.numel()}) == (len(grads) if mixed.numel() else 0)
    assert all(grad.is_contiguous() for grad in grads)
    # The query's gradient cancels where all keys are alike; then its error is one of the terms.
    terms = expected[4] if expected[3].numel() and expected[3].abs().max() < expected[4] / 50 else 0.0
    errors = {
        "mixed": deviation(mixed, expected[0]),
        "weights": deviation(weights, expected[1]),
        # A gradient of a source that cancels is measured against those of the others.
        "sources": deviation(torch.stack(grads), torch.stack(expected[2])),
        "query": deviation(grad_query, expected[3], terms),
    }
    assert max(errors.values()) < TOLERANCES[dtype], errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=CASES)
def test_random_reads(dtype: torch.dtype, draw: dict[str, Any]) -> None:
    check_case(draw, dtype)


@pytest.mark.parametrize("draw", EDGES, ids=lambda draw: f"S{draw['num']}_C{draw['channels']}")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edges(dtype: torch.dtype, draw: dict[str, Any]) -> None:
    check_case(draw, dtype)
