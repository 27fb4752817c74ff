"""One source against many queries in Triton, against float64: logits, key norms, the sum with an addend."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from repro.ops.triton import rows
from repro.ops.triton.score import query_parts, score_forward
from repro.ops.triton.score_backward import score_backward
from tests.kernels import DEVICE, DTYPES, TOLERANCES, deviation, poisoned, wide
from tests.toy import normal

__all__ = ["poisoned"]
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in lanes that are masked
]

EPS = 1e-3  # large enough to be seen


def definition(source: Tensor, queries: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [..., R, H] and inverse RMS [..., G] of a head at a time; and logits with a constant norm."""
    size, lead = source.shape[-1] // heads, source.shape[:-1]
    inverse = source.new_ones((*lead, 0))
    if groups:
        parts = source.unflatten(-1, (groups, -1))
        inverse = torch.rsqrt(parts.square().mean(-1) + EPS)
    scale = inverse.expand(*lead, heads) if groups else source.new_ones((*lead, heads))
    logits = [
        source[..., h * size : (h + 1) * size] @ queries[:, h * size : (h + 1) * size].T for h in range(heads)
    ]
    raw = torch.stack(logits, -1)
    return raw * scale.unsqueeze(-2), inverse, raw * scale.detach().unsqueeze(-2)


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides, or other numbers where the layout repeats a row."""
    if layout == "transposed" and x.dim() > 2:
        return x.transpose(0, -2).contiguous().transpose(0, -2)
    if layout == "padded":
        return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]]
    if layout == "expanded" and x.dim() > 1:
        return x[:1].expand_as(x)
    return x


def check_case(draw: dict[str, Any], dtype: torch.dtype) -> None:
    heads, num, lead = draw["heads"], draw["queries"], tuple(draw["lead"])
    width, name = draw["channels"] * heads, str(sorted(draw.items()))
    groups = {"none": 0, "width": 1, "head": heads}[draw["norm"]]

    def stream(what: str) -> Tensor:
        return lay_out(normal(f"{name} {what}", *lead, width).to(dtype).to(DEVICE), draw["layout"])

    source, grad_in = stream("source"), stream("grad") if draw["on_grad"] else None
    addend = stream("addend") if draw["add"] else None
    queries = (width**-0.5 * normal(f"{name} queries", num, width)).to(wide(dtype)).to(DEVICE)
    # Of the gradients of more logits, so that they are strided.
    grad_z = normal(f"{name} z", *lead, 2 * num, heads).to(wide(dtype)).to(DEVICE)[..., 1::2, :]

    z, inverse, total = score_forward(source, addend, queries, heads, groups, EPS)
    scored = source
    if addend is None:
        assert total.numel() == 0
    else:
        scored = (source.to(wide(dtype)) + addend.to(wide(dtype))).to(dtype)
        assert torch.equal(total, scored)
    grad_source, grad_queries = score_backward(grad_z, grad_in, scored, queries, z, inverse, heads, groups)
    assert grad_source.dtype == dtype
    assert z.dtype == inverse.dtype == grad_queries.dtype == wide(dtype)

    v, q = scored.cpu().double().requires_grad_(), queries.cpu().double().requires_grad_()
    want, want_inverse, unmoved = definition(v, q, heads, groups)
    upstream = grad_z.cpu().double()
    want_source, want_queries = torch.autograd.grad((want * upstream).sum(), [v, q], retain_graph=True)
    (terms,) = torch.autograd.grad((unmoved * upstream).sum(), v)
    if grad_in is not None:
        want_source = want_source + grad_in.cpu().double()
    # What the norm cancels (all of it, at width one) is as good as what it is the difference of.
    scale = terms.abs().max().item() if v.numel() else 0.0
    scale = scale if v.numel() and want_source.abs().max() < scale / 50 else 0.0
    fine = min(TOLERANCES[dtype], 1e-5)  # not rounded to the source's type
    errors = {
        "z": deviation(z, want) / fine,
        "inverse": deviation(inverse, want_inverse) / fine,
        "queries": deviation(grad_queries, want_queries) / fine,
        "source": deviation(grad_source, want_source, scale) / TOLERANCES[dtype],
    }
    assert max(errors.values()) < 1, errors


def case_of(**changes: Any) -> dict[str, Any]:
    plain = {"queries": 3, "heads": 1, "channels": 20, "lead": (2,), "norm": "width"}
    return plain | {"add": False, "on_grad": True, "layout": "plain"} | changes


CASES = st.fixed_dictionaries(
    {
        "queries": st.sampled_from([1, 2, 3, 16, 17]) | st.integers(1, 70),
        "heads": st.sampled_from([1, 1, 2, 3, 5]),
        "channels": st.integers(1, 50),
        "lead": st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 3), (0,), (70,)]),
        "norm": st.sampled_from(["none", "width", "width", "head"]),
        "add": st.booleans(),
        "on_grad": st.booleans(),
        "layout": st.sampled_from(["plain", "transposed", "padded", "expanded"]),
    }
)

EDGES = [
    case_of(queries=512, lead=(17,), add=True),
    case_of(queries=600, channels=3),
    case_of(queries=130, channels=40, lead=(33,)),
    case_of(channels=300, lead=(67,)),
    case_of(queries=40, heads=5, channels=30, lead=(3, 3), add=True, layout="transposed"),
    case_of(queries=40, heads=5, channels=30, norm="head", lead=(65,)),
    case_of(queries=9, heads=5, norm="none"),
    case_of(channels=1, lead=(300,)),
    case_of(channels=257, lead=()),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=CASES)
def test_random_scores(dtype: torch.dtype, draw: dict[str, Any]) -> None:
    check_case(draw, dtype)


@pytest.mark.parametrize("draw", EDGES, ids=lambda d: f"R{d['queries']}_H{d['heads']}_C{d['channels']}")
def test_edges(draw: dict[str, Any]) -> None:
    check_case(draw, torch.float32)


@pytest.mark.parametrize("norm", ["none", "width", "head"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(dtype: torch.dtype, norm: str) -> None:
    check_case(case_of(queries=18, heads=2, channels=37, lead=(5,), norm=norm, add=True), dtype)


# bfloat16 goes another way than the types that the interpreter can run: in parts


def test_three_bfloat16_are_one_float32() -> None:
    queries = torch.cat([normal("q", 50, dtype=torch.float32) * 10.0**i for i in range(-24, 30, 7)])[None]
    parts = query_parts(queries, torch.bfloat16, torch.float32)
    assert parts.dtype == torch.bfloat16
    rest = (parts.double().sum(0) - queries.double()).abs()
    assert (rest <= queries.double().abs() * 2.0**-24).all()


@pytest.mark.parametrize(
    "draw", [case_of(), case_of(queries=40, heads=2, channels=70, lead=(3, 4), add=True)]
)
def test_products_in_parts(draw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels with float16 parts, three of the queries and two of the gradients."""
    for name in ("score", "score_backward"):
        monkeypatch.setattr(import_module(f"repro.ops.triton.{name}"), "in_parts", lambda dtype, wide: True)
    check_case(draw, torch.float16)


# What does not show in the numbers of one call


def test_two_runs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the order of additions would show: terms of very different size, 4 shares of 3 blocks."""
    monkeypatch.setattr(rows, "NUM_PARTIALS", 12)
    source = normal("source", 700, 300, dtype=torch.float32).to(DEVICE).exp().square()
    queries = normal("queries", 5, 300, dtype=torch.float32).to(DEVICE)
    grad_z = normal("z", 700, 5, 1, dtype=torch.float32).to(DEVICE).exp()
    runs = []
    for _ in range(2):
        z, inverse, _ = score_forward(source, None, queries, 1, 1, EPS)
        runs.append([z, *score_backward(grad_z, None, source, queries, z, inverse, 1, 1)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_shares_of_several_blocks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 rows in 5 blocks of 64, shared by 2 programs: three turns, the last one empty."""
    monkeypatch.setattr(rows, "NUM_PARTIALS", 2)
    check_case(case_of(lead=(300,), channels=40, add=True), torch.float32)


def test_sources_without_a_direction() -> None:
    """A row of zeros has logit zero, and a gradient that eps keeps finite."""
    source, queries = torch.zeros(3, 8, device=DEVICE), torch.ones(2, 8, device=DEVICE)
    z, inverse, _ = score_forward(source, None, queries, 1, 1, 1e-4)
    grad, grad_queries = score_backward(torch.ones_like(z), None, source, queries, z, inverse, 1, 1)
    assert torch.equal(z, torch.zeros_like(z))
    assert deviation(inverse, torch.full((3, 1), 100.0)) < 1e-5
    assert deviation(grad, torch.full((3, 8), 200.0)) < 1e-5
    assert torch.equal(grad_queries, torch.zeros_like(queries))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="bytes are counted in the interpreter")
def test_every_stream_is_loaded_once_and_stored_once() -> None:
    """Source and addend in, sum out; then sum and gradient in, one gradient out; for 130 queries."""
    counting = import_module("repro.bench.counting").counting
    shape = (20, 50)
    size = 20 * 50 * 4
    source, addend, added = (normal(name, *shape, dtype=torch.float32) for name in "sag")
    queries, grad_z = normal("q", 130, 50, dtype=torch.float32), normal("z", 20, 130, 1, dtype=torch.float32)
    with counting() as forward:
        z, inverse, total = score_forward(source, addend, queries, 1, 1, EPS)
    assert forward.total(shape=shape, direction="load") == 2 * size
    assert forward.total(shape=shape, direction="store") == size
    with counting() as backward:
        score_backward(grad_z, added, total, queries, z, inverse, 1, 1)
    assert backward.total(shape=shape, direction="load") == 2 * size
    assert backward.total(shape=shape, direction="store") == size


# Bad input


@pytest.mark.parametrize(
    ("message", "source"),
    [
        ("last axis must be contiguous", lambda: torch.zeros(2, 12)[:, ::2]),
        ("4294967296 rows are more than a grid can index", lambda: torch.zeros(6).expand(2**32, 6)),
    ],
)
def test_bad_input_has_one_clear_error_before_any_launch(
    message: str, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any, **__: Any) -> None:
        raise AssertionError("launched")

    for name in ("score", "score_backward"):
        monkeypatch.setattr(import_module(f"repro.ops.triton.{name}"), "launch", launch)
    v, queries = source(), torch.zeros(1, 6)
    with pytest.raises(ValueError, match=message) as raised:
        score_forward(v, None, queries, 1, 1, EPS)
    assert "\n" not in str(raised.value)
    z = torch.zeros(()).expand(v.shape[0], 1, 1)
    with pytest.raises(ValueError, match=message):
        score_backward(z, None, v, queries, z, z[..., 0], 1, 1)
