"""The decoder's own autograd functions against plain compositions of torch, and what they allocate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from repro.model import loss as loss_module
from repro.model.attention import Rotary
from repro.model.loss import mean_loss, token_losses
from repro.model.mlp import SwiGLU, gated
from repro.model.norm import RMSNorm
from repro.ops.norm import _RMSNorm
from tests.decoders import SIZE, build, text
from tests.tiny import tiny_config
from tests.toy import default_dtype, error, normal, randomise

Function = Callable[..., Any]


def results(function: Function, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Outputs and gradients of all inputs, for random gradients of all outputs."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs]
    found = function(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    upstream = [normal(f"upstream {i}", y.numel(), dtype=dtype).view(y.shape) for i, y in enumerate(outputs)]
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def agree(function: Function, plain: Function, *inputs: Tensor) -> None:
    """In float64 to rounding, in float32 to 1e-5 of float64 on the rounded inputs."""
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        rounded = [x.to(dtype) for x in inputs]
        expected = results(plain, rounded, torch.float64)
        for found, exact in zip(results(function, rounded, dtype), expected, strict=True):
            assert found.dtype == dtype
            assert found.shape == exact.shape
            assert error(found, exact) < tolerance


# RMSNorm

EPS = 1e-3  # large enough to be seen


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def own_norm(x: Tensor, weight: Tensor) -> Tensor:
    return _RMSNorm.apply(x, weight, EPS)


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6), (0, 6)], ids=str)
def test_rms_norm(shape: tuple[int, ...]) -> None:
    x, weight = 0.1 * normal("x", *shape), normal("weight", 6)
    if shape[0]:
        agree(own_norm, plain_norm, x, weight)
    else:
        assert not results(own_norm, [x, weight], torch.float64)[2].any()
    assert torch.autograd.gradcheck(own_norm, (x.requires_grad_(), weight.requires_grad_()))


def test_rms_norm_of_any_strides() -> None:
    """Also where activation and gradient lie in memory in one other order."""
    weight = normal("weight", 6).requires_grad_()
    for x in (
        normal("x", 4, 3, 6).transpose(0, 1),
        normal("x", 3, 6, 4).mT,
        normal("x", 3, 1, 6).expand(3, 4, 6),
    ):
        grads = []
        for norm in (own_norm, plain_norm):
            leaf = x.detach().requires_grad_()
            upstream = normal("upstream", 4, 3, 6).transpose(0, 1)
            grads.append(torch.autograd.grad(norm(leaf, weight), (leaf, weight), upstream))
        for found, expected in zip(*grads, strict=True):
            assert error(found, expected) < 1e-12


def test_the_module_uses_it_on_a_cpu() -> None:
    """Values and gradients are those of torch's composite."""
    with default_dtype(torch.float64):
        norm = RMSNorm(6, EPS)
    norm.weight.data = normal("weight", 6)
    x = normal("x", 3, 6).requires_grad_()
    assert "_RMSNorm" in type(norm(x).grad_fn).__name__
    y = norm(x)
    assert error(y, plain_norm(x, norm.weight)) < 1e-13
    expected = torch.autograd.grad(plain_norm(x, norm.weight).sin().sum(), (x, norm.weight))
    for a, b in zip(torch.autograd.grad(y.sin().sum(), (x, norm.weight)), expected, strict=True):
        assert error(a, b) < 1e-12


# SwiGLU


def plain_gated(joined: Tensor) -> Tensor:
    gate, up = joined.split(joined.shape[-1] // 2, -1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 8)], ids=str)
def test_gated(shape: tuple[int, ...]) -> None:
    agree(gated, plain_gated, 2 * normal("joined", *shape))
    assert torch.autograd.gradcheck(gated, normal("joined", *shape).requires_grad_())


# Rotary


@pytest.fixture(scope="module")
def rotary() -> Rotary:
    with default_dtype(torch.float64):
        return Rotary(4, context=7, base=100.0)


def plain_split(qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Channel pairs (c, c + 2) as complex numbers, turned by position times 1 or 1/10."""
    query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
    angles = torch.arange(qkv.shape[1])[:, None] * torch.tensor([1.0, 0.1], dtype=torch.float64)

    def turn(x: Tensor) -> Tensor:
        turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat([turned.real, turned.imag], -1)

    return turn(query), turn(key), value


def test_split(rotary: Rotary) -> None:
    qkv = normal("qkv", 2, 5, 3, 3, 4)
    agree(rotary.split, plain_split, qkv)
    assert torch.autograd.gradcheck(rotary.split, qkv[:1, :3, :, :2].contiguous().requires_grad_())


@pytest.mark.parametrize("used", [0, 1, 2])
def test_split_where_one_result_is_used(rotary: Rotary, used: int) -> None:
    """Of any strides, and a gradient that is one number expanded."""
    qkv = normal("qkv", 5, 2, 3, 3, 4).transpose(0, 1).requires_grad_()
    (found,), (expected,) = (
        torch.autograd.grad(f(qkv)[used].sum(), qkv) for f in (rotary.split, plain_split)
    )
    assert error(found, expected) < 1e-13


# The loss

TOKENS, VOCABULARY, WIDTH = 37, 11, 6


def plain_loss(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, head).to(torch.promote_types(x.dtype, torch.float32)), targets)


LOSSES: tuple[Function, Function] = (mean_loss, plain_loss)


def example(ignored: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x, head, and targets of which some do not count."""
    targets = (1e6 * normal("targets", TOKENS)).long().remainder(VOCABULARY)
    targets[normal("order", TOKENS).argsort()[:ignored]] = -100
    return normal("x", TOKENS, WIDTH), normal("head", VOCABULARY, WIDTH), targets


@pytest.fixture(params=[16, 37, 10**6], ids=lambda size: f"{size}_tokens_at_once")
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """16, 16 and 5 tokens; all, just; and all."""
    monkeypatch.setattr(loss_module, "_AT_ONCE", {"cpu": request.param * VOCABULARY})


@pytest.mark.parametrize("ignored", [0, 5, 36])
@pytest.mark.usefixtures("chunks")
def test_mean_loss(ignored: int) -> None:
    x, head, targets = example(ignored)
    agree(lambda x, h: mean_loss(x, h, targets), lambda x, h: plain_loss(x, h, targets), x, head)


@pytest.mark.usefixtures("chunks")
def test_gradcheck_of_the_losses() -> None:
    x, head, targets = example(5)
    x, head = (3 * x).requires_grad_(), head.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, h: mean_loss(x, h, targets), (x, head))
    assert torch.autograd.gradcheck(lambda x, h: token_losses(x, h, targets), (x, head))


@pytest.mark.usefixtures("chunks")
def test_token_losses() -> None:
    x, head, targets = example(5)

    def plain(x: Tensor, head: Tensor) -> Tensor:
        logs = torch.log_softmax(x @ head.T, -1)
        picked = logs[torch.arange(TOKENS), targets.clamp(min=0)]
        return torch.where(targets == -100, 0.0, -picked)

    agree(lambda x, h: token_losses(x, h, targets), plain, x, head)
    assert token_losses(x[:0], head, targets[:0]).shape == (0,)


@pytest.mark.usefixtures("chunks")
def test_a_batch_in_which_nothing_counts_is_no_number_as_in_torch() -> None:
    x, head, _ = example()
    x, head, nothing = x.requires_grad_(), head.requires_grad_(), torch.full((TOKENS,), -100)
    for function in LOSSES:
        loss = function(x, head, nothing)
        assert loss.isnan()
        assert all(not grad.any() for grad in torch.autograd.grad(loss, (x, head)))
    assert not token_losses(x, head, nothing).any()


@pytest.mark.parametrize("wrong", [-1, VOCABULARY])
@pytest.mark.parametrize("function", [mean_loss, token_losses])
def test_a_target_outside_the_vocabulary_is_refused(function: Function, wrong: int) -> None:
    x, head, targets = example()
    targets[3] = wrong
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        function(x.requires_grad_(), head.requires_grad_(), targets)


def test_large_logits_do_not_overflow() -> None:
    x, head, targets = example(5)
    agree(lambda x, h: mean_loss(x, h, targets), lambda x, h: plain_loss(x, h, targets), 40 * x, 40 * head)


@pytest.mark.parametrize("needs", [(True, False), (False, True)], ids=["x", "head"])
def test_a_frozen_input(needs: tuple[bool, bool]) -> None:
    x, head, targets = example(5)
    grads = []
    for function in LOSSES:
        leaves = [leaf.detach().requires_grad_(need) for leaf, need in zip((x, head), needs, strict=True)]
        function(*leaves, targets).backward()
        grads.append([leaf.grad for leaf in leaves])
    for found, expected, need in zip(*grads, needs, strict=True):
        assert error(found, expected) < 1e-13 if need else found is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.usefixtures("chunks")
def test_no_worse_than_plain_in_half_precision(dtype: torch.dtype) -> None:
    """bfloat16 storage, or float32 under autocast: by the distance from float64, loss and gradients."""
    x, head, targets = example(5)
    x, head = x.to(dtype), head.to(dtype)
    exact = results(lambda x, h: plain_loss(x, h, targets), [x, head], torch.float64)
    distances = []
    for function in LOSSES:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
            leaves = [x.detach().requires_grad_(), head.detach().requires_grad_()]
            loss = function(*leaves, targets)
        assert loss.dtype == torch.float32
        (upstream,) = normal("upstream 0", 1)
        grads = torch.autograd.grad(loss * upstream.float(), leaves)
        assert [grad.dtype for grad in grads] == [dtype] * 2
        distances.append([error(a.double(), b) for a, b in zip((loss, *grads), exact, strict=True)])
    assert all(own < 1.5 * plain + 2**-9 for own, plain in zip(*distances, strict=True)), distances
    assert distances[0][0] < 2**-8


# Allocations


class Allocations(TorchDispatchMode):
    """The largest tensor that any operation returns, in elements, and names of the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.largest, self.names = 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(func.overloadpacket.__name__)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


@contextmanager
def allocations() -> Iterator[Allocations]:
    with Allocations() as seen:
        yield seen


@pytest.mark.parametrize("function", [mean_loss, token_losses])
@pytest.mark.parametrize("cast", [False, True])
def test_logits_never_exist_as_a_whole(
    function: Function, cast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward; where the losses of tokens are wanted, without gradients, as in evaluation."""
    tokens, vocabulary = 200, 150
    monkeypatch.setattr(loss_module, "_AT_ONCE", {"cpu": 20 * vocabulary})
    x = normal("x", tokens, WIDTH, dtype=torch.float32).requires_grad_()
    head = normal("head", vocabulary, WIDTH, dtype=torch.float32).requires_grad_()
    targets = torch.arange(tokens) % vocabulary
    largest = {}
    for run in (function, LOSSES[1]):
        training = run is not token_losses
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast),
            torch.set_grad_enabled(training),
            allocations() as seen,
        ):
            loss = run(x, head, targets)
            if training:
                loss.backward()
        largest[run] = seen.largest
    assert largest[plain_loss] == tokens * vocabulary  # the yardstick works
    assert largest[function] == 20 * vocabulary


def test_without_gradients_the_loss_costs_one_product() -> None:
    x, head, targets = example(5)
    x, head = x.requires_grad_(), head.requires_grad_()
    with torch.no_grad(), FlopCounterMode(display=False) as count:
        loss = mean_loss(x, head, targets)
    assert not loss.requires_grad
    assert count.get_total_flops() == 2 * TOKENS * VOCABULARY * WIDTH
    assert error(loss, plain_loss(x, head, targets)) < 1e-14


def test_forward_writes_no_more_than_it_must(rotary: Rotary) -> None:
    """Of the split the value is a view, and no gradient is joined from parts."""
    qkv = normal("qkv", 2, 5, 3, 3, 4).requires_grad_()
    query, key, value = rotary.split(qkv)
    assert value.data_ptr() == qkv[:, :, 2].data_ptr()
    joined = normal("joined", 3, 8).requires_grad_()
    activated = gated(joined)
    with allocations() as seen:
        torch.autograd.grad([query, key, value, activated], [qkv, joined], [query, key, value, activated])
    assert not {"cat", "stack", "slice_backward", "select_backward"} & seen.names


# Autocast and tracing


def test_parts_under_autocast(rotary: Rotary) -> None:
    """bfloat16 from the products on, float32 gradients, within a few roundings of the same in float32."""
    mlp = SwiGLU(6, 8)
    for name, parameter in mlp.named_parameters():
        parameter.data = normal(name, *parameter.shape, dtype=torch.float32) / 2
    x = normal("x", 5, 6, dtype=torch.float32).requires_grad_()

    def plain(x: Tensor) -> Tensor:
        return (F.silu(x @ mlp.gate.T) * (x @ mlp.up.T)) @ mlp.output.T

    leaves = [x, *mlp.parameters()]
    expected = [plain(x), *torch.autograd.grad(plain(x).sin().sum(), leaves)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mlp(x)
        query, key, value = rotary.split(normal("qkv", 2, 5, 3, 3, 4, dtype=torch.bfloat16))
        normed = RMSNorm(6, EPS)(x)
    assert y.dtype == query.dtype == torch.bfloat16
    for found, exact in zip((query, key, value), plain_split(normal("qkv", 2, 5, 3, 3, 4)), strict=True):
        assert error(found, exact) < 0.02
    assert torch.equal(normed, RMSNorm(6, EPS)(x))
    for found, exact in zip([y, *torch.autograd.grad(y.float().sin().sum(), leaves)], expected, strict=True):
        assert error(found, exact) < 0.03


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_is_traced_whole_by_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part and the loss, in two pieces, without a break; loss and gradients as without tracing."""
    inputs, targets = (part.clone() for part in text())
    targets[1, 3:] = -100
    monkeypatch.setattr(loss_module, "_AT_ONCE", {"cpu": 1})  # the smallest piece has 16 tokens
    decoder = build(tiny_config(*SIZE, "model.num_transformer_blocks=1"), "full")
    randomise(decoder.mixer)
    leaves = [p for p in decoder.parameters() if p.requires_grad]
    torch._dynamo.reset()
    found = []
    for loss in (torch.compile(decoder.loss, backend="aot_eager", fullgraph=True), decoder.loss):
        value = loss(inputs, targets)
        found.append([value, *torch.autograd.grad(value, leaves)])
    for traced, plain in zip(*found, strict=True):
        assert (traced - plain).abs().max() <= 1e-12 * max(plain.abs().max().item(), 1e-3)
