"""Backends fla and liger: what they refuse, and that a package's operation is called as its source asks.

Where a package is not installed, a stand-in with its signatures and its demands computes the definition.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.base import DepthMixer
from repro.errors import ConfigError
from repro.ops import packages
from repro.train import settings
from tests.tiny import tiny_config
from tests.toy import close, normal, randomise

NAMES = ("fla", "liger")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def definition(query: Tensor, stack: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Eqs. 2 to 4 of [S, ..., D], written out anew."""
    keys = stack.float() / (stack.float().square().mean(-1, keepdim=True) + eps).sqrt() * gain
    weights = (keys @ query).softmax(0)
    return (weights.unsqueeze(-1) * stack.float()).sum(0).to(stack.dtype), weights


class FakeFla:
    """`fla.ops.attnres` 0.6.0: sources that can be viewed as rows; the fused operation on a GPU only."""

    @staticmethod
    def naive_attnres(
        query: Tensor,
        residuals: Sequence[Tensor],
        rms_weight: Tensor,
        *,
        rms_eps: float,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor]:
        rows = torch.stack([residual.view(-1, residual.shape[-1]) for residual in residuals])
        mixed, weights = definition(query, rows, rms_weight, rms_eps)
        return mixed.view(residuals[0].shape), weights.view(len(residuals), *residuals[0].shape[:-1])

    @classmethod
    def fused_attnres(cls, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        assert arguments[1][0].is_cuda
        assert all(residual.data_ptr() % 16 == 0 for residual in arguments[1])
        return cls.naive_attnres(*arguments, **options)


class FakeLiger:
    """`liger_kernel.ops.attn_res` 0.8.5: a stack of sources, weights [rows, S], gradients by a call."""

    @staticmethod
    def attn_res_forward(
        blocks: Tensor, w_query: Tensor, w_norm: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rows = blocks.reshape(len(blocks), -1, blocks.shape[-1])
        mixed, weights = definition(w_query, rows, w_norm, eps)
        inverse = (rows.float().square().mean(-1) + eps).rsqrt()
        return mixed.view(blocks.shape[1:]), rows, weights.T.contiguous(), inverse.T.contiguous()

    @staticmethod
    def attn_res_backward(
        dh: Tensor, V_3d: Tensor, w_query: Tensor, w_norm: Tensor, Alpha: Tensor, RSTD: Tensor, eps: float
    ) -> tuple[Tensor, ...]:
        assert Alpha.shape == RSTD.shape == (V_3d.shape[1], len(V_3d))
        inputs = [tensor.detach().requires_grad_() for tensor in (V_3d, w_query, w_norm)]
        with torch.enable_grad():
            mixed, _ = definition(inputs[1], inputs[0], inputs[2], eps)
        return torch.autograd.grad(mixed, inputs, dh.reshape(V_3d.shape[1:]))


FAKES = {"fla": FakeFla, "liger": FakeLiger}


@pytest.fixture(autouse=True)
def checked_anew() -> Iterator[None]:
    """Packages come and go in these tests."""
    packages.check.cache_clear()
    yield
    packages.check.cache_clear()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_version", lambda distribution: None)
    monkeypatch.setattr(packages, "_interpreted", lambda: True)
    for name, (_, _, module) in packages.PACKAGES.items():
        parts = module.split(".")
        for end in range(1, len(parts)):
            package = type(sys)(".".join(parts[:end]))
            package.__path__ = []
            monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, module, FAKES[name])  # type: ignore[arg-type]


@pytest.fixture(params=["stand-in", "installed"])
def each(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Prepares the operation of a backend: a stand-in, or the package where there is one."""
    if request.param == "stand-in":
        request.getfixturevalue("fakes")
        return lambda name: None

    def prepare(name: str) -> None:
        if importlib.util.find_spec(packages.PACKAGES[name][2].partition(".")[0]) is None:
            pytest.skip(f"{packages.PACKAGES[name][0]} is not installed")

    return prepare


# Reads


def leaves(*leading: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Nine leaves: sources as tensors of their own, and of every other layout below."""
    drawn = [normal(f"leaf {i}", *leading, width).to(dtype) for i in range(9)]
    return [leaf.to(DEVICE).requires_grad_() for leaf in drawn]


def layouts(leaves: list[Tensor]) -> list[Tensor]:
    """Swapped leading axes, an odd offset, one row for all tokens, and a source that comes twice."""
    first, swapped, offset, expanded, *rest = leaves
    if first.dim() > 2:
        swapped = (2 * swapped.transpose(0, 1)).contiguous().transpose(0, 1)
        expanded = expanded[:1, :1].expand_as(first)
    offset = torch.cat([offset.new_zeros(1), offset.flatten()])[1:].view_as(first)
    return [first, swapped, offset, expanded, *rest, first]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("leading", [(), (2, 3)], ids=str)
@pytest.mark.parametrize("with_gain", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_read_and_its_gradients(
    name: str, with_gain: bool, leading: tuple[int, ...], dtype: torch.dtype, each: Callable[[str], None]
) -> None:
    """Against the definition in float64, of the same rounded numbers."""
    each(name)
    narrow = dtype != torch.float32
    results = []
    for backend in (name, "reference"):
        tensors = leaves(*leading, width=12, dtype=dtype)
        vectors = [normal(n, 12, dtype=torch.float32).to(DEVICE) for n in ("query", "gain")]
        upstream = normal("upstream", *leading, 12).to(dtype).to(DEVICE)
        if backend == "reference":
            tensors = [leaf.detach().double().requires_grad_() for leaf in tensors]
            vectors, upstream = [vector.double() for vector in vectors], upstream.double()
        query, gain = (vector.requires_grad_() for vector in vectors)
        mixed, weights = ops.depth_mix(
            layouts(tensors), query, key_weight=gain if with_gain else None, eps=1e-5, backend=backend
        )
        if backend == name:
            assert not weights.requires_grad
            assert (mixed.dtype, weights.dtype) == (dtype, torch.float32)
            assert weights.shape == (10, 1, *leading)
        inputs = [*tensors, query, *([gain] if with_gain else [])]
        grads = torch.autograd.grad(mixed, inputs, upstream)
        results.append([mixed.detach(), weights.detach(), *grads])
    for number, (own, expected) in enumerate(zip(*results, strict=True)):
        wide = own.double()
        assert close(wide, expected, 2e-3 if narrow else 1e-5), number


@pytest.mark.parametrize("name", NAMES)
def test_attnres_reads_with_it(name: str, each: Callable[[str], None]) -> None:
    """The scheme computes its reads with the package whatever execution is asked for, and records weights."""
    each(name)
    outputs = [normal(f"output {l}", 2, 3, 8, dtype=torch.float32).to(DEVICE) for l in range(6)]
    found: dict[str, list[Tensor]] = {}
    for backend in (name, "reference"):
        mixer = randomise(AttnRes(5, 8, block_size=2, execution="two_phase", backend=backend)).to(DEVICE)
        assert mixer.execution == ("per_read" if backend == name else "two_phase")
        seen: list[Tensor] = []
        mixer.tap = lambda l, weights, seen=seen: seen.append(weights)
        seen.append(walk(mixer, outputs))
        seen[-1].square().sum().backward()
        grads = [parameter.grad for parameter in mixer.parameters()]
        found[backend] = [*seen, *(grad for grad in grads if grad is not None)]
    for number, (own, expected) in enumerate(zip(*found.values(), strict=True)):
        assert close(own, expected, 1e-5), number


def walk(mixer: DepthMixer, outputs: list[Tensor]) -> Tensor:
    state = mixer.begin(outputs[0])
    for l, output in enumerate(outputs[1:]):
        read, state = mixer.read(state, l)
        state = mixer.write(state, l, read * output)
    return mixer.finish(state)


# Refusals

X, Q = torch.zeros(2, 4), torch.zeros(4)


@pytest.mark.parametrize(
    ("query", "options", "said"),
    [
        (Q, {"act": "sigmoid"}, "act='sigmoid', only softmax"),
        (Q, {"act": "sigmoid_normalized"}, "act='sigmoid_normalized', only softmax"),
        (Q, {"heads": 2}, "heads=2, only one"),
        (Q, {"key_norm": False}, "key_norm=False, only normalised keys"),
        (X, {}, r"query that depends on the input, only one \[D\] for all tokens"),
        (Q.double(), {}, "float64, it computes in float32"),
        (Q, {"key_weight": Q.double()}, "float64, it computes in float32"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("fakes")
def test_a_read_outside_the_contract(name: str, query: Tensor, options: dict[str, Any], said: str) -> None:
    refused = f"backend '{name}' cannot compute this read: {packages.PACKAGES[name][0]} has no {said}"
    query, x = query.to(DEVICE), X.to(DEVICE)
    options = {
        key: value.to(DEVICE) if isinstance(value, Tensor) else value for key, value in options.items()
    }
    with pytest.raises(ValueError, match=refused) as caught:
        ops.depth_mix([x, x], query, backend=name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("fakes")
def test_phases_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"backend '{name}' computes single reads only"):
        ops.score(X.to(DEVICE), Q.to(DEVICE)[None], backend=name)


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_not_there_or_too_old(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution, oldest, module = packages.PACKAGES[name]
    needs = f"backend '{name}' needs {distribution} {'.'.join(map(str, oldest))} or later"
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("importlib.metadata.version", lambda distribution: "0.5.12")
    with pytest.raises(ValueError, match=f"{needs}, found 0.5.12$"):
        ops.pick(name, "cuda")
    monkeypatch.setattr("importlib.metadata.version", lambda distribution: "1.0rc1")
    with pytest.raises(ValueError, match=rf"{needs} \(.*{module.partition('.')[0]}.*\)$") as caught:
        ops.pick(name, "cuda")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("fakes")
def test_kernels_run_on_a_gpu_or_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_interpreted", lambda: False)
    assert ops.pick("fla", "cpu") == "fla"
    assert ops.pick("liger", "cuda") == "liger"
    with pytest.raises(ValueError, match=r"needs tensors on a GPU, not on cpu .*TRITON_INTERPRET=1"):
        ops.pick("liger", "cpu")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("fakes")
def test_training_in_float64_is_refused_before_it_starts(name: str) -> None:
    settings.check_device(tiny_config(f"runtime.backend={name}"))
    with pytest.raises(ConfigError, match=f"precision='64-true': 32-true with runtime.backend={name}"):
        settings.check_device(tiny_config(f"runtime.backend={name}", "precision=64-true"))


@pytest.mark.usefixtures("fakes")
def test_compiled_code_calls_the_package_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither imports nor the package's own dispatch are traced."""
    plain, traced = FakeFla.naive_attnres, []

    def naive_attnres(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        traced.append(torch.compiler.is_compiling())
        return plain(*arguments, **options)

    monkeypatch.setattr(FakeFla, "naive_attnres", naive_attnres)
    x, query = normal("x", 3, 4, dtype=torch.float32), normal("query", 4, dtype=torch.float32)
    compiled = torch.compile(
        lambda x: 2 * ops.depth_mix([x, x + 1], query, backend="fla")[0], backend="eager"
    )
    expected = 2 * ops.depth_mix([x, x + 1], query, backend="reference")[0]
    assert close(compiled(x), expected, 1e-6)
    assert traced == [False]
