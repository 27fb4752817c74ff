"""AttnRes: source sets, causality in depth, input-dependent queries, and settings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from repro.depth.attnres import AttnRes
from repro.depth.boundaries import ends_by_count, ends_by_size
from repro.errors import ConfigError
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, build, results
from tests.toy import error, normal

# Source sets


@pytest.mark.parametrize(
    ("num_sublayers", "options", "expected"),
    [
        (
            5,
            {"block_size": 2},
            ["b0", "b0 partial(1)", "b0 b1", "b0 b1 partial(1)", "b0 b1 b2", "b0 b1 b2 b3"],
        ),
        (4, {"block_size": 1}, ["b0", "b0 b1", "b0 b1 b2", "b0 b1 b2 b3", "b0 b1 b2 b3 b4"]),
        (
            4,
            {"block_size": 3},
            ["b0", "b0 partial(1)", "b0 partial(2)", "b0 b1", "b0 b1 b2"],
        ),
        (3, {"block_size": 32}, ["b0", "b0 partial(1)", "b0 partial(2)", "b0 b1"]),
        (
            5,
            {"num_blocks": 2},  # boundaries at round(2.5) = 2 and 5
            ["b0", "b0 partial(1)", "b0 b1", "b0 b1 partial(1)", "b0 b1 partial(2)", "b0 b1 b2"],
        ),
        (
            5,
            {"window": 2},
            ["b0", "b0 b1", "b0 b1 b2", "b0 b2 b3", "b0 b3 b4", "b0 b1 b2 b3 b4 b5"],
        ),
        (
            5,
            {"window": 2, "window_output": "window"},
            ["b0", "b0 b1", "b0 b1 b2", "b0 b2 b3", "b0 b3 b4", "b0 b4 b5"],
        ),
    ],
)
def test_source_sets(num_sublayers: int, options: dict[str, Any], expected: list[str]) -> None:
    mixer = AttnRes(num_sublayers, WIDTH, **options)
    labels = [mixer.source_labels(l) for l in range(num_sublayers + 1)]
    assert [" ".join(line) for line in labels] == expected
    assert [mixer.num_sources(l) for l in range(num_sublayers + 1)] == [len(line) for line in labels]


def test_columns_share_the_block_and_its_partial_sum() -> None:
    """L = 5, S = 2: the partial sum of block n is drawn in column n."""
    mixer = AttnRes(5, WIDTH, block_size=2)
    assert [mixer.source_columns(l) for l in range(6)] == [
        [0], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]
    ]  # fmt: skip


def test_number_of_sources_in_figure_8() -> None:
    """L = 32, S = 4 (N = 8): pre-attention 1,2,2,3,3,...,8,8,9 and pre-MLP 2,2,3,3,...,9,9 sources."""
    mixer = AttnRes(32, WIDTH, block_size=4)
    assert [mixer.num_sources(l) for l in range(0, 32, 2)] == [1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9]
    assert [mixer.num_sources(l) for l in range(1, 32, 2)] == [2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert mixer.num_sources(32) == 9


@pytest.mark.parametrize(
    ("num_sublayers", "num_blocks", "ends"),
    [
        (32, 8, (4, 8, 12, 16, 20, 24, 28, 32)),
        (26, 8, (3, 6, 10, 13, 16, 20, 23, 26)),
        (9, 8, (1, 2, 3, 4, 6, 7, 8, 9)),
        (8, 8, (1, 2, 3, 4, 5, 6, 7, 8)),
        (5, 1, (5,)),
    ],
)
def test_balanced_blocks(num_sublayers: int, num_blocks: int, ends: tuple[int, ...]) -> None:
    assert ends_by_count(num_sublayers, num_blocks) == ends


@given(num_sublayers=st.integers(1, 300), num_blocks=st.integers(1, 300))
def test_balanced_blocks_differ_by_at_most_one(num_sublayers: int, num_blocks: int) -> None:
    if num_blocks > num_sublayers:
        with pytest.raises(ConfigError, match="from 1 to the number of sublayers"):
            ends_by_count(num_sublayers, num_blocks)
        return
    ends = ends_by_count(num_sublayers, num_blocks)
    sizes = [b - a for a, b in zip((0, *ends), ends, strict=False)]
    assert len(ends) == num_blocks
    assert ends[-1] == num_sublayers
    assert max(sizes) - min(sizes) <= 1


def test_a_short_last_block() -> None:
    assert ends_by_size(7, 3) == (3, 6, 7)
    assert ends_by_size(6, 3) == (3, 6)
    assert ends_by_size(2, 32) == (2,)


# Causality in depth


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("options", [{"block_size": 1}, {"block_size": 3}, {"window": 2}], ids=str)
def test_a_read_sees_what_its_sources_say(options: dict[str, Any], execution: str) -> None:
    """Read l has a gradient with respect to output j exactly where j is in one of its sources."""
    num = 7
    mixer = build(num, **options, execution=execution)
    embedding = normal("embedding", 1, 2, WIDTH).requires_grad_()
    outputs = [normal(f"output {l}", 1, 2, WIDTH).requires_grad_() for l in range(num)]
    reads = walk(mixer, embedding, outputs)
    ends = mixer.plan.ends
    for l, read in enumerate(reads):
        grads = torch.autograd.grad(read.sum(), [embedding, *outputs], retain_graph=True, allow_unused=True)
        expected = {0}
        for label in mixer.source_labels(l)[1:]:
            if label.startswith("b"):
                n = int(label[1:])
                expected |= set(range((0, *ends)[n - 1] + 1, ends[n - 1] + 1))
            else:
                expected |= set(range(l - int(label[8:-1]) + 1, l + 1))
        assert {j for j, grad in enumerate(grads) if grad is not None and grad.any()} == expected, f"read {l}"


# Input-dependent queries


@pytest.mark.parametrize("query_norm", ["unit", "rms", "none"])
@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
@pytest.mark.parametrize("block_size", [1, 2])
def test_input_dependent_queries(query: str, block_size: int, query_norm: str) -> None:
    """Against the definition written out: q = P_l n(x), x what it depends on, n its norm."""
    mixer = build(4, query=query, query_norm=query_norm, block_size=block_size)
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH) for i in range(5))
    reads = walk(mixer, embedding, outputs)
    previous = embedding
    for l in range(5):
        if block_size == 1:
            sources = [embedding, *outputs[:l]]
        else:
            sources = [embedding] + [outputs[j] + outputs[j + 1] for j in range(0, l - 1, 2)]
            sources += [outputs[l - 1]] if l % 2 else []
        origin = sources[-1] if query == "latest_source" else previous
        if query_norm == "unit":
            origin = origin / origin.square().sum(-1, keepdim=True).sqrt()
        elif query_norm == "rms":
            origin = origin / origin.square().mean(-1, keepdim=True).sqrt()
        q = torch.einsum("ij,btj->bti", mixer.query_projections[l], origin)
        keys = [v / v.square().mean(-1, keepdim=True).sqrt() * mixer.key_gains[l] for v in sources]
        weights = torch.softmax(torch.stack([(q * k).sum(-1) for k in keys]), 0)
        expected = sum(w.unsqueeze(-1) * v for w, v in zip(weights, sources, strict=True))
        assert error(reads[l], expected) < 1e-6  # eps
        previous = reads[l]


def test_input_dependent_queries_start_uniform_and_are_never_matrices() -> None:
    mixer = AttnRes(4, WIDTH, query="latest_source")
    assert mixer.query_projections.shape == (5, WIDTH, WIDTH)
    assert mixer.query_projections.group == "query"
    assert not mixer.query_projections.any()
    found = results(mixer, torch.float32)
    assert (found["weights 3"] - 1 / 4).abs().max() < 1e-7
    assert found["gradient of query_projections"][1:].flatten(1).any(1).all()


# Settings


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"block_size": 0}, "arm.mixer.block_size"),
        ({"block_size": -4}, "arm.mixer.block_size"),
        ({"block_size": 2.5}, "arm.mixer.block_size"),
        ({"block_size": True}, "arm.mixer.block_size"),
        ({"num_blocks": 7}, "arm.mixer.num_blocks"),
        ({"num_blocks": 0}, "arm.mixer.num_blocks"),
        ({"num_blocks": 2, "block_size": 3}, "arm.mixer.num_blocks"),
        ({"window": 0}, "arm.mixer.window"),
        ({"window": 2, "block_size": 2}, "arm.mixer.window"),
        ({"window": 2, "window_output": "none"}, "arm.mixer.window_output"),
        ({"heads": 4}, "arm.mixer.heads"),
        ({"heads": 0}, "arm.mixer.heads"),
        ({"act": "relu"}, "arm.mixer.act"),
        ({"query": "first"}, "arm.mixer.query"),
        ({"backend": "cuda"}, "runtime.backend"),
    ],
    ids=str,
)
def test_a_bad_setting_names_its_key(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AttnRes(6, WIDTH, **options)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_parameters_and_their_groups() -> None:
    """One query and one gain per read, the output read included; no gain without the key norm."""
    mixer = AttnRes(6, WIDTH, block_size=2)
    assert {n: (p.group, tuple(p.shape)) for n, p in mixer.named_parameters()} == {
        "queries": ("query", (7, WIDTH)),
        "key_gains": ("gain", (7, WIDTH)),
    }
    for options in ({"key_gain": False}, {"key_norm": False}):
        assert [name for name, _ in AttnRes(6, WIDTH, **options).named_parameters()] == ["queries"]


def test_operations_per_token() -> None:
    """L = 3, S = 2, D = 6: 1 + 2 + 2 + 3 sources, keys of b0, b1, b2 and one partial sum, one sum."""
    assert AttnRes(3, WIDTH, block_size=2).flops_per_token() == 6 * (4 * 8 + 2 * 4 + 1)
    assert AttnRes(3, WIDTH, block_size=2, key_norm=False).flops_per_token() == 6 * (4 * 8 + 1)
