"""Learned block boundaries: their definition, Block in the hard limit, PreNorm at zero queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth.blocks import UnevenBlocks
from repro.depth.prenorm import PreNorm
from repro.depth.soft_blocks import SoftBlocks
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import WIDTH, randomised, results, same
from tests.test_matrix import Network
from tests.toy import Toy, default_dtype, error, normal, randomise


def make(num_sublayers: int, width: int = WIDTH, **options: Any) -> SoftBlocks:
    with default_dtype(torch.float64):
        return SoftBlocks(num_sublayers, width, **options)


def test_shares_by_hand() -> None:
    """Two boundaries at 2 and 3 of 4 sublayers, temperature 1/2: steps of sigmoid(2 (i + 1/2 - e))."""
    mixer = make(4, num_blocks=3)
    with torch.no_grad():
        mixer.positions.copy_(torch.tensor([3.0, 2.0]))  # sorted before use
    s = [torch.sigmoid(torch.tensor(x, dtype=torch.float64)).item() for x in (-1.0, 1.0, 3.0)]
    expected = [
        [1.0, 0.0, 0.0],  # nothing is passed before sublayer 0
        [1 - s[0], s[0], 0.0],  # i + 1/2 - 2 = -1/2; the second boundary not before sublayer 2
        [1 - s[1], s[1] - s[0], s[0]],
        [1 - s[2], s[2] - s[1], s[1]],
    ]
    torch.testing.assert_close(
        mixer.shares(torch.float64), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_shares_are_a_distribution_whatever_the_positions() -> None:
    mixer = randomise(make(20, num_blocks=7), 6.0)
    shares = mixer.shares(torch.float64)
    assert shares.shape == (20, 7)
    assert shares.min() >= 0
    torch.testing.assert_close(shares.sum(1), torch.ones(20, dtype=torch.float64), rtol=0, atol=1e-14)


def test_reads_follow_the_definition() -> None:
    """pi_n ~ g_n exp(w . key(b_n)) on b_n / g_n, source by source."""
    mixer = randomised(make(6, num_blocks=3))
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH) for i in range(7))
    shares = mixer.shares(torch.float64)
    for l, read in enumerate(walk(mixer, embedding, outputs)):
        sources, begun = [embedding], [1.0]
        for n in range(min(l, 3)):
            share = shares[:l, n]
            sources.append(sum(p * f for p, f in zip(share, outputs[:l], strict=True)))
            begun.append(min(1.0, share.sum().item()))
        query = mixer.queries[l] * mixer.key_gains[l]
        keys = [b / (b.square().mean(-1, keepdim=True) + 1e-8).sqrt() for b in sources]
        raw = [g * torch.exp((key * query).sum(-1, keepdim=True)) for g, key in zip(begun, keys, strict=True)]
        parts = [p / sum(raw) * b / g for p, b, g in zip(raw, sources, begun, strict=True)]
        torch.testing.assert_close(read, sum(parts), rtol=1e-12, atol=1e-13)


def test_the_hard_limit_is_block_with_these_boundaries() -> None:
    """Steps of a thousandth of a sublayer are one-hot: sigmoid(-500) is 1e-217. Values and gradients."""
    mixer = randomised(make(8, num_blocks=3, temperature=1e-3))
    with torch.no_grad():
        mixer.positions.copy_(torch.tensor([2.0, 5.0]))
    with default_dtype(torch.float64):
        block = randomised(UnevenBlocks(8, WIDTH, boundaries=[2, 5]))
    soft, hard = results(mixer), results(block)
    assert soft.pop("gradient of positions").abs().max() < 1e-100
    for l in range(9):
        present = len(hard[f"weights {l}"])
        absent = soft[f"weights {l}"][present:]  # blocks that have not begun are sources of no weight
        assert absent.numel() == 0 or absent.max() < 1e-20
        soft[f"weights {l}"] = soft[f"weights {l}"][:present]
    same(soft, hard, 1e-11)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("num_blocks", [1, 5, 32])
def test_zero_queries_are_prenorm_at_any_temperature(num_blocks: int, temperature: float) -> None:
    """Weights pi_n / g_n are then all 1 / sum g, and the blocks add up to the stream."""
    mixer = make(32, 16, num_blocks=num_blocks, temperature=temperature, eps=0.0)
    toy = Toy(32, 16)
    assert error(toy.run(mixer), toy.run(PreNorm(32, 16))) < 1e-11


def test_boundaries_start_balanced_and_learn() -> None:
    mixer = make(20, num_blocks=3)
    assert mixer.positions.tolist() == [7.0, 13.0]  # 20 / 3 and 40 / 3, rounded
    toy = Toy(20, WIDTH)
    randomise(mixer, 0.1)
    (toy.run(mixer, eps=1e-8) * normal("loss", 2, 5, WIDTH)).sum().backward()
    assert mixer.positions.grad is not None
    assert (mixer.positions.grad.abs() > 1e-6).all()


def test_counts() -> None:
    """2 (L + 1) D for queries and gains, N - 1 positions."""
    assert sum(p.numel() for p in make(9, 4, num_blocks=5).parameters()) == 2 * 10 * 4 + 4
    assert sum(p.numel() for p in make(9, 4, num_blocks=1, key_gain=False).parameters()) == 10 * 4


def test_gradcheck() -> None:
    mixer = randomised(make(5, 4, num_blocks=3))
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_sees_one_graph() -> None:
    mixer = randomised(make(4, num_blocks=2))
    sources = [normal(f"source {i}", 2, 3, WIDTH) for i in range(5)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-12


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"num_blocks": 0}, "num_blocks"),
        ({"num_blocks": 9}, "num_blocks"),
        ({"num_blocks": 2, "temperature": 0}, "temperature"),
        ({"num_blocks": 2, "temperature": float("inf")}, "temperature"),
        ({"num_blocks": 2, "temperature": "x"}, "temperature"),
        ({"num_blocks": 2, "key_gain": 1}, "key_gain"),
    ],
)
def test_bad_options_name_their_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SoftBlocks(8, 4, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert "\n" not in str(caught.value)


def test_autocast_keeps_mixing_in_float32() -> None:
    """bfloat16 outputs on a float32 embedding: sums, logits and reads of the same numbers in float32."""
    with default_dtype(torch.float32):
        mixer = randomised(SoftBlocks(5, WIDTH, num_blocks=2))
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
    narrow = [y.bfloat16() for y in outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reads = walk(mixer, embedding, narrow)
    for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


def test_the_matrix_is_coefficients_times_shares() -> None:
    """M[l, i] = sum_n c_n p_i(n), c_n = pi_n / g_n; the embedding's column is its own weight."""
    mixer = randomised(make(6, 64, num_blocks=3))
    weights: dict[int, Tensor] = {}
    mixer.tap = weights.__setitem__
    found = Network(6).matrix(mixer).weights[:, :, 0]  # [reads, written, B, T]
    shares = mixer.shares(torch.float64)
    for l in range(1, 7):
        n = min(l, 3)
        pi = weights[l][:, 0]
        begun = shares[:l, :n].sum(0).clamp(max=1.0)
        coefficients = pi[1:] / begun[:, None, None]
        torch.testing.assert_close(found[l, 0], pi[0], rtol=0, atol=1e-12)
        expected = torch.einsum("nbt,in->ibt", coefficients, shares[:l, :n])
        torch.testing.assert_close(found[l, 1 : l + 1], expected, rtol=0, atol=1e-12)
