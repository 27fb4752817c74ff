"""The parts of the decoder and the whole, against formulas written out here."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn import functional as F

from repro.model.attention import Rotary
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.mlp import SwiGLU
from repro.model.norm import RMSNorm
from tests.decoders import CONTEXT, SIZE, SUBLAYERS, WIDTH, build, text, tokens
from tests.tiny import tiny_config, with_arm
from tests.toy import default_dtype, error, normal, randomise

Array = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


# The parts


def test_rms_norm_by_hand() -> None:
    norm = RMSNorm(2, eps=0.0).double()
    norm.weight.data = torch.tensor([1.0, 10.0], dtype=torch.float64)
    x = torch.tensor([3.0, 4.0], dtype=torch.float64)  # mean square 12.5
    expected = torch.tensor([3 / 12.5**0.5, 40 / 12.5**0.5], dtype=torch.float64)
    assert error(norm(x), expected) < 1e-15
    norm.eps = 12.5  # the mean square doubles
    assert error(norm(x), expected / 2**0.5) < 1e-15
    assert not RMSNorm(2, eps=1e-8)(torch.zeros(2)).any()  # and not NaN


def test_rms_norm_of_half_precision_is_computed_in_fp32() -> None:
    x = (1000 * normal("x", 4, 64)).to(torch.float16)  # squares overflow fp16
    y = RMSNorm(64, eps=1e-8)(x)
    wide = x.double()
    assert y.dtype == torch.float16
    assert error(y.double(), wide / wide.square().mean(-1, keepdim=True).sqrt()) < 2**-10


def test_rotary_angles() -> None:
    """Head size 4 and base 100: pairs (0, 2) and (1, 3) turn by 1 and 1/10 radian a position."""
    with default_dtype(torch.float64):
        rotary = Rotary(4, context=6, base=100.0)
    turned = rotary(torch.eye(4, dtype=torch.float64)[:, None].expand(4, 6, 4))
    assert torch.equal(turned[:, 0], torch.eye(4, dtype=torch.float64))
    expected = [
        [math.cos(3), 0, math.sin(3), 0],
        [0, math.cos(0.3), 0, math.sin(0.3)],
        [-math.sin(3), 0, math.cos(3), 0],
        [0, -math.sin(0.3), 0, math.cos(0.3)],
    ]
    assert error(turned[:, 3], torch.tensor(expected, dtype=torch.float64)) < 1e-15


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    with default_dtype(torch.float64):
        rotary = Rotary(8, context=40, base=10000.0)
    query, key = normal("query", 8), normal("key", 8)
    queries, keys = rotary(query.expand(40, 8)), rotary(key.expand(40, 8))
    scores = queries @ keys.T
    for distance in (0, 1, 7, -5):
        diagonal = scores.diagonal(distance)
        assert error(diagonal, diagonal[:1].expand_as(diagonal)) < 1e-12
    assert (scores.diagonal(1)[0] - scores.diagonal(7)[0]).abs() > 1e-3


def test_rotary_tables_are_exact_at_late_positions() -> None:
    """Angles are formed in float64: in fp32, position 100,000 times its rate would be off by 0.004."""
    rotary = Rotary(2, context=100_001, base=10000.0)
    assert abs(rotary.cos[100_000, 0].item() - math.cos(100_000)) < 1e-7


def test_swiglu_by_hand() -> None:
    mlp = SwiGLU(1, 1).double()
    for parameter, value in ((mlp.gate, 1.0), (mlp.up, 2.0), (mlp.output, 3.0)):
        parameter.data.fill_(value)
    x = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    # silu(1) = 0.731058578630004879, silu(-2) = -0.238405844044235288; then times 2x, times 3
    expected = torch.tensor([[6 * 0.731058578630004879], [12 * 0.238405844044235288]], dtype=torch.float64)
    assert error(mlp(x), expected) < 1e-15


# The whole, against NumPy


def numpy_losses(decoder: Decoder, inputs: Tensor, targets: Tensor, heads: int) -> Array:
    """Losses of a PreNorm decoder, written independently: rotary as complex numbers, attention as a loop."""
    p = {name: value.detach().double().numpy() for name, value in decoder.named_parameters()}
    eps = 1e-8

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * p[f"{name}.weight"]

    def turn(x: Array) -> Array:  # [T, head size] -> complex [T, head size / 2]
        half = x.shape[1] // 2
        rates = 10000.0 ** (-2 * np.arange(half) / x.shape[1])
        return (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * np.outer(np.arange(len(x)), rates))

    def attention(x: Array, name: str) -> Array:
        size = x.shape[1] // heads
        mixed = np.zeros_like(x)
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            q, k = (turn(x @ p[f"{name}.operator.{kind}"][rows].T) for kind in ("query", "key"))
            v = x @ p[f"{name}.operator.value"][rows].T
            for t in range(len(x)):
                logits = (q[t] * k[: t + 1].conj()).real.sum(-1) / math.sqrt(size)
                weights = np.exp(logits - logits.max())
                mixed[t, rows] = weights / weights.sum() @ v[: t + 1]
        return mixed @ p[f"{name}.operator.output"].T

    def mlp(x: Array, name: str) -> Array:
        gate, up = (x @ p[f"{name}.operator.{kind}"].T for kind in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ p[f"{name}.operator.output"].T

    losses = []
    for row, wanted in zip(inputs.numpy(), targets.numpy(), strict=True):
        stream = p["embedding"][row]
        for l in range(decoder.num_sublayers):
            name = f"sublayers.{l}"
            stream = stream + (mlp if l % 2 else attention)(norm(stream, f"{name}.norm"), name)
        logits = norm(stream, "final_norm") @ p["head"].T
        logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        losses.append(-logs[np.arange(len(row)), wanted])
    return np.array(losses)


def test_losses_against_numpy(config: DictConfig) -> None:
    decoder = build(config, "prenorm")
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.add_(0.2 * normal(name, *parameter.shape))
    inputs, targets = text()
    expected = torch.from_numpy(numpy_losses(decoder, inputs, targets, heads=2))
    losses = decoder.losses(inputs, targets)
    assert losses.shape == (2, CONTEXT)
    assert error(losses, expected) < 1e-12
    assert error(decoder.loss(inputs, targets), expected.mean()) < 1e-12


def test_the_loss_is_in_nats_and_leaves_padding_out(config: DictConfig) -> None:
    decoder = build(config, "prenorm")
    decoder.head.data.zero_()  # a uniform prediction
    inputs = tokens()
    targets = inputs.clone()
    targets[1, 3:] = -100
    losses = decoder.losses(inputs, targets)
    assert error(losses[0], torch.full((CONTEXT,), math.log(11), dtype=torch.float64)) < 1e-14
    assert not losses[1, 3:].any()
    assert abs(decoder.loss(inputs, targets).item() - math.log(11)) < 1e-14


def test_a_float64_decoder_keeps_float64_losses(config: DictConfig) -> None:
    assert build(config, "full").loss(*text()).dtype == torch.float64
    half = build(config, "full", torch.float32).to(torch.bfloat16)
    assert half(tokens()).dtype == torch.bfloat16
    assert half.losses(*text()).dtype == torch.float32


def test_embedding_and_head_are_not_tied(config: DictConfig) -> None:
    decoder = build(config, "block_s4")
    assert decoder.embedding.data_ptr() != decoder.head.data_ptr()
    assert not torch.equal(decoder.embedding, decoder.head)
    logits = decoder(tokens())
    decoder.head.data *= 2
    assert error(decoder(tokens()), 2 * logits) < 1e-14


def test_parameters_and_flops_counted_by_hand() -> None:
    """Width 16, two blocks, MLP 24, 64 tokens, T = 16.

    A block: attention 4 x 256, SwiGLU 3 x 384, two norms of 16; embedding and head 1,024 each, a last norm.
    FLOPs a token: 2 x (2 x 2,176 + 1,024) = 10,752; attention 2 x (2 x 16 x 16) = 1,024; PreNorm adds 16
    numbers four times; training costs three forward passes.
    """
    decoder = build_decoder(with_arm(tiny_config(), "prenorm"))
    assert decoder.num_parameters() == 2 * (1024 + 1152 + 32) + 2 * 1024 + 16 == 6480
    assert decoder.flops_per_token() == 3 * (10752 + 1024 + 64) == 35520


@pytest.mark.parametrize("arm", ["prenorm", "full", "mhc"])
def test_shapes_without_memory(config: DictConfig, arm: str) -> None:
    meta = build_decoder(with_arm(config, arm), device="meta")
    real = build(config, arm)
    assert {n: p.shape for n, p in meta.named_parameters()} == {
        n: p.shape for n, p in real.named_parameters()
    }
    assert all(p.is_meta for p in meta.parameters())
    assert meta.flops_per_token() == real.flops_per_token()


# What is observed


def observed(decoder: Decoder) -> tuple[Tensor, dict[tuple[str, int], Tensor]]:
    seen: dict[tuple[str, int], Tensor] = {}

    def observe(kind: str, l: int, tensor: Tensor) -> None:
        assert (kind, l) not in seen
        seen[kind, l] = tensor

    return decoder(tokens(), observe), seen


def test_the_observer_sees_sublayer_outputs_and_the_stream(config: DictConfig) -> None:
    decoder = build(config, "prenorm")
    logits, seen = observed(decoder)
    assert torch.equal(logits, decoder(tokens()))  # it only looks
    assert set(seen) == {(kind, l) for kind in ("output", "stream") for l in range(SUBLAYERS)}
    stream = F.embedding(tokens(), decoder.embedding)
    for l in range(SUBLAYERS):
        output = decoder.sublayers[l](stream)
        assert torch.equal(seen["output", l], output)
        stream = stream + output
        assert torch.equal(seen["stream", l], stream)
    norm = RMSNorm(WIDTH, eps=1e-8).double()  # gains are one at the start
    assert error(logits, norm(stream) @ decoder.head.T) < 1e-13


def test_the_observer_sees_the_partial_sum_of_the_open_block(config: DictConfig) -> None:
    decoder = build(config, {"block_size": 3})
    randomise(decoder.mixer)
    _, seen = observed(decoder)
    for l in range(SUBLAYERS):
        begin = l // 3 * 3
        partial = sum(seen["output", i] for i in range(begin, l + 1))
        assert error(seen["stream", l], torch.as_tensor(partial)) < 1e-14


@pytest.mark.parametrize("block_size", [1, 3])
def test_the_stream_of_attnres_has_the_gradient_of_its_newest_output(
    config: DictConfig, block_size: int
) -> None:
    """Read by read the sum is one tensor of the graph, whose gradient is there to be compared."""
    decoder = build(config, {"block_size": block_size})
    randomise(decoder.mixer)
    decoder.mixer.execution = "per_read"
    logits, seen = observed(decoder)
    for tensor in seen.values():
        tensor.retain_grad()
    logits.square().mean().backward()
    for l in range(SUBLAYERS):
        assert error(seen["stream", l].grad, seen["output", l].grad) < 1e-12
    assert decoder.mixer.stream_has_outputs_gradient
