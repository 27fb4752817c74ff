"""Residual schemes against PreNorm and against independent references, in a stand-in network (toy.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth import scalar_mixing
from repro.depth.ancre import ANCRe
from repro.depth.attnres import AttnRes
from repro.depth.base import DepthMixer
from repro.depth.ddl import DDL
from repro.depth.denseformer import DenseFormer
from repro.depth.densenet import DenseNet
from repro.depth.hc import HyperConnections
from repro.depth.hyper_connections import MHC, MHCIdentity, MHCLite
from repro.depth.inputs import value_input
from repro.depth.mrla import MRLA
from repro.depth.muddformer import MUDDFormer
from repro.depth.prenorm import PreNorm
from repro.depth.residual_scalars import ResidualScalars
from repro.depth.static import Static
from repro.errors import ConfigError
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

L, WIDTH = 9, 16


def double(scheme: Any, num_sublayers: int = L, width: int = WIDTH, **options: Any) -> DepthMixer:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


# DenseFormer


@pytest.mark.parametrize("num_sublayers", [1, 2, 8, 9, 40])
def test_denseformer_over_blocks_starts_as_prenorm_bit_for_bit(num_sublayers: int) -> None:
    toy = Toy(num_sublayers, WIDTH, dtype=torch.float32)
    baseline = toy.walk(PreNorm(num_sublayers, WIDTH), eps=1e-8)
    for execution in DenseFormer.executions:
        reads = toy.walk(DenseFormer(num_sublayers, WIDTH, execution=execution), eps=1e-8)
        assert all(torch.equal(a, b) for a, b in zip(reads, baseline, strict=True))


@pytest.mark.parametrize("num_sublayers", [1, 8, 40])
def test_denseformer_over_sublayers_starts_as_prenorm(num_sublayers: int) -> None:
    toy = Toy(num_sublayers, WIDTH)
    baseline = toy.walk(PreNorm(num_sublayers, WIDTH))
    per_read = toy.walk(double(DenseFormer, num_sublayers, over="sublayers", execution="per_read"))
    assert all(torch.equal(a, b) for a, b in zip(per_read, baseline, strict=True))
    two_phase = toy.walk(double(DenseFormer, num_sublayers, over="sublayers"))
    assert max(error(a, b) for a, b in zip(two_phase, baseline, strict=True)) < 1e-13


def test_denseformer_follows_its_definition() -> None:
    """Y_i = sum_j alpha_ij X_j with arbitrary alpha, for three blocks and an odd last sublayer."""
    mixer = randomise(double(DenseFormer, 7))
    alpha = torch.zeros(5, 5, dtype=torch.float64)
    alpha[0, 0] = 1
    entries = iter(mixer.scalars.tolist())
    for i in range(1, 5):
        for j in range(i + 1):
            alpha[i, j] = next(entries)
    assert next(entries, None) is None
    toy = Toy(7, WIDTH)
    f = [lambda x, w=w: 0.02 * torch.tanh(rms_norm(x, 0.0) @ w) for w in toy.matrices]
    xs, stream = [toy.embedding], toy.embedding
    for i, block in enumerate(([0, 1], [2, 3], [4, 5], [6]), start=1):
        for l in block:
            stream = stream + f[l](stream)
        xs.append(stream)
        stream = sum(alpha[i, j] * x for j, x in enumerate(xs))
    assert error(toy.walk(mixer)[-1], stream) < 1e-14


def test_number_of_scalars() -> None:
    """d (d + 3) / 2: 16 transformer blocks or 32 sublayers."""
    assert DenseFormer(32, 4).scalars.numel() == 152
    assert DenseFormer(32, 4, over="sublayers").scalars.numel() == 560
    assert Static(32, 4).scalars.numel() == 560


# input-independent mixing


@pytest.mark.parametrize("weights", ["softmax", "raw"])
@pytest.mark.parametrize("num_sublayers", [1, 9, 20])
def test_static_starts_as_the_mean(weights: str, num_sublayers: int) -> None:
    mixer = double(Static, num_sublayers, weights=weights)
    toy = Toy(num_sublayers, WIDTH)
    state, sources = mixer.begin(toy.embedding), [toy.embedding]
    for l in range(num_sublayers + 1):
        x, state = mixer.read(state, l) if l < num_sublayers else (mixer.finish(state), state)
        assert error(x, torch.stack(sources).mean(0)) < 1e-14
        if l < num_sublayers:
            sources.append(normal(f"output {l}", *toy.embedding.shape))
            state = mixer.write(state, l, sources[-1])


def test_static_softmax_rows_are_distributions_over_the_past() -> None:
    mixer = randomise(double(Static, 20), std=2.0)
    matrix = mixer.matrix(torch.float64)
    assert matrix.shape == (21, 21)
    assert torch.equal(matrix, matrix.tril())
    torch.testing.assert_close(matrix.sum(1), torch.ones(21, dtype=torch.float64), rtol=0, atol=1e-14)
    # Row 3 by hand: entries are packed row by row from row 1, so row 3 follows 2 + 3 others.
    expected = torch.exp(mixer.scalars[5:9]) / torch.exp(mixer.scalars[5:9]).sum()
    torch.testing.assert_close(matrix[3, :4], expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [(Static, {}), (Static, {"weights": "raw"}), (DenseFormer, {}), (DenseFormer, {"over": "sublayers"})],
)
@pytest.mark.parametrize("num_sublayers", [1, 8, 9, 20, 33])
def test_scalar_mixing_executions_agree_in_value_and_gradient(
    scheme: type[DepthMixer], options: dict[str, str], num_sublayers: int
) -> None:
    results = []
    for execution in scheme.executions:
        mixer = randomise(double(scheme, num_sublayers, execution=execution, **options))
        assert mixer.execution == execution
        toy = Toy(num_sublayers, WIDTH)
        out = toy.run(mixer, eps=1e-12)
        loss = (out * normal("loss", *out.shape)).sum()
        results.append((out, *torch.autograd.grad(loss, [mixer.scalars, toy.embedding])))
    for a, b in zip(*results, strict=True):
        assert error(a, b) < 1e-11


@pytest.mark.parametrize("group_size", [2, 100])
def test_scalar_mixing_gradcheck(group_size: int) -> None:
    def reads(weights: Tensor, *sources: Tensor) -> Tensor:
        history = scalar_mixing.start(weights, sources[0], group_size)
        outputs = [scalar_mixing.mixed(history, torch.float64)]
        for source in sources[1:]:
            history = scalar_mixing.append(history, source)
            outputs.append(scalar_mixing.mixed(history, torch.float64))
        return torch.stack(outputs)

    sources = [normal(f"source {i}", 1, 2, 3).requires_grad_() for i in range(6)]
    assert torch.autograd.gradcheck(reads, (normal("weights", 6, 6).requires_grad_(), *sources))


# zero initialisation and eps

START_AS_PRENORM = {
    "Full": (AttnRes, {}),
    **{f"Block S={s}": (AttnRes, {"block_size": s}) for s in (2, 3, 4, 5, 8, 16, 31, 32)},
    "Block N=8": (AttnRes, {"num_blocks": 8}),
    "static": (Static, {}),
    "static raw": (Static, {"weights": "raw"}),
}


@pytest.mark.parametrize("name", START_AS_PRENORM)
def test_zero_initialisation_is_prenorm_as_eps_vanishes(name: str) -> None:
    scheme, options = START_AS_PRENORM[name]
    toy, baseline = Toy(32, WIDTH), PreNorm(32, WIDTH)
    mixer = double(scheme, 32, eps=0.0, **options)
    assert error(toy.run(mixer), toy.run(baseline)) < 1e-12
    deviations = [error(toy.run(mixer, eps=eps), toy.run(baseline, eps=eps)) for eps in (1e-5, 1e-6, 1e-8)]
    print(f"{name}: deviation from PreNorm at eps 1e-5, 1e-6, 1e-8:", *(f"{d:.1e}" for d in deviations))
    # The deviation is first order in eps over the mean square of the read.
    assert deviations[0] > deviations[1] > 10 * deviations[2]


def test_the_window_does_not_start_as_prenorm() -> None:
    toy, mixer = Toy(32, WIDTH), double(AttnRes, 32, eps=0.0, window=8)
    assert error(toy.run(mixer), toy.run(PreNorm(32, WIDTH))) > 0.01
    wide = double(AttnRes, 32, eps=0.0, window=32)
    assert error(toy.run(wide), toy.run(PreNorm(32, WIDTH))) < 1e-12


# precision and options


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (Static, {}),
        (DenseFormer, {}),
        (DenseFormer, {"over": "sublayers"}),
        (MHC, {}),
        (MHCLite, {}),
        (MHCIdentity, {}),
        (HyperConnections, {"dynamic": True}),
        (HyperConnections, {"dynamic": False}),
        (DDL, {"streams": 1}),
        (DDL, {"streams": 4, "conv": 2}),
        (ANCRe, {}),
        (ResidualScalars, {}),
        (DenseNet, {}),
        (MUDDFormer, {}),
        (MRLA, {}),
    ],
)
def test_coefficients_ignore_autocast(scheme: type[DepthMixer], options: dict[str, Any]) -> None:
    """Under autocast a scheme keeps fp32: outputs that bf16 can represent give the same bits as without."""
    mixer = randomise(scheme(20, WIDTH, **options))
    embedding = normal("embedding", 2, 5, WIDTH, dtype=torch.float32)
    results = []
    for autocast, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            state = mixer.begin(embedding)
            for l in range(20):
                x, state = mixer.read(state, l)
                assert value_input(x).dtype == torch.float32
                output = normal(f"output {l}", 2, 5, WIDTH, dtype=torch.bfloat16).to(dtype)
                state = mixer.write(state, l, output.requires_grad_())
            results.append(mixer.finish(state))
        results[-1].sum().backward()
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("scheme", "options", "key"),
    [
        (Static, {"weights": "sigmoid"}, "arm.mixer.weights"),
        (DenseFormer, {"over": "layers"}, "arm.mixer.over"),
        (MHC, {"streams": 0}, "arm.mixer.streams"),
        (MHC, {"streams": 2.5}, "arm.mixer.streams"),
        (MHC, {"streams": True}, "arm.mixer.streams"),
        (MHC, {"iterations": -1}, "arm.mixer.iterations"),
        (MHC, {"init": "identity"}, "arm.mixer.init"),
        (MHCLite, {"streams": 6}, "arm.mixer.streams"),
    ],
)
def test_bad_options_name_their_key(scheme: type[DepthMixer], options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(L, WIDTH, **options)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
