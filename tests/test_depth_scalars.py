"""ANCRe and residual scalars: where they are PreNorm, their definitions and their matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analysis.matrices import EXACT, cut_ranks
from repro.depth.ancre import ANCRe
from repro.depth.base import DepthMixer
from repro.depth.facts import num_parameters, state_per_token
from repro.depth.prenorm import PreNorm
from repro.depth.residual_scalars import ResidualScalars
from repro.errors import ConfigError
from tests.test_matrix import Network
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

L, WIDTH = 9, 16


def double(scheme: Any, num_sublayers: int = L, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


def sublayer(toy: Toy, l: int, x: Tensor) -> Tensor:
    return toy.output_std * torch.tanh(rms_norm(x, 0.0) @ toy.matrices[l])


# ANCRe


@pytest.mark.parametrize("num_sublayers", [1, 2, 9, 20])
def test_all_weight_on_the_last_state_is_prenorm(num_sublayers: int) -> None:
    """exp(-1000) is 0, so each softmax is exactly one on the last state: h + f(h)."""
    mixer, toy = double(ANCRe, num_sublayers), Toy(num_sublayers, WIDTH)
    rows, columns = mixer.positions
    with torch.no_grad():
        mixer.scalars.copy_(torch.where(rows == columns, 1000.0, 0.0))
        for a, b in zip(toy.walk(mixer), toy.walk(PreNorm(num_sublayers, WIDTH)), strict=True):
            assert error(a, b) < 1e-14


def test_zero_coefficients_take_the_mean_of_all_states() -> None:
    """h_{l+1} = f_l(h_l) + (h_0 + ... + h_l) / (l + 1)."""
    toy = Toy(L, WIDTH)
    states = [toy.embedding]
    for l in range(L):
        states.append(sublayer(toy, l, states[-1]) + torch.stack(states).mean(0))
    for a, b in zip(toy.walk(double(ANCRe)), states, strict=True):
        assert error(a, b) < 1e-14


@pytest.mark.parametrize("temperature", [0.1, 1.0, 4.0])
def test_the_share_of_the_last_state_at_the_start(temperature: float) -> None:
    """p on the diagonal, the rest even, whatever the temperature; row 0 has one state."""
    matrix = double(ANCRe, 5, previous=0.9, temperature=temperature).matrix(torch.float64)
    expected = [[1, 0, 0, 0, 0], [0.1, 0.9, 0, 0, 0], [0.05, 0.05, 0.9, 0, 0]]
    expected += [[0.1 / 3] * 3 + [0.9, 0], [0.025] * 4 + [0.9]]
    np.testing.assert_allclose(matrix.detach().numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("execution", ["per_read", "two_phase"])
def test_ancre_follows_its_definition(execution: str) -> None:
    """Twenty sublayers are three groups of `two_phase`."""
    mixer, toy = double(ANCRe, 20, temperature=0.5, execution=execution), Toy(20, WIDTH)
    randomise(mixer, std=1.0)
    states, entries = [toy.embedding], iter(mixer.scalars)
    for l in range(20):
        c = torch.stack([next(entries) for _ in range(l + 1)]) if l else torch.zeros(1)
        weights = torch.exp(2 * c) / torch.exp(2 * c).sum()
        shortcut = sum(w * h for w, h in zip(weights, states, strict=True))
        states.append(sublayer(toy, l, states[-1]) + shortcut)
    assert next(entries, None) is None
    for a, b in zip(toy.walk(mixer), states, strict=True):
        assert error(a, b) < 1e-12


@pytest.mark.parametrize("num_sublayers", [1, 8, 9, 17])
def test_ancre_executions_agree_in_value_and_gradient(num_sublayers: int) -> None:
    results = []
    for execution in ANCRe.executions:
        mixer, toy = randomise(double(ANCRe, num_sublayers, execution=execution)), Toy(num_sublayers, WIDTH)
        out = toy.run(mixer, eps=1e-12)
        loss = (out * normal("loss", *out.shape)).sum()
        leaves = [toy.embedding] + ([mixer.scalars] if num_sublayers > 1 else [])
        results.append((out, *torch.autograd.grad(loss, leaves)))
    for a, b in zip(*results, strict=True):
        assert error(a, b) < 1e-11


def test_the_matrix_of_ancre_is_its_recursion() -> None:
    """Row l + 1 = sum_j a_lj row j, and one for what sublayer l wrote; full rank across every cut."""
    mixer = randomise(double(ANCRe, 8, 64))
    found = Network(8).matrix(mixer)
    a = mixer.matrix(torch.float64).detach()
    expected = torch.zeros(9, 9).double()
    expected[0, 0] = 1
    for l in range(8):
        expected[l + 1] = a[l, : l + 1] @ expected[: l + 1]
        expected[l + 1, l + 1] = 1
    assert error(found.weights[:, :, 0, 1, 2], expected) < 1e-13
    most = np.minimum(np.arange(9) + 1, 9 - np.arange(9))
    assert cut_ranks(expected.numpy(), EXACT).max() > 2
    assert (cut_ranks(expected.numpy(), EXACT) <= most).all()


# Residual scalars


@pytest.mark.parametrize("before", ["sublayers", "blocks"])
def test_residual_scalars_start_as_prenorm_bit_for_bit(before: str) -> None:
    """1 x + 0 x_0 = x."""
    toy = Toy(L, WIDTH, dtype=torch.float32)
    mixer = ResidualScalars(L, WIDTH, before=before)
    for a, b in zip(toy.walk(mixer, eps=1e-8), toy.walk(PreNorm(L, WIDTH), eps=1e-8), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("before", ["sublayers", "blocks"])
def test_residual_scalars_follow_their_definition(before: str) -> None:
    mixer, toy = randomise(double(ResidualScalars, before=before)), Toy(L, WIDTH)
    x, reads = toy.embedding, []
    for l in range(L):
        if before == "sublayers":
            r, e = mixer.scalars[l]
        else:
            r, e = mixer.scalars[l // 2] if l % 2 == 0 else (1, 0)
        x = r * x + e * toy.embedding
        reads.append(x)
        x = x + sublayer(toy, l, x)
    for a, b in zip(toy.walk(mixer), [*reads, x], strict=True):
        assert error(a, b) < 1e-13


def test_the_matrix_of_residual_scalars() -> None:
    """M[l, i] = r_i ... r_l; in column 0 also e_k r_{k+1} ... r_l of all k <= l. Rank 2: stream, x_0."""
    mixer = randomise(double(ResidualScalars, 8, 64))
    r, e = mixer.scalars.detach().numpy().T
    expected = np.zeros((9, 9))
    for l in range(9):
        for i in range(l + 1):
            expected[l, i] = np.prod(r[i : l + 1])
        expected[l, 0] += sum(e[k] * np.prod(r[k + 1 : l + 1]) for k in range(min(l + 1, 8)))
    found = Network(8).matrix(mixer)
    np.testing.assert_allclose(found.weights[:, :, 0, 1, 2].detach().numpy(), expected, rtol=1e-12)
    assert cut_ranks(expected, EXACT).max() == 2


# Both


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (ANCRe, {}),
        (ANCRe, {"execution": "per_read"}),
        (ResidualScalars, {}),
        (ResidualScalars, {"before": "blocks"}),
    ],
)
def test_gradcheck_of_the_whole_pass(scheme: type[DepthMixer], options: dict[str, str]) -> None:
    toy = Toy(10, 3, embedding_std=1.0, output_std=1.0, tokens=(1, 2))
    mixer = randomise(double(scheme, 10, 3, **options))
    inputs = (toy.embedding, *mixer.parameters())
    assert torch.autograd.gradcheck(lambda *_: toy.run(mixer, eps=1e-6), inputs)


def test_counts() -> None:
    """ANCRe: K (K - 1) / 2 over K = L + 1 states, but for the one shortcut of the first sublayer."""
    assert num_parameters(ANCRe(32, 8)) == 33 * 32 // 2 - 1
    assert state_per_token(lambda width: ANCRe(9, width), 8) == (10, 0)  # all states
    for before, pairs in (("sublayers", 9), ("blocks", 5)):
        assert num_parameters(ResidualScalars(9, 8, before=before)) == 2 * pairs
        assert state_per_token(lambda width, b=before: ResidualScalars(9, width, before=b), 8) == (2, 0)


@pytest.mark.parametrize(
    ("scheme", "options", "message"),
    [
        (ANCRe, {"temperature": 0}, r"^arm\.mixer\.temperature=0: a number above 0$"),
        (ANCRe, {"temperature": float("nan")}, r"^arm\.mixer\.temperature=nan: a number above 0$"),
        (ANCRe, {"previous": 1.0}, r"^arm\.mixer\.previous=1\.0: a share above 0 and below 1, or null$"),
        (ResidualScalars, {"before": "all"}, r"^arm\.mixer\.before='all': must be sublayers or blocks$"),
    ],
)
def test_bad_input(scheme: type[DepthMixer], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme(L, WIDTH, **options)
