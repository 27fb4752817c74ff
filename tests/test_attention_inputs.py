"""Reads of several tensors inside attention, and the schemes made of them: MUDDFormer and Value Residual."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from repro.depth.denseformer import DenseFormer
from repro.depth.facts import num_parameters, state_per_token
from repro.depth.inputs import AttentionInputs, AttentionOutput, ValueMix
from repro.depth.matrix import depth_matrix
from repro.depth.muddformer import MUDDFormer
from repro.depth.value_residual import ValueResidual
from repro.model.attention import CausalAttention, Rotary
from repro.model.decoder import Sublayer
from repro.model.norm import RMSNorm
from tests.decoders import SIZE, build, of_arm, tokens
from tests.tiny import tiny_config
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

WIDTH = 16


def double(scheme: Any, num_sublayers: int, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, WIDTH, **options)


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


@pytest.fixture(scope="module")
def prenorm(config: DictConfig) -> Tensor:
    with torch.no_grad():
        return build(config, "prenorm")(tokens())


# The protocol


@pytest.fixture(scope="module")
def attention() -> CausalAttention:
    """Two heads of four channels."""
    with default_dtype(torch.float64):
        module = CausalAttention(8, 2, Rotary(4, context=6, base=100.0))
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(normal(name, 8, 8) / 8**0.5)
    return module


def by_hand(attention: CausalAttention, query: Tensor, key: Tensor, values: Tensor) -> Tensor:
    """Attention of a query and a key input [B, T, 8] over values [B, 2, T, 4]."""
    q, k = (
        attention.rotary((x @ w.T).unflatten(-1, (2, 4)).transpose(1, 2))
        for x, w in ((query, attention.query), (key, attention.key))
    )
    logits = (q @ k.mT / 2).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    return (logits.softmax(-1) @ values).transpose(1, 2).flatten(-2) @ attention.output.T


def test_one_input_is_the_plain_tensor_bit_for_bit(attention: CausalAttention) -> None:
    x = normal("x", 3, 6, 8)
    assert torch.equal(attention(AttentionInputs(x)), attention(x))
    assert error(attention(AttentionInputs(x, x, x)), attention(x)) < 1e-13


def test_inputs_and_values_go_where_they_are_named(attention: CausalAttention) -> None:
    query, key, value, values = (normal(name, 3, 6, 8) for name in ("q", "k", "v", "values"))
    own = (value @ attention.value.T).unflatten(-1, (2, 4)).transpose(1, 2)
    assert error(attention(AttentionInputs(query, key, value)), by_hand(attention, query, key, own)) < 1e-13
    of_query = (query @ attention.value.T).unflatten(-1, (2, 4)).transpose(1, 2)
    assert error(attention(AttentionInputs(query, key)), by_hand(attention, query, key, of_query)) < 1e-13
    earlier = values.unflatten(-1, (2, 4)).transpose(1, 2)
    mix = ValueMix(earlier, torch.tensor(0.25), torch.tensor(-1.5))
    found = attention(AttentionInputs(query, key, value, mix, keep_values=True))
    assert isinstance(found, AttentionOutput)
    expected = by_hand(attention, query, key, 0.25 * own - 1.5 * earlier)
    assert error(found.output, expected) < 1e-13
    assert error(found.values, own) < 1e-13


def test_gradients_of_separate_inputs(attention: CausalAttention) -> None:
    def run(query: Tensor, key: Tensor, value: Tensor, earlier: Tensor, scalars: Tensor) -> Any:
        mix = ValueMix(earlier, *scalars.unbind())
        return attention(AttentionInputs(query, key, value, mix, keep_values=True))

    leaves = [normal(name, 1, 3, 8).requires_grad_() for name in ("q", "k", "v")]
    leaves += [normal("earlier", 1, 2, 3, 4).requires_grad_(), normal("scalars", 2).requires_grad_()]
    assert torch.autograd.gradcheck(run, leaves)


def test_each_input_is_normalised_by_the_sublayer(attention: CausalAttention) -> None:
    norm = RMSNorm(8, 1e-8).double()
    norm.weight.data = normal("gain", 8)
    query, key, value = (normal(name, 3, 6, 8) for name in ("q", "k", "v"))
    normed = (rms_norm(x, 1e-8) * norm.weight for x in (query, key, value))
    found = Sublayer(norm, attention)(AttentionInputs(query, key, value))
    assert error(found, attention(AttentionInputs(*normed))) < 1e-13


# MUDDFormer


def test_muddformer_starts_as_prenorm(config: DictConfig, prenorm: Tensor) -> None:
    """W_2 = 0 and b one on the current state: all four streams after a block are its output."""
    decoder = build(config, "muddformer")
    assert decoder.mixer.first[0].any()
    with torch.no_grad():
        assert error(decoder(tokens()), prenorm) < 1e-12
        randomise(decoder.mixer)
        assert error(decoder(tokens()), prenorm) > 1e-3


def test_muddformer_without_dynamic_weights_is_its_bias() -> None:
    """W_2 = 0: the same residual stream as DenseFormer's with alpha = b, where q, k and v follow it too."""
    mudd, dense = double(MUDDFormer, 8), randomise(double(DenseFormer, 8))
    with torch.no_grad():
        for i, bias in enumerate(mudd.bias, start=1):
            bias.copy_(dense.matrix(torch.float64)[i, : i + 1].expand_as(bias))
    toy = Toy(8, WIDTH)
    assert all(error(a, b) < 1e-12 for a, b in zip(toy.walk(mudd), toy.walk(dense), strict=True))


def test_muddformer_follows_its_definition() -> None:
    """Token by token, with weights, biases and streams indexed one by one; five sublayers, three blocks."""
    mixer, toy = randomise(double(MUDDFormer, 5, eps=1e-6)), Toy(5, WIDTH, embedding_std=1.0)
    out = torch.empty_like(toy.embedding)
    with torch.no_grad():
        for b in range(2):
            for t in range(5):
                q = k = v = r = toy.embedding[b, t]
                states = [r]
                for block, sublayers in enumerate(([0, 1], [2, 3], [4])):
                    for l in sublayers:
                        if l % 2:
                            mixed = rms_norm(r, 0.0) @ toy.matrices[l]
                        else:
                            mixed = rms_norm(v, 0.0) @ toy.matrices[l] + rms_norm(q, 0.0) - rms_norm(k, 0.0)
                        r = r + 0.02 * torch.tanh(mixed)
                    states.append(r)
                    z = mixer.first[block] @ rms_norm(r, 1e-6)
                    z = 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
                    n, streams = len(states), 4 if block < 2 else 1
                    weights = (mixer.second[block] @ z).view(streams, n) + mixer.bias[block]
                    new = [
                        torch.stack([w * x for w, x in zip(row, states, strict=True)]).sum(0)
                        for row in weights
                    ]
                    q, k, v, r = new if streams == 4 else (new[0],) * 4
                out[b, t] = r
        assert error(toy.walk(mixer)[-1], out) < 1e-13


def test_muddformer_sizes() -> None:
    """Hidden units 4 (i + 1), after the last block 4 (i + 1) for one stream, in multiples of 64.

    Sixteen blocks: i = 1 to 15 have 4 (i + 1) <= 64 units, so 64 each; i = 16 has 4 x 17 = 68, so 128.
    Parameters at width D: first 64 D, second 64 x 4 (i + 1), bias 4 (i + 1); last 128 D + 128 x 17 + 17.
    """
    mixer = MUDDFormer(32, 8)
    assert [first.shape[0] for first in mixer.first] == [64] * 15 + [128]
    inner = sum(64 * 8 + 65 * 4 * (i + 1) for i in range(1, 16))
    assert num_parameters(mixer) == inner + 128 * 8 + 129 * 17
    assert MUDDFormer(40, 8).first[15].shape[0] == 128  # 4 x 17 = 68
    # X_0 to X_3, and before the last block q, k, v and the residual stream; then X_4 and one stream.
    assert state_per_token(lambda width: MUDDFormer(8, width), 8) == (8, 0)


def test_muddformer_may_widen_its_mlps(config: DictConfig) -> None:
    """i / (n - 1) + 1 / 2 of 24 at n = 4: 12, 20, 28, 36, together 4 x 24."""
    decoder = of_arm(config, "muddformer.MUDDFormer", mlp_growth=True)
    assert [decoder.sublayers[l].operator.gate.shape[0] for l in (1, 3, 5, 7)] == [12, 20, 28, 36]
    assert decoder(tokens()).isfinite().all()
    uniform = of_arm(config, "muddformer.MUDDFormer")
    assert [uniform.sublayers[l].operator.gate.shape[0] for l in (1, 3, 5, 7)] == [24] * 4
    assert decoder.num_parameters() == uniform.num_parameters()
    assert MUDDFormer(2, 8, mlp_growth=True).mlp_width(0, 24) == 24


# Value Residual


def test_value_residual_at_one_and_zero_is_prenorm(config: DictConfig, prenorm: Tensor) -> None:
    with torch.no_grad():
        decoder = of_arm(config, "value_residual.ValueResidual", own=1.0, first=0.0)
        assert error(decoder(tokens()), prenorm) < 1e-12
        assert error(build(config, "value_residual")(tokens()), prenorm) > 1e-2


def test_value_residual_mixes_the_values_of_the_first_attention(config: DictConfig) -> None:
    """The decoder written out: lambda_{l,1} V_l + lambda_{l,2} V_1 under the attention weights of l."""
    decoder = build(config, "value_residual")
    randomise(decoder.mixer)
    first: Tensor | None = None
    with torch.no_grad():
        stream = torch.nn.functional.embedding(tokens(), decoder.embedding)
        for l, sublayer in enumerate(decoder.sublayers):
            x, operator = rms_norm(stream, 1e-8), sublayer.operator
            if l % 2:
                stream = stream + operator(x)
                continue
            query, key, value = (
                (x @ w.T).unflatten(-1, (2, -1)).transpose(1, 2)
                for w in (operator.query, operator.key, operator.value)
            )
            if first is None:
                first = value
            else:
                own, earlier = decoder.mixer.lambdas[l // 2 - 1]
                value = own * value + earlier * first
            logits = operator.rotary(query) @ operator.rotary(key).mT / math.sqrt(8)
            future = torch.ones_like(logits[0, 0]).triu(1).bool()
            mixed = logits.masked_fill(future, -torch.inf).softmax(-1) @ value
            stream = stream + mixed.transpose(1, 2).flatten(-2) @ operator.output.T
        expected = rms_norm(stream, 1e-8) @ decoder.head.T
        assert error(decoder(tokens()), expected) < 1e-12


def test_value_residual_counts() -> None:
    """Two scalars for every attention sublayer but the first; the stream and the first values."""
    assert [num_parameters(ValueResidual(n, 8)) for n in (1, 2, 3, 8)] == [0, 0, 2, 6]
    assert state_per_token(lambda width: ValueResidual(8, width), 8) == (2, 0)


def test_value_residual_adds_nothing_to_the_depth_matrix() -> None:
    toy = Toy(6, WIDTH)
    found = depth_matrix(randomise(double(ValueResidual, 6)), toy.embedding, toy.sublayer)
    assert torch.equal(found.weights[..., 0, 0, 0], torch.ones(7, 7, dtype=torch.float64).tril())
