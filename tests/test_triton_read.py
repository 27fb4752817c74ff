"""One read in Triton: literals, random cases against float64, all gradients, with outputs poisoned by NaN."""

from __future__ import annotations

import importlib
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
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward
from repro.ops.triton.sums import sum_partials
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


def test_many_sources_are_chained() -> None:
    """Eight launches, each going on from the mix that the one before carries."""
    check_case(case_of(num=512, channels=2, lead=(1,)), torch.float32)


# What does not show in the numbers of one call


def read_and_back(
    sources: list[Tensor], query: Tensor, upstream: Tensor, act: str = "softmax"
) -> tuple[Tensor, list[Tensor], Tensor]:
    mixed, z, inverse, lse = read_forward(sources, query, act, 1, 1, 1e-6)
    grads, grad_query = read_backward(upstream, None, mixed, sources, query, z, inverse, lse, act, 1, 1)
    return mixed, grads, grad_query


@pytest.mark.parametrize("act", ACTS)
def test_programs_that_take_several_rows_in_turn(act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """11 rows of 2 in a program's tile, shared by 2 programs: three turns, and a tile that is half empty."""
    monkeypatch.setattr(rows, "TILE", 16)
    monkeypatch.setattr(rows, "NUM_PARTIALS", 2)
    draw = case_of(act=act, channels=7, lead=(11,))
    assert rows.row_tile(7, 1).rows == 2
    check_case(draw, torch.float32)
    check_case(draw | {"per_token": True}, torch.float32)


def test_partial_sums_are_added_up() -> None:
    """More partial sums and columns than one step of the second stage takes, neither a multiple of it."""
    partials = normal("partials", 150, 70).to(DEVICE)
    assert deviation(sum_partials(partials), partials.cpu().sum(0)) < 1e-14


def test_the_query_gradient_is_the_same_to_the_last_bit() -> None:
    """Also where the order of rows or of programs would show: terms of very different size."""
    sources = [normal(f"{i}", 1500, 6, dtype=torch.float32).to(DEVICE) * 10**i for i in range(3)]
    query = normal("query", 6, dtype=torch.float32).to(DEVICE)
    upstream = normal("up", 1500, 6, dtype=torch.float32).to(DEVICE).exp()
    first, second = (read_and_back(sources, query, upstream)[2] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("act", ["softmax", "sigmoid_normalized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_one_source_is_the_output_and_the_query_learns_nothing(act: str, dtype: torch.dtype) -> None:
    """Exactly, and through the weights as well; the gradient handed back is a copy of the upstream one."""
    source = normal("source", 2, 3, 40, dtype=dtype).to(DEVICE).requires_grad_()
    query = normal("query", 40, dtype=torch.float32).to(DEVICE).requires_grad_()
    mixed, weights = kernels.depth_mix([source], query, act=act, heads=2)
    assert torch.equal(mixed, source)
    assert torch.equal(weights, torch.ones_like(weights))
    upstream = normal("upstream", 2, 3, 40, dtype=dtype).to(DEVICE)
    for loss in ((mixed * upstream).sum(), (mixed * upstream).sum() + (weights * 3.7).sum()):
        grad, grad_query = torch.autograd.grad(loss, [source, query], retain_graph=True)
        assert torch.equal(grad, upstream)
        assert torch.equal(grad_query, torch.zeros_like(grad_query))
    _, grads, _ = read_and_back([source.detach()], query.detach(), upstream, act)
    assert grads[0].data_ptr() != upstream.data_ptr()


@pytest.mark.parametrize("act", ["softmax", "sigmoid_normalized"])
@pytest.mark.parametrize(("groups", "most"), [(0, 64), (1, 64), (2, 64), (2, 2)])
def test_the_query_gradient_does_not_see_the_rounding_of_the_output(
    act: str, groups: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources that differ by little, so g . v - g . h is as small as what rounding h does to g . h.

    most: sources of one launch; in the last case what is to be taken back is carried to a second one.
    """
    monkeypatch.setattr(rows, "MAX_SOURCES", most)
    common = normal("common", 7, 24)
    sources = [(common + 0.05 * normal(f"{i}", 7, 24)).half().to(DEVICE) for i in range(4)]
    query, upstream = normal("query", 24).float().to(DEVICE), normal("up", 7, 24).half().to(DEVICE)
    mixed, z, inverse, lse = read_forward(sources, query, act, 2, groups, 1e-6)
    grads = read_backward(upstream, None, mixed, sources, query, z, inverse, lse, act, 2, groups)
    leaves = [x.cpu().double().requires_grad_() for x in (*sources, query)]
    options = {"heads": 2, "key_norm": groups > 0, "head_norm": groups == 2, "eps": 1e-6}
    reference.depth_mix(leaves[:-1], leaves[-1], act=act, **options)[0].backward(upstream.cpu().double())
    assert leaves[-1].grad is not None
    assert deviation(grads[1], leaves[-1].grad) < TOLERANCES[torch.float16]


def test_sources_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy of transposed, expanded or cut sources; one where the leading axes are three strided axes."""
    copies = []
    contiguous = Tensor.contiguous
    monkeypatch.setattr(Tensor, "contiguous", lambda x: (copies.append(x), contiguous(x))[1])
    plain = torch.randn(4, 5, 6, 3)
    for source in (
        plain,
        plain.transpose(0, 1).transpose(0, 1),
        torch.randn(5, 6, 4, 3).movedim(2, 0),
        plain[..., :2],
        plain[:, :, ::2],
        plain[:1].expand_as(plain),
        torch.randn(3).expand_as(plain),
    ):
        view = rows.as_rows([source])
        flat = source.reshape(-1, source.shape[-1])
        assert view.num == flat.shape[0]
        for r in (0, 1, view.num // 2, view.num - 1):
            start = (r // view.inner_size) * view.outer[0] + (r % view.inner_size) * view.inner[0]
            tensor = view.tensors[0]
            row = tensor.as_strided((source.shape[-1],), (1,), tensor.storage_offset() + start)
            assert torch.equal(row, flat[r])
    assert copies == []
    rows.as_rows([plain[:, :, ::2][:, ::2][::2]])
    assert len(copies) == 1


def test_strides_of_sources_may_differ() -> None:
    """Transposed, plain and repeated sources in one read: no common stride, one split of the axes."""
    shape, query = (3, 4, 10), normal("query", 10, dtype=torch.float32).to(DEVICE)
    plain = normal("a", *shape, dtype=torch.float32).to(DEVICE)
    crossed = normal("b", 4, 3, 10, dtype=torch.float32).to(DEVICE).transpose(0, 1)
    sources = [plain, crossed, plain[:, :1].expand(shape), crossed]
    upstream = normal("up", 10, 3, 4, dtype=torch.float32).to(DEVICE).movedim(0, -1)  # last axis strided
    mixed, grads, grad_query = read_and_back(sources, query, upstream)
    leaves = [source.cpu().double().requires_grad_() for source in (*sources, query)]
    expected, _ = reference.depth_mix(leaves[:-1], leaves[-1], eps=1e-6)
    expected.backward(upstream.cpu().double())
    assert deviation(mixed, expected) < 1e-5
    for grad, leaf in zip((*grads, grad_query), leaves, strict=True):
        assert leaf.grad is not None
        assert deviation(grad, leaf.grad) < 1e-5


def test_nothing_stack_shaped_is_kept_for_the_backward_pass() -> None:
    """Of the size of a stream: the sources themselves, and the output."""
    sources = [torch.randn(2, 3, 64, device=DEVICE, requires_grad=True) for _ in range(8)]
    query = torch.randn(64, device=DEVICE, requires_grad=True)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        mixed, _ = kernels.depth_mix(sources, query)
    streams = {x.data_ptr() for x in (*sources, mixed)}
    large = [x for x in kept if x.numel() >= mixed.numel() and x.data_ptr() not in streams]
    assert large == []
    assert streams <= {x.data_ptr() for x in kept}


@pytest.mark.skipif(DEVICE.type != "cpu", reason="bytes are counted in the interpreter")
@pytest.mark.parametrize(("num", "per_token"), [(5, False), (5, True), (65, False)])
def test_every_stream_is_moved_once(num: int, per_token: bool) -> None:
    """S reads and one write; S + 2 reads and S writes. Chained, the same again of what is not a source."""
    counting = importlib.import_module("repro.bench.counting").counting
    shape, size = (5, 300), 5 * 300 * 4
    sources = [normal(f"{i}", *shape, dtype=torch.float32) for i in range(num)]
    query = normal("query", *(shape if per_token else shape[1:]), dtype=torch.float32)
    own, chained = int(per_token), num > 64
    with counting() as forward:
        mixed, *saved = read_forward(sources, query, "softmax", 1, 1, 1e-6)
    assert forward.total(shape=shape, direction="load") == (num + own + chained) * size
    assert forward.total(shape=shape, direction="store") == (1 + chained) * size
    with counting() as backward:
        read_backward(sources[0] + 1, None, mixed, sources, query, *saved, "softmax", 1, 1)
    assert backward.total(shape=shape, direction="load") == (num + 2 + own + 2 * chained) * size
    assert backward.total(shape=shape, direction="store") == (num + own) * size


# Bad input


@pytest.fixture
def no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any, **__: Any) -> None:
        raise AssertionError("launched")

    for module in ("read", "read_backward", "merge", "merge_backward", "sums"):
        # By name: the package has functions of the same names.
        monkeypatch.setattr(importlib.import_module(f"repro.ops.triton.{module}"), "launch", launch)


X = torch.zeros(2, 6)
BAD: list[tuple[str, Any]] = [
    ("last axis must be contiguous", lambda: [[torch.zeros(2, 12)[:, ::2]], X[0]]),
    ("last axis must be contiguous", lambda: [[torch.zeros(2, 1).expand(2, 6)], X[0]]),
    ("4294967296 rows are more than a grid can index", lambda: [[torch.zeros(6).expand(2**32, 6)], X[0]]),
    ("non-empty list", lambda: [[], X[0]]),
    ("act 'relu' is not one of softmax", lambda: [[X], X[0], "relu"]),
    ("heads must divide the width 6, got 4", lambda: [[X], X[0], "softmax", 4]),
    ("groups must be 0, 1 or the number of heads 3", lambda: [[X], X[0], "softmax", 3, 2]),
    (r"query must be \[6\]", lambda: [[X], torch.zeros(5)]),
]


@pytest.mark.usefixtures("no_launch")
@pytest.mark.parametrize(("message", "arguments"), BAD)
def test_bad_input_has_one_clear_error_before_any_launch(message: str, arguments: Any) -> None:
    given_ = arguments()
    options = [*given_, *("softmax", 1, 1)[len(given_) - 2 :]]
    with pytest.raises(ValueError, match=message) as raised:
        read_forward(*options, 1e-6)
    assert "\n" not in str(raised.value)
