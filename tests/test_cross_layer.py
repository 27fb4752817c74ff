"""Cross-layer schemes: DenseNet, DenseFormer's dilation and period, MUDDFormer, MRLA, Value Residual."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from analysis.matrices import from_depth_weights
from repro.depth.base import DepthMixer
from repro.depth.denseformer import DenseFormer
from repro.depth.densenet import DenseNet
from repro.depth.facts import num_parameters, state_per_token
from repro.depth.matrix import depth_matrix
from repro.depth.mrla import MRLA
from repro.depth.muddformer import MUDDFormer
from repro.depth.prenorm import PreNorm
from repro.depth.static import Static
from repro.depth.value_residual import ValueResidual
from repro.errors import ConfigError
from repro.ops.head_mix import head_scores, head_sum
from repro.train.evaluate import DepthWeightRecorder
from tests.decoders import SIZE, build, tokens
from tests.tiny import tiny_config
from tests.toy import Toy, default_dtype, error, normal, randomise

L, WIDTH = 9, 16


def double(scheme: Any, num_sublayers: int = L, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


@pytest.fixture(scope="module")
def prenorm(config: DictConfig) -> Tensor:
    with torch.no_grad():
        return build(config, "prenorm")(tokens())


SCHEMES: dict[str, tuple[type[DepthMixer], dict[str, Any]]] = {
    "densenet": (DenseNet, {}),
    "denseformer 2x1": (DenseFormer, {"dilation": 2}),
    "denseformer 2x3": (DenseFormer, {"dilation": 2, "period": 3}),
    "muddformer": (MUDDFormer, {}),
    "mrla": (MRLA, {"heads": 2}),
    "mrla softmax": (MRLA, {"heads": 2, "act": "softmax"}),
    "value residual": (ValueResidual, {}),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_gradients(name: str) -> None:
    """Of the embedding and of every parameter at random values, against finite differences."""
    scheme, options = SCHEMES[name]
    mixer = randomise(double(scheme, 6, 4, eps=1e-3, **options))
    if name == "muddformer":  # 64 hidden units or more: as many as are needed to see all paths
        for i in range(3):
            mixer.first[i] = torch.nn.Parameter(mixer.first[i][:3].detach())
            mixer.second[i] = torch.nn.Parameter(mixer.second[i][:, :3].detach())
    toy = Toy(6, 4, embedding_std=1.0, output_std=1.0, tokens=(1, 2))
    # The arguments are the very tensors that the closure uses, so perturbing them perturbs the network.
    leaves = (toy.embedding, *mixer.parameters())
    assert torch.autograd.gradcheck(lambda *_: toy.run(mixer, eps=1e-3), leaves)


# DenseFormer with dilation and period


def averages(mixer: DenseFormer, num_blocks: int, k: int, p: int) -> dict[int, dict[int, Tensor]]:
    """alpha_ij by block i and state j, in the order in which they are stored: row by row."""
    entries = iter(mixer.scalars)
    alpha = {
        i: {j: next(entries) for j in range(i + 1) if (i - j) % k == 0}
        for i in range(1, num_blocks + 1)
        if i % p == 0
    }
    assert next(entries, None) is None
    return alpha


@pytest.mark.parametrize(("k", "p"), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 3), (4, 3), (10, 10)])
@pytest.mark.parametrize("execution", ["two_phase", "per_read"])
def test_dilation_and_period_follow_their_definition(k: int, p: int, execution: str) -> None:
    """Y_i = sum of alpha_ij X_j over j = i, i - k, i - 2k, ... if p divides i, else X_i; ten blocks."""
    mixer = randomise(double(DenseFormer, 19, dilation=k, period=p, execution=execution))
    alpha = averages(mixer, 10, k, p)
    toy = Toy(19, WIDTH)
    reads, xs, stream = [], [toy.embedding], toy.embedding
    for i in range(1, 11):
        for l in range(2 * i - 2, min(2 * i, 19)):
            reads.append(stream)
            stream = stream + toy.sublayer(l, stream)
        xs.append(stream)
        if i in alpha:
            stream = torch.stack([a * xs[j] for j, a in alpha[i].items()]).sum(0)
    for found, expected in zip(toy.walk(mixer), [*reads, stream], strict=True):
        assert error(found, expected) < 1e-13


@pytest.mark.parametrize(("k", "p"), [(1, 1), (2, 1), (4, 3), (8, 8)])
def test_any_dilation_and_period_start_as_prenorm_bit_for_bit(k: int, p: int) -> None:
    toy = Toy(16, WIDTH, dtype=torch.float32)
    baseline = toy.walk(PreNorm(16, WIDTH), eps=1e-8)
    for execution in DenseFormer.executions:
        reads = toy.walk(DenseFormer(16, WIDTH, dilation=k, period=p, execution=execution), eps=1e-8)
        assert all(torch.equal(a, b) for a, b in zip(reads, baseline, strict=True))


def test_the_defaults_are_no_dilation_and_every_block() -> None:
    toy = Toy(L, WIDTH)
    plain, stated = randomise(double(DenseFormer)), randomise(double(DenseFormer, dilation=1, period=1))
    assert all(torch.equal(a, b) for a, b in zip(toy.walk(plain), toy.walk(stated), strict=True))
    assert (plain.dilation, plain.period) == (1, 1)


@pytest.mark.parametrize(("k", "p", "expected"), [(1, 1, 152), (4, 1, 44), (4, 5, 9), (16, 16, 2)])
def test_scalars_of_sixteen_blocks(k: int, p: int, expected: int) -> None:
    """sum over i = p, 2p, ... of floor(i / k) + 1: 16 19 / 2; 3 1 + 4 2 + 4 3 + 4 4 + 5; 2 + 3 + 4; 2."""
    assert DenseFormer(32, 4, dilation=k, period=p).scalars.numel() == expected


@pytest.mark.parametrize(("k", "p"), [(2, 1), (1, 2), (2, 3), (3, 2)])
def test_recorded_averages_give_the_matrix(k: int, p: int) -> None:
    mixer, toy = randomise(double(DenseFormer, 8, dilation=k, period=p)), Toy(8, WIDTH, embedding_std=1.0)
    expected = depth_matrix(mixer, toy.embedding, toy.sublayer).weights.mean((2, 3, 4)).numpy()
    recorder = DepthWeightRecorder(mixer, 5)
    with recorder, torch.no_grad():
        toy.walk(mixer)
    found = from_depth_weights({"mean": recorder.arrays()["mean"][None], **recorder.labels()})
    assert found is not None
    assert np.abs(found - expected).max() < 1e-12


# DenseNet


@pytest.mark.parametrize("num_sublayers", [1, 8])
def test_densenet_of_identities_is_prenorm(num_sublayers: int) -> None:
    """W_l [v_0; ...; v_l] = sum_i v_i, in every read and in the output."""
    toy = Toy(num_sublayers, WIDTH)
    pairs = zip(
        toy.walk(double(DenseNet, num_sublayers)), toy.walk(PreNorm(num_sublayers, WIDTH)), strict=True
    )
    assert all(error(a, b) < 1e-14 for a, b in pairs)


def test_densenet_projects_what_was_written() -> None:
    mixer, toy = randomise(double(DenseNet, 4)), Toy(4, WIDTH)
    sources = [toy.embedding]
    for l, x in enumerate(toy.walk(mixer)):
        parts = mixer.projections[l].split(WIDTH, dim=1)
        expected = torch.stack([v @ w.T for v, w in zip(sources, parts, strict=True)]).sum(0)
        assert error(x, expected) < 1e-13
        if l < 4:
            sources.append(toy.sublayer(l, x))


def test_densenet_counts_and_its_random_start() -> None:
    """(L + 1)(L + 2) / 2 matrices of D^2, 2 D^2 operations each; the state is all that was written."""
    assert num_parameters(DenseNet(6, 10)) == 28 * 100
    assert DenseNet(6, 10).flops_per_token() == 2 * 28 * 100
    assert state_per_token(lambda width: DenseNet(6, width), 8) == (7, 0)
    assert DenseNet(2, 16).normal_init == {}
    stds = DenseNet(2, 16, init="fan_in").normal_init
    assert stds == {"projections.0": 0.25, "projections.1": 32**-0.5, "projections.2": 48**-0.5}


def test_densenet_of_multiples_of_the_identity_is_static_mixing() -> None:
    """W_{l,i} = c_li I is the raw scalar c_li, and then the matrix of Fig. 9 is exact."""
    static, dense, toy = randomise(double(Static, 5, weights="raw")), double(DenseNet, 5), Toy(5, WIDTH)
    scalars = static.matrix(torch.float64)
    with torch.no_grad():
        for l, projection in enumerate(dense.projections):
            projection.copy_(torch.kron(scalars[l, : l + 1], torch.eye(WIDTH, dtype=torch.float64)))
    assert all(error(a, b) < 1e-13 for a, b in zip(toy.walk(dense), toy.walk(static), strict=True))
    found = depth_matrix(dense, toy.embedding, toy.sublayer)
    assert found.residual < 1e-13
    assert error(found.weights[:, :, 0, 1, 2], scalars.detach()) < 1e-13


# MRLA


def test_mrla_against_a_loop() -> None:
    """One token, head and channel at a time, with NumPy's convolution."""
    for act in ("sigmoid", "softmax"):
        mixer = randomise(double(MRLA, 4, heads=2, kernel=5, act=act, eps=1e-6))
        toy = Toy(4, WIDTH, embedding_std=1.0, output_std=1.0)
        reads, written = toy.walk(mixer), [toy.embedding]
        written += [toy.sublayer(l, x) for l, x in enumerate(reads[:-1])]
        for l, read in enumerate(reads):
            assert error(read[1, 3], mrla_by_definition(mixer, [v[1, 3] for v in written[: l + 1]])) < 1e-12


def mrla_by_definition(mixer: MRLA, sources: list[Tensor]) -> Tensor:
    """The read over all given sources, [D] each."""

    def convolved(x: Tensor, kernel: Tensor) -> np.ndarray:
        x = x / torch.sqrt((x**2).mean() + 1e-6)
        return np.convolve(x.detach().numpy(), kernel.detach().numpy()[::-1], mode="same")

    def sigmoid(x: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-x))

    query = convolved(sources[-1], mixer.query_kernels[len(sources) - 1])
    keys = [convolved(x, mixer.key_kernels[i]) for i, x in enumerate(sources)]
    out = np.zeros(WIDTH)
    for head in (slice(0, WIDTH // 2), slice(WIDTH // 2, WIDTH)):
        if mixer.act == "sigmoid":
            weights = np.array([sigmoid(query[head]) @ sigmoid(key[head]) for key in keys])
        else:
            weights = np.exp([query[head] @ key[head] / math.sqrt(WIDTH // 2) for key in keys])
            weights = weights / weights.sum()
        for weight, gain, x in zip(weights, mixer.value_gains, sources, strict=False):
            out[head] += weight * (gain * x).detach().numpy()[head]
    return torch.from_numpy(out)


@pytest.mark.parametrize("act", ["sigmoid", "softmax"])
def test_mrla_starts_as_prenorm_without_eps(act: str) -> None:
    """Zero kernels of the queries give equal weights: D / 4H by sigmoids of zero, or 1 / S."""
    toy, mixer = Toy(12, WIDTH), double(MRLA, 12, act=act, eps=0.0)
    assert error(toy.run(mixer), toy.run(PreNorm(12, WIDTH))) < 1e-12
    weight = 1.0 if act == "sigmoid" else 1 / 3  # D / 4H = 16 / 16
    found = depth_matrix(mixer, toy.embedding, toy.sublayer).weights
    assert (found[2, :3] - weight).abs().max() < 1e-14


def test_mrla_counts() -> None:
    """L + 1 of each: two kernels of three, one gain per channel; keys, values, one query."""
    assert num_parameters(MRLA(6, 8)) == 7 * (3 + 3 + 8)
    assert state_per_token(lambda width: MRLA(6, width), 8) == (7 + 7 + 1, 0)


def test_scores_and_sums_by_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions against einsum, their gradients, and the form that is compiled."""
    query, keys = normal("query", 3, 2, 6), [normal(f"key {i}", 3, 2, 6) for i in range(4)]
    weights = normal("weights", 4, 3, 2, 3)
    stacked = torch.stack(keys).unflatten(-1, (3, 2))
    scores = torch.einsum("bthc,sbthc->sbth", query.unflatten(-1, (3, 2)), stacked)
    mixed = torch.einsum("sbth,sbthc->bthc", weights, stacked).flatten(-2)
    for compiled in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiled=compiled: compiled)
        assert error(head_scores(query, keys, 3)[0], scores) < 1e-14
        assert error(head_sum(weights, keys)[0], mixed) < 1e-14
    monkeypatch.undo()
    leaves = [x.requires_grad_() for x in (weights, query, *keys)]

    def two_reads(w: Tensor, q: Tensor, *k: Tensor) -> tuple[Tensor, ...]:
        """The second goes on with what the first returned, so both add to one gradient."""
        first, k = head_scores(q, k, 3)
        second, k = head_scores(2 * q, k[1:], 3)
        x, k = head_sum(w[:3], k)
        return first, second, x, head_sum(w[2:], k[1:])[0]

    assert torch.autograd.gradcheck(two_reads, leaves)


# Bad input


@pytest.mark.parametrize(
    ("scheme", "options", "key"),
    [
        (DenseFormer, {"dilation": 0}, "dilation"),
        (DenseFormer, {"dilation": 6}, "dilation"),  # five blocks in nine sublayers
        (DenseFormer, {"dilation": 2.0}, "dilation"),
        (DenseFormer, {"dilation": 2, "over": "sublayers"}, "dilation"),
        (DenseFormer, {"period": 0}, "period"),
        (DenseFormer, {"period": 6}, "period"),
        (DenseFormer, {"period": True}, "period"),
        (DenseNet, {"init": "zero"}, "init"),
        (MUDDFormer, {"mlp_growth": 1}, "mlp_growth"),
        (MRLA, {"heads": 3}, "heads"),
        (MRLA, {"kernel": 4}, "kernel"),
        (MRLA, {"act": "tanh"}, "act"),
        (ValueResidual, {"own": "half"}, "own"),
        (ValueResidual, {"first": math.inf}, "first"),
    ],
)
def test_bad_options_name_their_key(scheme: type[DepthMixer], options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(L, WIDTH, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert "\n" not in str(caught.value)
