"""Several weighted sums of the same sources in Triton, against float64: alone, and in reads that are cut."""

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
from repro.ops.triton.mix import mix_forward
from repro.ops.triton.mix_backward import mix_backward
from tests.kernels import DEVICE, DTYPES, TOLERANCES, deviation, poisoned, wide
from tests.toy import normal

__all__ = ["poisoned"]
pytestmark = [
    pytest.mark.usefixtures("poisoned"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of numpy, in lanes that are masked
]


def definition(
    sources: list[Tensor], z: Tensor, priors: list[Tensor], prior_lse: Tensor | None, act: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [Q, ..., D], lse [..., Q, H] and weights [n, ..., Q, H] in float64, as the words say it."""
    if act == "softmax":
        parts = z if prior_lse is None else torch.cat([z, prior_lse[None]])
        lse = torch.logsumexp(parts, 0)
        weights, of_prior = torch.exp(z - lse), None if prior_lse is None else torch.exp(prior_lse - lse)
    else:
        weights, lse = torch.sigmoid(z) if act == "sigmoid" else z, torch.zeros_like(z[0])
        of_prior = torch.ones_like(z[0])
    width, (num_queries, heads) = sources[0].shape[-1], z.shape[-2:]
    outputs = []
    for q in range(num_queries):
        # A head's weight over its channels.
        spread = weights[..., q, :].repeat_interleave(width // heads, -1)
        output = sum(weight * source for weight, source in zip(spread, sources, strict=True))
        if priors:
            assert of_prior is not None
            output = output + of_prior[..., q, :].repeat_interleave(width // heads, -1) * priors[q]
        outputs.append(output)
    return torch.stack(outputs), lse, weights


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides, or other numbers where the layout repeats a row."""
    if layout == "transposed" and x.dim() > 2:
        return x.transpose(0, -2).contiguous().transpose(0, -2)
    if layout == "padded":
        return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]]
    if layout == "expanded" and x.dim() > 1:
        return x[:1].expand_as(x)
    return x


class Case:
    """Inputs of one drawn shape and layout, rounded to a dtype."""

    def __init__(self, draw: dict[str, Any], dtype: torch.dtype) -> None:
        self.act, self.dtype, heads = draw["act"], dtype, draw["heads"]
        lead, width = tuple(draw["lead"]), draw["channels"] * heads
        num, num_queries, name = draw["num"], draw["queries"], str(sorted(draw.items()))

        def stream(what: str) -> Tensor:
            return lay_out(normal(f"{name} {what}", *lead, width).to(dtype).to(DEVICE), draw["layout"])

        def scalars(what: str, *first: int) -> Tensor:
            return normal(f"{name} {what}", *first, *lead, num_queries, heads).to(wide(dtype)).to(DEVICE)

        self.sources = [stream(f"source {i}") for i in range(num)]
        for i in draw["repeats"]:
            self.sources[i % num] = self.sources[0]
        # Of more logits than are mixed here, so that they are strided.
        self.z = torch.cat([scalars("z", num)] * 2, -2)[..., num_queries:, :]
        self.priors = [stream(f"prior {q}") for q in range(num_queries)] if draw["on_prior"] else []
        softmax = self.act == "softmax"
        self.prior_lse = scalars("prior lse") if draw["on_prior"] and softmax else None
        self.upstream = [stream(f"upstream {q}") for q in range(num_queries)]
        self.grad_lse = scalars("grad lse") if draw["use_lse"] and softmax else None
        added = {"none": lambda i: False, "all": lambda i: True, "some": lambda i: i % 2 == 0}[draw["added"]]
        self.grads_in = [stream(f"grad {i}") if added(i) else None for i in range(num)]

    def check(self) -> None:
        num_queries = len(self.upstream)
        outputs, lse = mix_forward(self.sources, self.z, self.priors, self.prior_lse, self.act, None)
        # No read goes on elsewhere: delta is computed, and what is passed of it is not read.
        whole = (lse, torch.full_like(lse, torch.nan), [False] * num_queries)
        before = (self.priors or [None] * num_queries, self.prior_lse)
        saved = (self.sources, self.z, self.act, self.grads_in)
        grads, grad_z, delta = mix_backward(self.upstream, *whole, *before, self.grad_lse, *saved)
        assert {x.dtype for x in (*outputs, *grads)} == {self.dtype}
        assert lse.dtype == grad_z.dtype == delta.dtype == wide(self.dtype)

        sources = [x.cpu().double().requires_grad_() for x in self.sources]
        z = self.z.cpu().double().requires_grad_()
        priors = [x.cpu().double() for x in self.priors]
        prior_lse = None if self.prior_lse is None else self.prior_lse.cpu().double()
        want, want_lse, weights = definition(sources, z, priors, prior_lse, self.act)
        upstream = torch.stack([x.cpu().double() for x in self.upstream])
        loss = (want * upstream).sum()
        if self.grad_lse is not None:
            loss = loss + (want_lse * self.grad_lse.cpu().double()).sum()
        *grad_sources, want_z = torch.autograd.grad(loss, [*sources, z])
        for grad, added in zip(grad_sources, self.grads_in, strict=True):
            if added is not None:
                grad += added.cpu().double()
        want_delta = torch.zeros_like(want_lse)
        if self.act == "softmax":
            products = (upstream * want).unflatten(-1, (z.shape[-1], -1)).sum(-1)  # [Q, ..., H]
            want_delta = products.movedim(0, -2)
            if self.grad_lse is not None:
                want_delta = want_delta - self.grad_lse.cpu().double()
        # A difference that cancels is as good as its terms.
        terms = (weights.abs() * want_delta.abs()).max().item() if want_z.numel() else 0.0
        scale = terms if want_z.numel() and want_z.abs().max() < terms / 50 else 0.0
        errors = {
            "outputs": deviation(torch.stack(outputs), want),
            "lse": deviation(lse, want_lse),
            "sources": deviation(torch.stack(grads), torch.stack(grad_sources)),
            "z": deviation(grad_z, want_z, scale),
            "delta": deviation(delta, want_delta),
        }
        assert max(errors.values()) < TOLERANCES[self.dtype], errors


def case_of(**changes: Any) -> dict[str, Any]:
    plain = {"act": "softmax", "num": 3, "queries": 2, "heads": 1, "channels": 5, "lead": (2,)}
    options = {"on_prior": False, "use_lse": True, "added": "some", "layout": "plain", "repeats": ()}
    return plain | options | changes


CASES = st.fixed_dictionaries(
    {
        "act": st.sampled_from(["softmax", "softmax", "sigmoid", "linear"]),
        "num": st.sampled_from([1, 2, 3, 5, 9]) | st.integers(1, 70),
        "queries": st.sampled_from([1, 2, 3, 4, 5]),
        "heads": st.sampled_from([1, 1, 2, 3]),
        "channels": st.integers(1, 150),
        "lead": st.sampled_from([(), (1,), (3,), (2, 3), (2, 1, 3), (0,)]),
        "on_prior": st.booleans(),
        "use_lse": st.booleans(),
        "added": st.sampled_from(["none", "some", "all"]),
        "layout": st.sampled_from(["plain", "transposed", "padded", "expanded"]),
        "repeats": st.sampled_from([(), (), (2, 5)]),
    }
)

EDGES = [
    *(case_of(num=num, on_prior=True, channels=3) for num in (31, 32, 33, 63, 64, 65)),
    case_of(num=130, lead=(1,), added="all"),
    case_of(num=300, queries=1, lead=(), on_prior=True),
    case_of(num=9, queries=16, channels=300, lead=(1,), added="none"),
    case_of(num=4, queries=33, channels=2, on_prior=True),
    case_of(num=2, queries=65, channels=1, act="sigmoid", on_prior=True),
    case_of(num=3, queries=3, heads=2, channels=130, lead=(3, 3), layout="transposed"),
    case_of(num=1, queries=1, on_prior=True),
    case_of(channels=1, lead=(300,)),
    case_of(channels=1, heads=5, act="linear"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=CASES)
def test_random_mixes(dtype: torch.dtype, draw: dict[str, Any]) -> None:
    Case(draw, dtype).check()


@pytest.mark.parametrize("draw", EDGES, ids=lambda d: f"n{d['num']}_Q{d['queries']}_C{d['channels']}")
def test_edges(draw: dict[str, Any]) -> None:
    Case(draw, torch.float32).check()


@pytest.mark.parametrize("act", ["softmax", "sigmoid", "linear"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(dtype: torch.dtype, act: str) -> None:
    Case(case_of(act=act, on_prior=True, channels=70, heads=2, num=5, queries=3), dtype).check()


def test_outputs_may_be_wider_or_narrower_than_the_sources() -> None:
    case = Case(case_of(), torch.float16)
    want, _, _ = definition(
        [x.cpu().double() for x in case.sources], case.z.cpu().double(), [], None, "softmax"
    )
    for dtype in (torch.float32, torch.float16):
        outputs, _ = mix_forward(case.sources, case.z, [], None, "softmax", dtype)
        assert outputs[0].dtype == dtype
        assert deviation(torch.stack(outputs), want) < TOLERANCES[dtype]


# Reads that are cut into phases


@pytest.mark.parametrize("heads", [1, 2])
def test_a_read_cut_in_two_has_the_gradients_of_the_whole(heads: int) -> None:
    """The later part completes (lse, delta); with g they are all that the earlier part's backward needs.

    Three queries over a history of four sources; the first query ends there, the others read three more.
    """
    lead, width, reads, dtype = (2, 3), 12, 3, torch.float32

    def stream(name: str) -> Tensor:
        return normal(name, *lead, width, dtype=dtype).to(DEVICE)

    history, local = ([stream(f"{part} {i}") for i in range(num)] for part, num in (("h", 4), ("l", 3)))
    z_history = normal("zh", 4, *lead, reads, heads, dtype=dtype).to(DEVICE)
    z_local = normal("zl", 3, *lead, reads - 1, heads, dtype=dtype).to(DEVICE)
    upstream = [stream(f"g {q}") for q in range(reads)]

    outputs, lse = mix_forward(history, z_history, [], None, "softmax", None)
    mixed, whole = mix_forward(local, z_local, outputs[1:], lse[..., 1:, :], "softmax", None)
    unread = torch.full_like(whole, torch.nan)
    before = (outputs[1:], lse[..., 1:, :])
    grads_local, grad_z_local, delta_local = mix_backward(
        upstream[1:], whole, unread, [False] * 2, *before, None, local, z_local, "softmax", [None] * 3
    )
    message_lse = torch.cat([lse[..., :1, :], whole], -2)
    message = (message_lse, torch.cat([unread[..., :1, :], delta_local], -2), [False, True, True])
    before_history: Any = ([None] * 3, None)
    grads_history, grad_z_history, delta = mix_backward(
        upstream, *message, *before_history, None, history, z_history, "softmax", [None] * 4
    )

    leaves = [x.cpu().double().requires_grad_() for x in (*history, *local, z_history, z_local)]
    sources, (zh, zl) = leaves[:7], leaves[7:]
    first, _, _ = definition(sources[:4], zh[..., :1, :], [], None, "softmax")
    rest, _, _ = definition(sources, torch.cat([zh[..., 1:, :], zl]), [], None, "softmax")
    want = torch.cat([first, rest])
    deltas = (torch.stack(upstream).cpu().double() * want).unflatten(-1, (heads, -1)).sum(-1).movedim(0, -2)
    (want * torch.stack(upstream).cpu().double()).sum().backward()
    assert deviation(torch.stack([outputs[0], *mixed]), want) < 1e-5
    found = [*grads_history, *grads_local, grad_z_history, grad_z_local]
    for value, leaf in zip(found, leaves, strict=True):
        assert leaf.grad is not None
        assert deviation(value, leaf.grad) < 1e-5
    assert deviation(delta, deltas) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_one_source_is_the_output_and_its_logit_learns_nothing(dtype: torch.dtype) -> None:
    source = normal("source", 2, 300, dtype=dtype).to(DEVICE)
    z = 30 * normal("z", 1, 2, 3, 2, dtype=torch.float32).to(DEVICE)
    upstream = [normal(f"g {q}", 2, 300, dtype=dtype).to(DEVICE) for q in range(3)]
    outputs, lse = mix_forward([source], z, [], None, "softmax", None)
    assert torch.equal(lse, z[0])
    assert all(torch.equal(output, source) for output in outputs)
    grads, grad_z, _ = mix_backward(
        upstream, lse, lse, [False] * 3, [None] * 3, None, None, [source], z, "softmax", [None]
    )
    assert torch.equal(grad_z, torch.zeros_like(z))
    assert deviation(grads[0], sum(x.cpu().double() for x in upstream)) < TOLERANCES[dtype]  # type: ignore[arg-type]


# What does not show in the numbers of one call


def test_two_runs_give_the_same_bits() -> None:
    """Also where the order of additions would show: terms of very different size, many chunks of channels."""
    sources = [normal(f"{i}", 5, 900, dtype=torch.float32).to(DEVICE) * 10**i for i in range(4)]
    ends: Any = ([False] * 3, [None] * 3, None, None)
    z = normal("z", 4, 5, 3, 1, dtype=torch.float32).to(DEVICE)
    upstream = [normal(f"g{q}", 5, 900, dtype=torch.float32).to(DEVICE).exp() for q in range(3)]
    runs = []
    for _ in range(2):
        outputs, lse = mix_forward(sources, z, [], None, "softmax", None)
        grads, *rest = mix_backward(upstream, lse, lse, *ends, sources, z, "softmax", [None] * 4)
        runs.append([*outputs, lse, *grads, *rest])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_arguments_are_left_as_they_were() -> None:
    """Nothing is added to a gradient in place, nor to a prior, which other phases still hold."""
    case = Case(case_of(num=66, on_prior=True, added="all"), torch.float32)
    held = [*case.sources, *case.priors, *case.upstream, *(x for x in case.grads_in if x is not None)]
    before = [x.clone() for x in held]
    case.check()
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))


@pytest.mark.skipif(DEVICE.type == "cuda", reason="bytes are counted in the interpreter")
def test_every_stream_is_loaded_once_and_stored_once() -> None:
    """Seven queries of five sources, width no power of two: n + 2 Q streams forward, 3 n + 2 Q backward."""
    counting = import_module("repro.bench.counting").counting
    num, reads, shape, size = 5, 7, (6, 300), 6 * 300 * 4
    sources = [normal(f"{i}", *shape, dtype=torch.float32) for i in range(num)]
    priors, upstream = ([normal(f"{p}{q}", *shape, dtype=torch.float32) for q in range(reads)] for p in "pg")
    z, prior_lse = torch.randn(num, 6, reads, 1), torch.randn(6, reads, 1)
    with counting() as forward:
        _, lse = mix_forward(sources, z, priors, prior_lse, "softmax", None)
    assert forward.total(shape=shape, direction="load") == (num + reads) * size
    assert forward.total(shape=shape, direction="store") == reads * size
    added = [source + 1 for source in sources]
    with counting() as backward:
        whole = (lse, lse, [False] * reads, priors, prior_lse)
        mix_backward(upstream, *whole, None, sources, z, "softmax", added)
    assert backward.total(shape=shape, direction="load") == (2 * num + 2 * reads) * size
    assert backward.total(shape=shape, direction="store") == num * size


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

    for name in ("mix", "mix_backward"):
        monkeypatch.setattr(import_module(f"repro.ops.triton.{name}"), "launch", launch)
    v = source()
    z = torch.zeros(()).expand(1, v.shape[0], 1, 1)
    with pytest.raises(ValueError, match=message) as raised:
        mix_forward([v], z, [], None, "softmax", None)
    assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match=message):
        mix_backward([v], z[0], z[0], [True], [None], None, None, [v], z, "linear", [None])


def test_more_programs_than_a_grid_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 100)
    with pytest.raises(ValueError, match="99 rows need 200 programs, a grid holds 100"):
        mix_forward([torch.zeros(99, 1000)], torch.zeros(1, 99, 1, 1), [], None, "linear", None)
