"""Blocks with boundaries of their own: where they equal Block and Full, and how they are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.blocks import EqualParameterBlocks, K3Blocks, UnevenBlocks
from repro.depth.boundaries import ends_by_count, ends_by_weight
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, build, randomised, results, same
from tests.toy import default_dtype, normal


def make(scheme: Any, num_sublayers: int, **options: Any) -> AttnRes:
    with default_dtype(torch.float64):
        return randomised(scheme(num_sublayers, WIDTH, **options))


def written(num_sublayers: int) -> list[Tensor]:
    """The embedding and what each sublayer writes."""
    return [normal(f"source {i}", 2, 3, WIDTH) for i in range(num_sublayers + 1)]


def mix(mixer: AttnRes, l: int, sources: list[Tensor]) -> Tensor:
    """Read l of these sources by the definition."""
    read, _ = ops.depth_mix(
        sources, mixer.queries[l], key_weight=mixer.key_gains[l], backend="reference", eps=mixer.eps
    )
    return read


# Given boundaries


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("boundaries", "block"),
    [
        ([4, 8, 12, 16], {"block_size": 4}),
        ([4, 8, 12, 16, 18], {"block_size": 4}),  # L may be in the list
        ([18], {"block_size": 18}),  # one block
        (list(range(1, 19)), {"block_size": 1}),  # Full
    ],
)
def test_an_even_list_is_block_bit_for_bit(boundaries: list[int], block: Any, execution: str) -> None:
    found = results(make(UnevenBlocks, 18, boundaries=boundaries, execution=execution))
    expected = results(build(18, **block, execution=execution))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_an_uneven_list_by_its_sources(execution: str) -> None:
    """Boundaries after 1 and 4 of 6 sublayers: every read's sources written out."""
    mixer = make(UnevenBlocks, 6, boundaries=[1, 4], execution=execution)
    e, f0, f1, f2, f3, f4, f5 = written(6)
    b1, b2 = f0, f1 + f2 + f3
    sources = [
        [e],
        [e, b1],
        [e, b1, f1],
        [e, b1, f1 + f2],
        [e, b1, b2],
        [e, b1, b2, f4],
        [e, b1, b2, f4 + f5],
    ]
    for l, read in enumerate(walk(mixer, e, [f0, f1, f2, f3, f4, f5])):
        torch.testing.assert_close(read, mix(mixer, l, sources[l]), rtol=1e-12, atol=1e-13)
    assert [mixer.num_sources(l) for l in range(7)] == [1, 2, 3, 3, 3, 4, 4]


def test_executions_of_uneven_blocks_agree() -> None:
    options: dict[str, Any] = {"boundaries": [3, 4, 11, 12]}
    expected = results(make(UnevenBlocks, 21, **options, execution="per_read", backend="reference"))
    for execution in EXECUTIONS:
        same(results(make(UnevenBlocks, 21, **options, execution=execution)), expected, 1e-11)


def test_fractions_of_the_depth() -> None:
    fractions = [0.125, 0.25, 0.5]
    assert UnevenBlocks(32, 4, fractions=fractions).plan.ends == (4, 8, 16, 32)
    assert UnevenBlocks(8, 4, fractions=fractions).plan.ends == (1, 2, 4, 8)
    assert UnevenBlocks(10, 4, fractions=[0.33]).plan.ends == (3, 10)


# Equal parameters


def test_blocks_of_equal_parameters() -> None:
    """Per D^2: attention 4, MLP 3 * 2.75 = 8.25; a transformer block 12.25, sixteen of them 196.

    Six blocks end nearest to 32.67, 65.33, 98, 130.67, 163.33: after 6 sublayers (36.75 is nearer than 28.5),
    11 (65.25), 16 (98 exactly), 22 (134.75, not 126.5), 27 (163.25) and 32.
    """
    mixer = EqualParameterBlocks(32, 4, num_blocks=6, mlp_ratio=2.75)
    assert mixer.plan.ends == (6, 11, 16, 22, 27, 32)
    assert AttnRes(32, 4, num_blocks=6).plan.ends == (5, 11, 16, 21, 27, 32)
    counts = [4.0, 8.25] * 16
    sizes = [sum(counts[a:b]) for a, b in zip((0, 6, 11, 16, 22, 27), mixer.plan.ends, strict=True)]
    assert sizes == [36.75, 28.5, 32.75, 36.75, 28.5, 32.75]


def test_equal_parameters_with_sublayers_of_one_size_are_balanced_blocks() -> None:
    """At F = 4/3 D both kinds weigh 4 D^2. Ties (k L / N halfway) are left out: they may round either way."""
    for num_sublayers in range(1, 25):
        for num_blocks in range(1, num_sublayers + 1):
            halfway = [k * num_sublayers / num_blocks % 1 == 0.5 for k in range(num_blocks)]
            if not any(halfway):
                found = EqualParameterBlocks(num_sublayers, 4, num_blocks=num_blocks, mlp_ratio=4 / 3)
                assert found.plan.ends == ends_by_count(num_sublayers, num_blocks)


def test_a_block_has_at_least_one_sublayer() -> None:
    """All weight in the first sublayer: the others still get a block each."""
    assert ends_by_weight(4, [100.0, 1.0, 1.0, 1.0]) == (1, 2, 3, 4)
    assert ends_by_weight(2, [1.0, 1.0, 100.0]) == (2, 3)
    assert ends_by_weight(1, [1.0, 2.0]) == (2,)


# K3


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(("num_blocks", "size"), [(4, 1), (5, 2), (6, 3), (3, 5)])
def test_k3_mode_is_the_loop_of_k3(num_blocks: int, size: int, execution: str) -> None:
    """Push and reset at index % size == 0, counted in transformer blocks; a read before the push."""
    mixer = make(K3Blocks, 2 * num_blocks, transformer_blocks=size, execution=execution)
    embedding, *outputs = written(2 * num_blocks)
    blocks: list[Tensor] = []
    prefix: Tensor | None = embedding
    expected = []
    for l, output in enumerate(outputs):
        held = [] if prefix is None else [prefix]
        expected.append(mix(mixer, l, [*blocks, *held]) if blocks else embedding)
        if l % 2 == 0 and l // 2 % size == 0:
            assert prefix is not None
            blocks, prefix = [*blocks, prefix], None
        prefix = output if prefix is None else prefix + output
    assert prefix is not None
    expected.append(mix(mixer, len(outputs), [*blocks, prefix]))
    for a, b in zip(walk(mixer, embedding, outputs), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_k3_mode_is_block_of_twice_its_size() -> None:
    found, block = results(make(K3Blocks, 10, transformer_blocks=3)), results(build(10, block_size=6))
    assert all(torch.equal(found[name], block[name]) for name in block)
    assert K3Blocks(186, 4, transformer_blocks=12).plan.ends == (24, 48, 72, 96, 120, 144, 168, 186)


def test_parameters_are_those_of_block() -> None:
    """L + 1 queries and gains."""
    for mixer in (UnevenBlocks(9, 4, boundaries=[2]), EqualParameterBlocks(9, 4, num_blocks=2)):
        assert {name: tuple(p.shape) for name, p in mixer.named_parameters()} == {
            "queries": (10, 4),
            "key_gains": (10, 4),
        }


@pytest.mark.parametrize("scheme", [UnevenBlocks, K3Blocks])
def test_gradcheck(scheme: Any) -> None:
    options: dict[str, Any] = {"boundaries": [1, 4]} if scheme is UnevenBlocks else {"transformer_blocks": 1}
    with default_dtype(torch.float64):
        mixer = randomised(scheme(5, 4, **options))
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


@pytest.mark.parametrize(
    ("scheme", "options", "key", "message"),
    [
        (UnevenBlocks, {"boundaries": [4, 2]}, "boundaries", "in ascending order"),
        (UnevenBlocks, {"boundaries": [2, 2, 4]}, "boundaries", "each boundary once"),
        (UnevenBlocks, {"boundaries": [2, 9]}, "boundaries", "none beyond the number of sublayers, 8"),
        (UnevenBlocks, {"boundaries": []}, "boundaries", "a list"),
        (UnevenBlocks, {"boundaries": [0, 4]}, "boundaries", "at least 1"),
        (UnevenBlocks, {"boundaries": [1.5]}, "boundaries", "whole numbers"),
        (UnevenBlocks, {"boundaries": "4"}, "boundaries", "a list"),
        (UnevenBlocks, {"boundaries": 4}, "boundaries", "a list"),
        (UnevenBlocks, {}, "boundaries", "null where fractions"),
        (UnevenBlocks, {"boundaries": [4], "fractions": [0.5]}, "boundaries", "null where fractions"),
        (UnevenBlocks, {"fractions": [0.5, 0.25]}, "fractions", "in ascending order"),
        (UnevenBlocks, {"fractions": [0.5, 0.51]}, "fractions", "one of 8 sublayers apart"),
        (UnevenBlocks, {"fractions": [1.0]}, "fractions", "below 1"),
        (UnevenBlocks, {"fractions": [0.01]}, "fractions", "one of 8 sublayers apart"),
        (UnevenBlocks, {"boundaries": [4], "block_size": 4}, "block_size", "null"),
        (UnevenBlocks, {"boundaries": [4], "window": 4}, "window", "null"),
        (EqualParameterBlocks, {"num_blocks": 9}, "num_blocks", "from 1 to the number of sublayers, 8"),
        (EqualParameterBlocks, {"num_blocks": 2, "mlp_ratio": 0}, "mlp_ratio", "a positive number"),
        (EqualParameterBlocks, {"num_blocks": 2, "mlp_ratio": "x"}, "mlp_ratio", "a positive number"),
        (EqualParameterBlocks, {"num_blocks": 2, "block_size": 2}, "block_size", "null"),
        (K3Blocks, {"transformer_blocks": 0}, "transformer_blocks", "at least 1"),
        (K3Blocks, {"transformer_blocks": 1.5}, "transformer_blocks", "whole number"),
        (K3Blocks, {"transformer_blocks": 1, "block_size": 2}, "block_size", "null"),
    ],
)
def test_bad_boundaries_name_their_key(scheme: Any, options: Any, key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        scheme(8, 4, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert "\n" not in str(caught.value)
