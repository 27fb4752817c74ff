"""DDL: the delta rule with explicit matrices, the state that beta = 0 keeps, weights over depth, counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from analysis.matrices import EXACT, cut_ranks
from repro.depth.ddl import DDL
from repro.depth.facts import num_parameters, state_per_token
from repro.errors import ConfigError
from tests.test_matrix import Network
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

L, WIDTH = 5, 16


def double(num_sublayers: int = L, width: int = WIDTH, **options: Any) -> DDL:
    with default_dtype(torch.float64):
        return DDL(num_sublayers, width, **options)


def by_definition(mixer: DDL, toy: Toy, eps: float) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """H <- (I - beta k k^T) H + beta k v^T token by token, H [D, d_v]; also v and H^T k after each write."""
    n, D = mixer.streams, mixer.width
    out, values, there = torch.empty_like(toy.embedding), [], []
    for b, t in [(b, t) for b in range(2) for t in range(5)]:
        H = toy.embedding[b, t][:, None].repeat(1, n)
        for l, matrix in enumerate(toy.matrices):
            x = H @ mixer.read_weight[l] if n > 1 else H[:, 0]
            normed = x / torch.sqrt(x.square().mean() + mixer.eps)
            beta = 2 * torch.sigmoid(mixer.gate[l] @ normed + mixer.gate_bias[l])
            v = mixer.value_weight[l] @ (x if mixer.value_input == "raw" else normed) + mixer.value_bias[l]
            if mixer.value == "sigmoid":
                v = 4 * torch.sigmoid(v)
            y = toy.output_std * torch.tanh(rms_norm(x, eps) @ matrix)
            k = y / torch.sqrt(y.square().sum() + 1e-10)
            H = (torch.eye(D).double() - beta * torch.outer(k, k)) @ H + beta * torch.outer(k, v)
            values.append(v)
            there.append(k @ H)
        out[b, t] = H @ mixer.read_weight[len(toy.matrices)] if n > 1 else H[:, 0]
    return out, values, there


@pytest.mark.parametrize("streams", [1, 4])
@pytest.mark.parametrize("options", [{}, {"value": "linear"}, {"value_input": "normed"}])
def test_the_delta_rule(streams: int, options: dict[str, str]) -> None:
    mixer, toy = randomise(double(streams=streams, **options)), Toy(L, WIDTH, output_std=1.0)
    with torch.no_grad():
        expected, *_ = by_definition(mixer, toy, 1e-10)
        assert error(toy.walk(mixer, eps=1e-10)[-1], expected) < 1e-12


@pytest.mark.parametrize("streams", [1, 4])
def test_beta_of_zero_keeps_the_state(streams: int) -> None:
    """sigmoid(-1000) is 0, so nothing is erased or written: every read is the embedding."""
    mixer, toy = double(streams=streams), Toy(L, WIDTH)
    with torch.no_grad():
        mixer.value_weight.add_(normal("value", *mixer.value_weight.shape))
        mixer.gate_bias.fill_(-1000)
        for read in toy.walk(mixer):
            assert error(read, toy.embedding) < 1e-14


def test_beta_of_one_replaces_what_is_there() -> None:
    """At the start beta = 1 and v = 4 sigmoid(0) = 2, and afterwards H holds exactly v along k."""
    mixer, toy = double(streams=2), Toy(L, WIDTH, output_std=1.0)
    with torch.no_grad():
        out, values, there = by_definition(mixer, toy, 1e-10)
        assert error(toy.walk(mixer, eps=1e-10)[-1], out) < 1e-12
    assert all((v == 2).all() for v in values)
    # k is shorter than one by KEY_EPS^2 / (2 |f|^2), |f| of order one.
    torch.testing.assert_close(torch.stack(there), torch.full((10 * L, 2), 2.0).double(), rtol=0, atol=1e-8)


def test_columns_differ_by_what_the_model_draws() -> None:
    """Values drawn at 0.5 / sqrt(D) tell the columns apart; at zero they would be equal for good."""
    mixer, toy = double(streams=4), Toy(L, WIDTH)
    assert mixer.normal_init == {"value_weight": 0.5 / 4}
    spreads = []
    for std in (0.0, mixer.normal_init["value_weight"]):
        with torch.no_grad():
            mixer.value_weight.copy_(std * normal("value", *mixer.value_weight.shape))
            state = mixer.begin(toy.embedding)
            for l, matrix in enumerate(toy.matrices):
                x, state = mixer.read(state, l)
                state = mixer.write(state, l, torch.tanh(rms_norm(x, 0.0) @ matrix))
        spreads.append(state.columns.std(1).max().item())
    assert spreads[0] < 1e-15
    assert spreads[1] > 1e-3


@pytest.mark.parametrize("streams", [1, 3])
def test_weights_over_depth(streams: int) -> None:
    """M[l, 0] = sum r_l, M[l, i] = r_l^T w_i with w = beta (v - H^T k) / |f|; rank d_v across cuts."""
    mixer, network, caught = randomise(double(8, 64, streams=streams)), Network(8), []
    original = mixer.held

    def catching(weights: Tensor) -> Tensor:
        caught.append(weights[3].clone())  # of the fourth token
        return original(weights)

    mixer.held = catching  # type: ignore[method-assign]
    found = network.matrix(mixer)
    assert found.residual < 1e-12
    w = torch.stack([torch.ones(streams).double(), *caught])
    read = mixer.read_weight if streams > 1 else torch.ones(9, 1).double()
    expected = (read @ w.T).tril()
    assert error(found.weights[:, :, 0, 0, 3], expected) < 1e-13
    for matrix in found.weights[:, :, 0].flatten(2).movedim(-1, 0):
        ranks = cut_ranks(matrix.detach().numpy(), EXACT)
        assert ranks.max() == streams


def test_the_convolution_starts_as_nothing_and_follows_its_definition() -> None:
    toy = Toy(L, WIDTH)
    plain, conv = double(streams=2), double(streams=2, conv=3)
    for a, b in zip(toy.walk(plain), toy.walk(conv), strict=True):
        assert error(a, b) < 1e-15
    randomise(conv)
    read, _ = conv.read(conv.begin(toy.embedding), 0)
    padded = torch.cat((torch.zeros(2, 2, WIDTH).double(), toy.embedding), 1)
    expected = torch.zeros_like(toy.embedding)
    for t in range(5):
        for tap in range(3):  # the last tap is the token itself
            for column in range(2):
                part = padded[:, t + tap] * conv.conv[0, tap, column]
                expected[:, t] += conv.read_weight[0, column] * part
    assert error(read, expected) < 1e-14


@pytest.mark.parametrize("options", [{}, {"streams": 2}, {"streams": 2, "conv": 2, "value_input": "normed"}])
def test_gradcheck_of_the_whole_pass(options: dict[str, Any]) -> None:
    toy = Toy(3, 4, embedding_std=1.0, output_std=1.0, tokens=(1, 3))
    mixer = randomise(double(3, 4, **options))
    inputs = (toy.embedding, *mixer.parameters())
    assert torch.autograd.gradcheck(lambda *_: toy.run(mixer, eps=1e-6), inputs)


@pytest.mark.parametrize("streams", [1, 2, 4])
@pytest.mark.parametrize("taps", [0, 4])
def test_counts(streams: int, taps: int) -> None:
    """Gates w_b, b, W_v, b_v per sublayer; read weights (of several columns) and taps per read."""
    D = 8
    expected = L * (D + 1) * (1 + streams) + (L + 1) * ((streams if streams > 1 else 0) + taps * streams * D)
    assert num_parameters(DDL(L, D, streams=streams, conv=taps)) == expected
    held = state_per_token(lambda width: DDL(L, width, streams=streams, conv=taps), D)
    assert held == (streams, 1 + streams)  # between a read and its write also beta and v


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": 0}, r"^arm\.mixer\.streams=0: must be an integer >= 1$"),
        ({"value": "relu"}, r"^arm\.mixer\.value='relu': must be sigmoid or linear$"),
        ({"value_input": "x"}, r"^arm\.mixer\.value_input='x': must be raw or normed$"),
        ({"conv": -1}, r"^arm\.mixer\.conv=-1: a number of taps, 0 for no convolution$"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DDL(L, WIDTH, **options)
