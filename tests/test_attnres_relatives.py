"""Relatives of AttnRes: neutral settings, and every execution against the definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.attnres_keys import LowRankKeys
from repro.depth.attnres_logits import RecencyBias, Temperature
from repro.depth.attnres_weights import Entmax, Sparsemax, TopK
from repro.depth.prenorm import PreNorm
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, randomised, results, same
from tests.relatives import ONE_OF_EACH, PROJECTED, Scheme, expected_reads, make
from tests.toy import Toy, error, normal, randomise

# Neutral settings

#: scheme and options under which it is AttnRes, for L = 7; what its extra parameters then are is their start
NEUTRAL: list[tuple[Scheme, dict[str, Any]]] = [
    # All D channels, cut by the identity: the key itself, whichever comes first, norm or cut.
    *((LowRankKeys, {"rank": WIDTH, "keys": k, "norm_over": n})
      for k in ("sliced", *PROJECTED) for n in ("width", "rank")),
    (RecencyBias, {}),  # exp(0) = 1
    (RecencyBias, {"bias": "latest"}),
    (RecencyBias, {"bias": "slope", "slope": 1e-300}),
    (Temperature, {}),  # exp(-0) = 1
]  # fmt: skip


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize(("scheme", "options"), [*NEUTRAL, (TopK, {})], ids=str)
def test_the_neutral_setting_is_attnres(
    scheme: Scheme, options: dict[str, Any], block_size: int, execution: str
) -> None:
    """Reads, weights and the gradients of everything both have. Top-k: k = 8 or 4 are all the sources."""
    plain = randomised(make(AttnRes, 7, block_size=block_size))
    if scheme is TopK:
        options = {"top_k": {1: 8, 3: 4}[block_size]}
    mixer = make(scheme, 7, block_size=block_size, execution=execution, **options)
    mixer.load_state_dict(plain.state_dict(), strict=False)
    expected, found = results(plain), results(mixer)
    same({name: found[name] for name in expected}, expected)


@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize(("scheme", "power"), [(Sparsemax, 1.0), (Entmax, 0.5)])
def test_sparse_weights_start_as_attnres_with_steeper_queries(
    scheme: Scheme, power: float, block_size: int
) -> None:
    """At zero queries: the same reads, and each query's gradient times n^(alpha - 1), n sources of the read.

    The Jacobian of alpha-entmax at equal logits is n^(alpha - 1) times that of the softmax. Gradients of one
    read do not pass through another here, since the sublayers write given outputs.
    """
    plain, mixer = make(AttnRes, 7, block_size=block_size), make(scheme, 7, block_size=block_size)
    expected, found = results(plain), results(mixer)
    for l in range(8):
        assert error(found[f"read {l}"], expected[f"read {l}"]) < 1e-14
        n = mixer.num_sources(l)
        steeper = n**power * expected["gradient of queries"][l]
        assert (found["gradient of queries"][l] - steeper).abs().max() < 1e-12 * n


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        *NEUTRAL,
        (TopK, {"top_k": 2}),
        (Sparsemax, {}),
        (Entmax, {}),
        (LowRankKeys, {"rank": 2}),
        (LowRankKeys, {"rank": 2, "keys": "projected", "norm_over": "rank"}),
        (Temperature, {"query": "mixed_state"}),
    ],
    ids=str,
)
def test_zero_queries_are_prenorm(scheme: Scheme, options: dict[str, Any], execution: str) -> None:
    """The mean of the sources, top-k with all of them in a tie included; norms take the count out."""
    if scheme is LowRankKeys and options["rank"] == WIDTH:
        options = {**options, "rank": 16}
    toy = Toy(9, 16)
    baseline = toy.run(PreNorm(9, 16))
    for block_size in (1, 4):
        mixer = make(scheme, 9, 16, block_size=block_size, eps=0.0, execution=execution, **options)
        assert error(toy.run(mixer), baseline) < 1e-12


def test_a_slope_does_not_start_as_prenorm() -> None:
    toy = Toy(9, 16)
    mixer = make(RecencyBias, 9, 16, eps=0.0, bias="slope", slope=0.125)
    assert error(toy.run(mixer), toy.run(PreNorm(9, 16))) > 0.01


# Definitions, and the executions of one scheme

#: what is checked against the definitions below, in every execution
CASES: list[tuple[Scheme, dict[str, Any]]] = [
    *((LowRankKeys, {"rank": 2, "keys": k, "norm_over": n})
      for k in ("sliced", *PROJECTED) for n in ("width", "rank")),
    (LowRankKeys, {"rank": 3, "act": "sigmoid_normalized"}),
    (LowRankKeys, {"rank": 3, "norm_over": "rank", "key_norm": False}),
    (LowRankKeys, {"keys": "projected", "norm_over": "rank", "key_gain": False}),
    (RecencyBias, {}),
    (RecencyBias, {"heads": 2, "head_norm": True}),
    (RecencyBias, {"bias": "latest"}),
    (RecencyBias, {"bias": "slope", "slope": 0.3}),
    (RecencyBias, {"query": "latest_source"}),
    (Temperature, {}),
    (Temperature, {"act": "sigmoid"}),
    (Temperature, {"query": "mixed_state"}),
    (TopK, {"top_k": 2}),
    (TopK, {"top_k": 3, "heads": 3}),
    (Sparsemax, {}),
    (Sparsemax, {"heads": 2, "key_norm": False}),
    (Entmax, {}),
    (Entmax, {"query": "latest_source", "heads": 2}),
]  # fmt: skip


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize(("scheme", "options"), CASES, ids=str)
def test_reads_follow_the_definition_in_every_execution(
    scheme: Scheme, options: dict[str, Any], block_size: int
) -> None:
    """Reads and the gradients of a loss over all of them in everything; 10 sublayers, a short last block."""
    embedding = normal("embedding", 2, 3, WIDTH).requires_grad_()
    outputs = [normal(f"output {l}", 2, 3, WIDTH).requires_grad_() for l in range(10)]
    found: list[list[Tensor]] = []
    for execution in (None, *EXECUTIONS):
        mixer = randomised(make(scheme, 10, block_size=block_size, **options, execution=execution or "auto"))
        reads = (
            walk(mixer, embedding, outputs)
            if execution
            else expected_reads(mixer, embedding, outputs, block_size)
        )
        loss = sum((read * normal(f"loss {l}", *read.shape)).sum() for l, read in enumerate(reads))
        leaves = [embedding, *outputs, *mixer.parameters()]
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        pairs = zip(leaves, grads, strict=True)
        found.append([*reads, *(torch.zeros_like(x) if g is None else g for x, g in pairs)])
    for tensors in found[1:]:
        for a, b in zip(tensors, found[0], strict=True):
            assert (a - b).abs().max() <= 1e-11 * max(b.abs().max().item(), 1e-2)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (RecencyBias, {"window": 3}),
        (RecencyBias, {"window": 2, "window_output": "window", "bias": "latest"}),
        (LowRankKeys, {"window": 3, "keys": "projected_per_read", "norm_over": "rank"}),
        (TopK, {"window": 3, "top_k": 2}),
        (Entmax, {"num_blocks": 3}),
        (Temperature, {"window": 3}),
        (RecencyBias, {}),
        (LowRankKeys, {"keys": "projected", "norm_over": "rank"}),
        (Sparsemax, {"block_size": 4}),
    ],
    ids=str,
)
def test_executions_are_equal(scheme: Scheme, options: dict[str, Any]) -> None:
    """With recorded weights; 20 sublayers, so that two-phase has several groups of reads, and windows."""
    expected = results(randomised(make(scheme, 20, execution="per_read", backend="reference", **options)))
    for execution in EXECUTIONS:
        for backend in ("auto", "eager"):
            mixer = randomised(make(scheme, 20, execution=execution, backend=backend, **options))
            same(results(mixer), expected, 1e-11)


@pytest.mark.parametrize(("scheme", "options"), ONE_OF_EACH, ids=str)
def test_gradcheck(scheme: Scheme, options: dict[str, Any]) -> None:
    """All reads of a Block network of four sublayers, in everything, against finite differences."""
    mixer = randomise(make(scheme, 4, 4, block_size=2, **options), 0.2)
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(5)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:  # the parameters among them are perturbed in place
        return tuple(walk(mixer, tensors[0], list(tensors[1:5])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))
