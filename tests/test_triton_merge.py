"""The merge in Triton: forward, gradients, and the message to the history, against float64."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("triton")

from repro.ops import reference
from repro.ops import triton as kernels
from repro.ops.triton import rows
from tests.kernels import DEVICE, TOLERANCES, deviation, poisoned, wide
from tests.toy import normal, rms_norm

__all__ = ["poisoned"]
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in lanes that are masked
]

EPS = 1e-6
#: Of the fused norm: large, since at one channel all of its gradient is due to it.
NORM_EPS = 1.0
CASES = st.fixed_dictionaries(
    {
        "act": st.sampled_from(["softmax", "sigmoid"]),
        "heads": st.sampled_from([1, 1, 2, 5]),
        "channels": st.integers(1, 60),
        "lead": st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 3), (0,)]),
        "norm": st.sampled_from(["none", "width", "head"]),
        "with_partial": st.booleans(),
        "with_grad_total": st.booleans(),
        "with_gain": st.booleans(),
        "transposed": st.booleans(),
    }
)


def case_of(**changes: Any) -> dict[str, Any]:
    plain = {"act": "softmax", "heads": 1, "channels": 5, "lead": (2, 3), "norm": "width"}
    flags = {"with_partial": True, "with_grad_total": True, "with_gain": False, "transposed": False}
    return plain | flags | changes


def expected_merge(
    draw: dict[str, Any], prior: Tensor, prior_lse: Tensor, p: Tensor, query: Tensor, gain: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """z; h = a p + (1 - a) prior with a = sigmoid(z - lse), or prior + sigmoid(z) p; and the normed h."""
    heads = draw["heads"]
    options = {"key_norm": draw["norm"] != "none", "heads": heads, "head_norm": draw["norm"] == "head"}
    z = (reference.keys(p, eps=EPS, **options) * reference.split_heads(query, heads)).sum(-1)
    parts, before = reference.split_heads(p, heads), reference.split_heads(prior, heads)
    if draw["act"] == "softmax":
        a = torch.sigmoid(z - prior_lse).unsqueeze(-1)
        h = (a * parts + (1 - a) * before).flatten(-2)
    else:
        h = (before + torch.sigmoid(z).unsqueeze(-1) * parts).flatten(-2)
    return z, h, h if gain is None else rms_norm(h, NORM_EPS) * gain


def check_case(draw: dict[str, Any], dtype: torch.dtype) -> None:
    heads, lead = draw["heads"], tuple(draw["lead"])
    width, name = draw["channels"] * heads, str(sorted(draw.items()))
    groups = {"none": 0, "width": 1, "head": heads}[draw["norm"]]

    def stream(what: str) -> Tensor:
        x = normal(f"{name} {what}", *lead, width).to(dtype).to(DEVICE)
        if draw["transposed"] and len(lead) > 1:
            x = x.transpose(0, -2).contiguous().transpose(0, -2)
        return x

    def scalars(what: str, *shape: int) -> Tensor:
        return normal(f"{name} {what}", *shape).to(wide(dtype)).to(DEVICE)

    prior, output, upstream = stream("prior"), stream("output"), stream("upstream")
    partial = stream("partial") if draw["with_partial"] else None
    grad_total = stream("total") if draw["with_grad_total"] else None
    prior_lse, query = scalars("lse", *lead, heads), scalars("query", width) * width**-0.5
    gain = scalars("gain", width) if draw["with_gain"] else None
    norm: dict[str, Any] = {"gain": gain, "norm_eps": NORM_EPS} if draw["with_gain"] else {}
    options = (draw["act"], heads, groups)

    x, total, z, inverse, lse = kernels.merge_forward(
        prior, prior_lse, partial, output, query, *options, EPS, **norm
    )
    p = output if partial is None else total
    assert total.numel() == 0 if partial is None else torch.equal(total, partial + output)
    grad_p, delta, grad_query, *rest = kernels.merge_backward(
        upstream, grad_total, prior, p, query, z, inverse, lse, None if norm else x, *options, **norm
    )

    leaves = [t.cpu().double().requires_grad_() for t in (prior, prior_lse, p, query)]
    gain_leaf = None if gain is None else gain.cpu().double().requires_grad_()
    exact_z, h, expected = expected_merge(draw, *leaves, gain_leaf)
    h.retain_grad()
    exact_z.retain_grad()
    loss = (expected * upstream.cpu().double()).sum()
    if grad_total is not None:
        loss = loss + (leaves[2] * grad_total.cpu().double()).sum()
    loss.backward()
    assert h.grad is not None
    assert exact_z.grad is not None
    whole = torch.logaddexp(leaves[1], z.cpu().double()) if draw["act"] == "softmax" else torch.zeros_like(z)
    by_head = reference.split_heads(h.grad * h, heads).sum(-1)

    # Where terms cancel to less than a fiftieth (at one channel, say), the error is one of the terms.
    grads = (leaves[2].grad, leaves[3].grad)
    terms = [0.0, 0.0]
    if h.numel():
        raw = exact_z.grad * (inverse.cpu().double() if groups else 1.0)
        parts = [h.grad, (raw.unsqueeze(-1) * reference.split_heads(leaves[3], heads)).flatten(-2)]
        parts += [] if grad_total is None else [grad_total.cpu().double()]
        terms[0] = torch.stack(parts).abs().sum(0).max().item()
        terms[1] = (h.grad * leaves[2]).abs().sum(-1).sum().item() / width**0.5
    sizes = [
        size if grad.numel() and grad.abs().max() < size / 50 else 0.0
        for grad, size in zip(grads, terms, strict=True)
        if grad is not None
    ]
    errors = {
        "x": deviation(x, expected),
        "lse": deviation(lse, whole, 1.0),  # a logarithm: its absolute error is that of weights
        "grad_p": deviation(grad_p, grads[0], sizes[0]),
        "grad_query": deviation(grad_query, grads[1], sizes[1]),
    }
    if draw["act"] == "softmax":
        # Delta is a sum of signed terms; its error is that of the terms.
        size = reference.split_heads(h.grad * h, heads).abs().sum(-1).max().item() if h.numel() else 0.0
        errors["delta"] = deviation(delta, by_head, size)
    else:
        assert torch.equal(delta, torch.zeros_like(delta))
    if gain_leaf is not None:
        errors["grad_gain"] = deviation(rest[0], gain_leaf.grad)
        errors["grad_h"] = deviation(rest[1], h.grad)
    assert len(rest) == (0 if gain is None else 2)
    assert x.dtype == grad_p.dtype == total.dtype == dtype
    assert z.dtype == lse.dtype == delta.dtype == grad_query.dtype == wide(dtype)
    assert max(errors.values()) < TOLERANCES[dtype], errors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=CASES)
def test_random_merges(dtype: torch.dtype, draw: dict[str, Any]) -> None:
    check_case(draw, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "draw",
    [
        case_of(channels=300),
        case_of(channels=257, with_gain=True),
        case_of(channels=1, lead=(200,), act="sigmoid"),
        case_of(channels=33, heads=3, norm="head", with_gain=True, transposed=True),
        case_of(with_partial=False, with_grad_total=False, act="sigmoid", with_gain=True),
    ],
    ids=lambda draw: f"{draw['act']}_C{draw['channels']}",
)
def test_edges(draw: dict[str, Any], dtype: torch.dtype) -> None:
    check_case(draw, dtype)


@pytest.mark.parametrize("with_gain", [False, True])
def test_programs_that_take_several_rows_in_turn(with_gain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """11 rows of 2 in a program's tile, shared by 2 programs: three turns, and a tile that is half empty."""
    monkeypatch.setattr(rows, "TILE", 16)
    monkeypatch.setattr(rows, "NUM_PARTIALS", 2)
    check_case(case_of(channels=7, lead=(11,), with_gain=with_gain), torch.float32)


def test_what_stands_for_the_history_is_the_history() -> None:
    """A merge on top of a read of n sources is the read of n + 1."""
    sources = [normal(f"{i}", 2, 3, 12, dtype=torch.float64).to(DEVICE) for i in range(4)]
    query = normal("query", 12, dtype=torch.float64).to(DEVICE)
    mixed, _, _, lse = torch.ops.attnres.read(sources[:3], query, "softmax", 3, 1, EPS)
    h, _, _, _, whole = kernels.merge_forward(mixed, lse, None, sources[3], query, "softmax", 3, 1, EPS)
    expected, _, _, expected_lse = torch.ops.attnres.read(sources, query, "softmax", 3, 1, EPS)
    assert deviation(h, expected.cpu()) < 1e-14
    assert deviation(whole, expected_lse.cpu()) < 1e-14


def test_the_sum_is_rounded_before_it_is_scored() -> None:
    """As if it had been stored and read again: the next sublayer sees the same partial sum."""
    prior, partial, output = (normal(name, 3, 40).half().to(DEVICE) for name in "abc")
    query, lse = normal("q", 40).float().to(DEVICE), torch.zeros(3, 1, device=DEVICE)
    options = (query, "softmax", 1, 1, EPS)
    h, total, *scalars = kernels.merge_forward(prior, lse, partial, output, *options)
    again, _, *scalars_again = kernels.merge_forward(prior, lse, None, total, *options)
    for a, b in zip((h, *scalars), (again, *scalars_again), strict=True):
        assert torch.equal(a, b)


def test_the_history_may_be_wider_than_the_output() -> None:
    """A prior in float32 is taken as it is; only h is rounded."""
    prior = normal("prior", 3, 40, dtype=torch.float32).to(DEVICE)
    output = normal("output", 3, 40, dtype=torch.float16).to(DEVICE)
    query, lse = torch.zeros(40, device=DEVICE), torch.zeros(3, 1, device=DEVICE)
    h = kernels.merge_forward(prior, lse, None, output, query, "softmax", 1, 1, EPS)[0]
    assert h.dtype == torch.float16
    assert torch.equal(h, ((prior + output.float()) / 2).half())


@pytest.mark.skipif(DEVICE.type != "cpu", reason="bytes are counted in the interpreter")
@pytest.mark.parametrize("with_partial", [False, True])
@pytest.mark.parametrize("with_gain", [False, True])
def test_every_stream_is_moved_once(with_partial: bool, with_gain: bool) -> None:
    """Prior, partial and output in, sum and read out; upstream, prior, sum and its gradient in, one out."""
    counting = import_module("repro.bench.counting").counting
    shape, size = (6, 300), 6 * 300 * 4
    prior, output, upstream, more = (normal(name, *shape, dtype=torch.float32) for name in "abcd")
    query, lse = normal("q", 300, dtype=torch.float32), torch.zeros(6, 1)
    norm: dict[str, Any] = {"gain": query, "norm_eps": EPS} if with_gain else {}
    partial = more if with_partial else None
    with counting() as forward:
        h, total, *saved = kernels.merge_forward(
            prior, lse, partial, output, query, "softmax", 1, 1, EPS, **norm
        )
    assert forward.total(shape=shape, direction="load") == (2 + with_partial) * size
    assert forward.total(shape=shape, direction="store") == (1 + with_partial) * size
    p = total if with_partial else output
    with counting() as backward:
        kernels.merge_backward(
            upstream, more + 1, prior, p, query, *saved, None if with_gain else h, "softmax", 1, 1, **norm
        )
    assert backward.total(shape=shape, direction="load") == 4 * size
    assert backward.total(shape=shape, direction="store") == (1 + with_gain) * size


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("act 'sigmoid_normalized' is not one of softmax, sigmoid", {"act": "sigmoid_normalized"}),
        ("heads must divide the width 6, got 4", {"heads": 4}),
        ("groups must be 0, 1 or the number of heads 3", {"heads": 3, "groups": 2}),
        ("prior and output must have one shape", {"prior": torch.zeros(3, 6)}),
        ("partial and output must have one shape", {"partial": torch.zeros(3, 6)}),
        ("last axis must be contiguous", {"output": torch.zeros(6, 2).T}),
        ("last axis must be contiguous", {"partial": torch.zeros(6, 2).T}),
        (r"query must be \[6\]", {"query": torch.zeros(2, 6)}),
        (r"gain must be \[6\]", {"gain": torch.zeros(5)}),
    ],
)
def test_bad_input_has_one_clear_error(message: str, change: dict[str, Any]) -> None:
    x = torch.zeros(2, 6)
    plain = {"prior": x, "prior_lse": torch.zeros(2, 1), "partial": x, "output": x, "query": x[0]}
    arguments = plain | {"act": "softmax", "heads": 1, "groups": 1, "eps": EPS} | change
    with pytest.raises(ValueError, match=message):
        kernels.merge_forward(**arguments)
