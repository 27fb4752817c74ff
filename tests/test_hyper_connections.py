"""mHC and mHC-lite: Sinkhorn, the definition token by token, and the settings at which they are PreNorm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from repro.depth.hyper_connections import MHC, MHCIdentity, MHCLite
from repro.depth.prenorm import PreNorm
from repro.ops.sinkhorn import sinkhorn
from repro.ops.streams import gather, mix_and_add, normed_projection
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

WIDTH = 16


def double(scheme: type[MHC], num_sublayers: int, **options: Any) -> MHC:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, WIDTH, **options)


def numpy_sinkhorn(logits: np.ndarray, iterations: int) -> np.ndarray:
    """Columns then rows, in the logarithm and in a loop over nothing but the definition."""
    log = logits.astype(np.float64)
    for _ in range(iterations):
        log = log - np.log(np.exp(log).sum(axis=-2, keepdims=True))
        log = log - np.log(np.exp(log).sum(axis=-1, keepdims=True))
    return np.exp(log)


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_sinkhorn_against_numpy(iterations: int) -> None:
    logits = 2 * normal("logits", 4, 4, 7)
    ours = sinkhorn(logits, iterations)
    reference = numpy_sinkhorn(logits.permute(2, 0, 1).numpy(), iterations)
    np.testing.assert_allclose(ours.permute(2, 0, 1).numpy(), reference, rtol=1e-13)
    single = sinkhorn(logits.float(), iterations)
    np.testing.assert_allclose(single.permute(2, 0, 1).numpy(), reference, rtol=2e-5)


def test_sinkhorn_of_a_two_by_two_matrix() -> None:
    """Its limit has the diagonal s / (1 + s), s = exp((a + d - b - c) / 2): Sinkhorn keeps ad / bc."""
    logits = torch.tensor([[0.3, -0.7], [1.1, 0.4]], dtype=torch.float64)
    s = math.exp((0.3 + 0.4 + 0.7 - 1.1) / 2)
    expected = torch.tensor([[s, 1.0], [1.0, s]], dtype=torch.float64) / (1 + s)
    torch.testing.assert_close(sinkhorn(logits, 40), expected, rtol=0, atol=1e-14)


def test_sinkhorn_is_doubly_stochastic_and_keeps_zeros() -> None:
    matrix = sinkhorn(normal("logits", 4, 4, 50), 20)
    ones = torch.ones(4, 50, dtype=torch.float64)
    torch.testing.assert_close(matrix.sum(1), ones, rtol=0, atol=1e-14)
    torch.testing.assert_close(matrix.sum(0), ones, rtol=0, atol=1e-6)
    assert (matrix > 0).all()
    blocked = torch.where(torch.eye(4, dtype=torch.bool), 0.3, -torch.inf)
    assert torch.equal(sinkhorn(blocked, 20), torch.eye(4))


def test_sinkhorn_survives_underflow_and_passes_nan_on() -> None:
    logits = torch.tensor([[0.0, 0.0], [-300.0, -300.0]])  # fp32 exp(-300) is zero: the row underflows
    logits.requires_grad_()
    matrix = sinkhorn(logits, 20)
    (grad,) = torch.autograd.grad((matrix * torch.tensor([[1.0, 2.0], [3.0, 4.0]])).sum(), logits)
    assert matrix.isfinite().all()
    assert grad.isfinite().all()
    assert sinkhorn(torch.full((2, 2), torch.nan), 3).isnan().all()


def test_hyper_connection_ops_gradcheck() -> None:
    x = normal("x", 3, 4, 5).requires_grad_()
    mixing, places = normal("mixing", 3, 4, 4).requires_grad_(), normal("places", 3, 4).requires_grad_()
    y, weight = normal("y", 3, 5).requires_grad_(), normal("weight", 6, 20).requires_grad_()
    assert torch.autograd.gradcheck(mix_and_add, (x, mixing, places, y))
    assert torch.autograd.gradcheck(gather, (x, places))
    assert torch.autograd.gradcheck(lambda x, w: normed_projection(x, w, 1e-3), (x, weight))
    for iterations in (1, 5, 20):
        logits = normal("logits", 4, 4, 3).requires_grad_()
        assert torch.autograd.gradcheck(lambda z, k=iterations: sinkhorn(z, k), (logits,))


def mhc_by_definition(mixer: MHC, toy: Toy, eps: float) -> Tensor:
    """mHC and mHC-lite token by token in the letters of the paper, without our ops."""
    n, width = mixer.streams, mixer.width
    out = torch.empty_like(toy.embedding)
    for b in range(out.shape[0]):
        for t in range(out.shape[1]):
            x = toy.embedding[b, t].repeat(n, 1)
            for l, matrix in enumerate(toy.matrices):
                normed = x.flatten() / torch.sqrt((x**2).mean() + mixer.eps)
                z = mixer.projection[l] @ normed
                bias, (a_pre, a_post, a_res) = mixer.bias[l], mixer.scale[l]
                pre = torch.sigmoid(a_pre * z[:n] + bias[:n])
                post = 2 * torch.sigmoid(a_post * z[n : 2 * n] + bias[n : 2 * n])
                rest = a_res * z[2 * n :] + bias[2 * n :]
                if isinstance(mixer, MHCLite):
                    weights = torch.exp(rest) / torch.exp(rest).sum()
                    residual = (mixer.permutations @ weights).view(n, n)
                else:
                    logits = rest.view(n, n).detach().numpy()
                    residual = torch.from_numpy(numpy_sinkhorn(logits, mixer.iterations))
                y = 0.02 * torch.tanh(rms_norm(pre @ x, eps) @ matrix)
                x = residual @ x + torch.outer(post, y)
            assert x.shape == (n, width)
            out[b, t] = x.sum(0)
    return out


@pytest.mark.parametrize("scheme", [MHC, MHCLite])
def test_hyper_connections_follow_their_definition(scheme: type[MHC]) -> None:
    mixer, toy = randomise(double(scheme, 5)), Toy(5, WIDTH)
    with torch.no_grad():
        assert error(toy.walk(mixer, eps=1e-10)[-1], mhc_by_definition(mixer, toy, 1e-10)) < 1e-12


@pytest.mark.parametrize("scheme", [MHC, MHCLite, MHCIdentity])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_identity_setting_is_prenorm(scheme: type[MHC], streams: int) -> None:
    """Reads are PreNorm's; the sum of n equal streams is n h, the same function under eps * n^2."""
    mixer, toy = double(scheme, 12, streams=streams, init="prenorm"), Toy(12, WIDTH)
    reads, baseline = toy.walk(mixer, eps=1e-8), toy.walk(PreNorm(12, WIDTH), eps=1e-8)
    for read, expected in zip(reads[:-1], baseline[:-1], strict=True):
        assert error(read, expected) < 1e-12
    assert error(reads[-1], streams * baseline[-1]) < 1e-12
    assert error(rms_norm(reads[-1], 1e-8 * streams**2), rms_norm(baseline[-1], 1e-8)) < 1e-12


def test_identity_setting_needs_no_identity_mixing() -> None:
    """Equal streams stay equal under any H_res with unit rows, so b_res is free."""
    mixer, toy = double(MHC, 12, init="prenorm"), Toy(12, WIDTH)
    for l, bias in enumerate(mixer.bias):
        bias.data[8:] = normal(f"residual {l}", 16)
    assert error(toy.walk(mixer)[-1], 4 * toy.walk(PreNorm(12, WIDTH))[-1]) < 1e-12


def test_identity_setting_lets_streams_drift_apart() -> None:
    """Streams equal for ever would make mHC a gated PreNorm: the gradients of b_post must differ."""
    mixer, toy = double(MHC, 12, init="prenorm"), Toy(12, WIDTH)
    out = toy.run(mixer)
    (out * normal("loss", *out.shape)).sum().backward()
    of_post = mixer.bias[3].grad[4:8]
    assert (of_post.max() - of_post.min()).item() > 0.01 * of_post.abs().max().item()


def test_published_initialisation_is_not_prenorm() -> None:
    mixer, toy = double(MHC, 12), Toy(12, WIDTH)
    pre, post, residual = mixer.coefficients(normal("streams", 3, 4, WIDTH), 5)
    high, low = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))
    expected = torch.tensor([low, high, low, low], dtype=torch.float64)[:, None].expand(4, 3)  # 5 mod 4 = 1
    torch.testing.assert_close(pre, expected, rtol=1e-14, atol=0)
    torch.testing.assert_close(post, 2 * expected, rtol=1e-14, atol=0)
    diagonal = 1 / (1 + 3 * math.exp(-8))  # equal row and column sums: Sinkhorn converges at once
    torch.testing.assert_close(residual[2, 2], torch.full((3,), diagonal, dtype=torch.float64))
    assert error(toy.run(mixer), toy.run(PreNorm(12, WIDTH))) > 0.01


def test_lite_mixing_is_doubly_stochastic_to_rounding() -> None:
    mixer = randomise(double(MHCLite, 2), std=3.0)
    *_, residual = mixer.coefficients(normal("streams", 6, 4, WIDTH), 1)
    ones = torch.ones(4, 6, dtype=torch.float64)
    torch.testing.assert_close(residual.sum(0), ones, rtol=0, atol=1e-14)
    torch.testing.assert_close(residual.sum(1), ones, rtol=0, atol=1e-14)
    assert mixer.bias[0].numel() == 4 + 4 + 24
