"""Relatives of AttnRes that change keys, logits or weights: neutral settings, executions, definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.attnres_keys import LowRankKeys
from repro.depth.attnres_logits import RecencyBias, Temperature
from repro.depth.attnres_weights import Entmax, Sparsemax, TopK
from repro.depth.facts import num_parameters, state_per_token
from repro.depth.prenorm import PreNorm
from repro.errors import ConfigError
from repro.ops.sparse import entmax15, sparsemax
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, randomised, results, same
from tests.toy import Toy, default_dtype, error, normal, randomise

Scheme = type[AttnRes]
PROJECTED = ("projected", "projected_per_read")


def make(scheme: Scheme, num_sublayers: int, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


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


def expected_logits(mixer: Any, l: int, sources: list[Tensor], query: Tensor | None) -> list[Tensor]:
    """The logit of each source at read l, [B, T, H], written out from the docstrings; newest source last."""
    found = []
    gain = 1 if mixer.key_gains is None else mixer.key_gains[l]
    query = mixer.queries[l] if query is None else query
    if isinstance(mixer, Temperature):
        query = query / mixer.log_temperatures[l].exp()
    for i, source in enumerate(sources):

        def unit(x: Tensor) -> Tensor:
            if not mixer.key_norm:
                return x
            groups = mixer.heads if mixer._norm["head_norm"] else 1
            cut = x.unflatten(-1, (groups, -1))
            return (cut / (cut.square().mean(-1, keepdim=True) + mixer.eps).sqrt()).flatten(-2)

        if isinstance(mixer, LowRankKeys):
            P = torch.eye(mixer.width, dtype=torch.float64)[: mixer.rank]
            if mixer.low_rank != "sliced":
                P = mixer.projection if mixer.low_rank == "projected" else mixer.projection[l]
            key = unit(source) @ P.T if mixer.norm_over == "width" else unit(source @ P.T)
        else:
            key = unit(source)
        logit = (key * gain * query).unflatten(-1, (mixer.heads, -1)).sum(-1)
        distance = len(sources) - 1 - i
        if isinstance(mixer, RecencyBias):
            if mixer.bias == "distance":
                logit = logit + (mixer.biases[distance - 1] if distance else 0)
            elif mixer.bias == "latest":
                logit = logit + (0 if distance else mixer.biases[l])
            else:
                logit = logit - mixer.slope * distance
        found.append(logit)
    return found


def expected_weights(mixer: Any, logits: Tensor) -> Tensor:
    """Weights of logits [S, B, T, H]."""
    if isinstance(mixer, TopK):
        ranks = (logits.unsqueeze(1) < logits.unsqueeze(0)).sum(1)  # how many are larger
        exponentials = logits.exp() * (ranks < mixer.top_k)
        return exponentials / exponentials.sum(0)
    if isinstance(mixer, Sparsemax | Entmax):
        return sparsemax(logits) if isinstance(mixer, Sparsemax) else entmax15(logits)
    if mixer.act == "softmax":
        return logits.exp() / logits.exp().sum(0)
    weights = 1 / (1 + torch.exp(-logits))
    return weights / weights.sum(0) if mixer.act == "sigmoid_normalized" else weights


def expected_reads(mixer: Any, embedding: Tensor, outputs: list[Tensor], block_size: int) -> list[Tensor]:
    complete, partial, reads, mixed = [embedding], [], [], embedding
    for l in range(len(outputs) + 1):
        sources = [*complete, *([torch.stack(partial).sum(0)] if partial else [])]
        query = None
        if mixer.query != "learned":
            origin = sources[-1] if mixer.query == "latest_source" else mixed
            unit = origin / (origin.square().mean(-1, keepdim=True) + mixer.eps).sqrt() / mixer.width**0.5
            query = unit @ mixer.query_projections[l].T
        weights = expected_weights(mixer, torch.stack(expected_logits(mixer, l, sources, query)))
        values = torch.stack(sources).unflatten(-1, (mixer.heads, -1))
        mixed = (weights.unsqueeze(-1) * values).sum(0).flatten(-2)
        reads.append(mixed)
        if l < len(outputs):
            partial.append(outputs[l])
            if (l + 1) % block_size == 0 or l + 1 == len(outputs):
                complete, partial = [*complete, torch.stack(partial).sum(0)], []
    return reads


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


GRADIENTS: list[tuple[Scheme, dict[str, Any]]] = [
    (LowRankKeys, {"rank": 2}),
    (LowRankKeys, {"rank": 2, "keys": "projected"}),
    (LowRankKeys, {"rank": 2, "keys": "projected", "norm_over": "rank"}),
    (RecencyBias, {}),
    (Temperature, {}),
    (TopK, {"top_k": 2}),
    (Sparsemax, {}),
    (Entmax, {}),
]


@pytest.mark.parametrize(("scheme", "options"), GRADIENTS, ids=str)
def test_gradcheck(scheme: Scheme, options: dict[str, Any]) -> None:
    """All reads of a Block network of four sublayers, in everything, against finite differences."""
    mixer = randomise(make(scheme, 4, 4, block_size=2, **options), 0.2)
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(5)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:  # the parameters among them are perturbed in place
        return tuple(walk(mixer, tensors[0], list(tensors[1:5])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


# What each is for


def recorded(mixer: AttnRes) -> dict[int, Tensor]:
    """Weights [S, H, B, T] of all reads of a walk over 12 random vectors of unit size."""
    found: dict[int, Tensor] = {}
    mixer.tap = found.__setitem__
    vectors = [normal(f"source {i}", 2, 6, mixer.width) for i in range(mixer.num_sublayers + 1)]
    walk(mixer, vectors[0], vectors[1:])
    return found


@pytest.mark.parametrize("execution", ["per_read", "score_on_write"])
@pytest.mark.parametrize("scheme", [Sparsemax, Entmax])
def test_sparse_weights_sum_to_one_and_have_zeros(scheme: Scheme, execution: str) -> None:
    weights = recorded(randomise(make(scheme, 12, 16, execution=execution), 0.5))
    for l, found in weights.items():
        assert (found.sum(0) - 1).abs().max() < 1e-14
        assert (found >= 0).all()
        assert l < 4 or (found == 0).any()  # with more than four sources and logits of deviation 2
    assert 1 < (weights[12] > 0).sum(0).double().mean() < 12


@pytest.mark.parametrize("execution", ["per_read", "score_on_write"])
def test_top_k_keeps_k_sources_per_token_and_their_ratios(execution: str) -> None:
    mixer = randomise(make(TopK, 12, 16, top_k=3, execution=execution), 0.3)
    plain = make(AttnRes, 12, 16)
    plain.load_state_dict(mixer.state_dict())
    full = recorded(plain)
    for l, found in recorded(mixer).items():
        kept = found > 0
        assert (kept.sum(0) == min(3, l + 1)).all()
        assert (full[l].masked_fill(~kept, 2).amin(0) > full[l].masked_fill(kept, -1).amax(0)).all()
        renormalised = full[l] * kept / (full[l] * kept).sum(0)
        assert error(found, renormalised) < 1e-12


@pytest.mark.parametrize(
    ("scheme", "options"), [(TopK, {"top_k": 2}), (Sparsemax, {}), (Entmax, {}), (LowRankKeys, {"rank": 3})]
)
def test_the_order_of_sources_does_not_matter(scheme: Scheme, options: dict[str, Any]) -> None:
    """Weights move with their sources, those of a tie included (the first two sources are equal)."""
    mixer = randomise(make(scheme, 7, execution="per_read", **options))
    sources = [normal(f"source {max(i, 1)}", 2, 3, WIDTH) for i in range(6)]
    order = [3, 0, 5, 1, 4, 2]
    query = mixer._folded_queries()[6]
    read, weights = mixer._mix_sources(6, sources, query, None)
    again, permuted = mixer._mix_sources(6, [sources[i] for i in order], query, None)
    assert error(again, read) < 1e-14
    assert error(permuted, weights[order]) < 1e-14
    assert torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("block_size", [1, 2])
def test_a_slope_alone_gives_powers_of_two(block_size: int, execution: str) -> None:
    """slope = ln 2 at zero queries: every step back halves the weight; a block is one step."""
    mixer = make(RecencyBias, 4, block_size=block_size, bias="slope", slope=math.log(2), execution=execution)
    halves = {1: [1.0], 2: [1 / 3, 2 / 3], 3: [1 / 7, 2 / 7, 4 / 7], 4: [k / 15 for k in (1, 2, 4, 8)]}
    halves[5] = [k / 31 for k in (1, 2, 4, 8, 16)]
    sizes = {1: [1, 2, 3, 4, 5], 2: [1, 2, 2, 3, 3]}[block_size]
    for l, weights in recorded(mixer).items():
        assert weights[:, 0, 0, 0].tolist() == pytest.approx(halves[sizes[l]], abs=1e-15)


def test_low_rank_queries_have_that_rank() -> None:
    """W = U P: the queries as AttnRes has them span r dimensions, and all D where each read has its own P."""
    for keys, rank in (("sliced", 3), ("projected", 3), ("projected_per_read", 8)):
        mixer = randomise(make(LowRankKeys, 12, 8, rank=3, keys=keys))
        folded = mixer._folded_queries()
        assert folded.shape == (13, 8)
        assert torch.linalg.matrix_rank(folded) == rank
    sliced = randomise(make(LowRankKeys, 12, 8, rank=3))._folded_queries()
    assert sliced[:, :3].all()
    assert not sliced[:, 3:].any()


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_temperature_divides_the_query(execution: str) -> None:
    hot, plain = randomised(make(Temperature, 7, execution=execution)), make(AttnRes, 7)
    with torch.no_grad():
        plain.queries.copy_(hot.queries / hot.log_temperatures.exp()[:, None])
        plain.key_gains.copy_(hot.key_gains)
    expected, found = results(plain), results(hot)
    for l in range(8):
        assert error(found[f"read {l}"], expected[f"read {l}"]) < 1e-13


# Precision and tracing

NARROW: list[tuple[Scheme, dict[str, Any]]] = [
    *GRADIENTS,
    (LowRankKeys, {"keys": PROJECTED[1], "norm_over": "rank"}),
]


@pytest.mark.parametrize(("scheme", "options"), NARROW, ids=str)
def test_autocast_keeps_mixing_in_float32(scheme: Scheme, options: dict[str, Any]) -> None:
    """bfloat16 outputs on a float32 embedding: sums, logits and reads of the same numbers in float32."""
    for execution in EXECUTIONS:
        mixer = randomised(scheme(5, WIDTH, block_size=2, execution=execution, **options))
        embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
        narrow = [y.bfloat16() for y in outputs]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reads = walk(mixer, embedding, narrow)
        for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
            assert a.dtype == torch.float32
            assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("scheme", "options"), [(LowRankKeys, {"norm_over": "rank"}), (RecencyBias, {}), (Entmax, {})], ids=str
)
def test_torch_compile_sees_one_graph(scheme: Scheme, options: dict[str, Any]) -> None:
    mixer = randomised(scheme(2, WIDTH, block_size=2, **options))
    sources = [normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(3)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-5


# Counts, facts and bad input


def test_parameter_counts() -> None:
    """L + 1 = 7 reads of width D = 12 and rank r = 5, queries and gains; what each adds beside them."""
    count: Callable[..., int] = lambda scheme, **options: num_parameters(scheme(6, 12, **options))  # noqa: E731
    assert count(AttnRes) == 2 * 7 * 12
    assert count(LowRankKeys, rank=5) == 2 * 7 * 5
    assert count(LowRankKeys) == 2 * 7 * 3  # a quarter of the width
    assert count(LowRankKeys, rank=5, keys="projected") == 2 * 7 * 5 + 5 * 12
    assert count(LowRankKeys, rank=5, keys="projected_per_read") == 2 * 7 * 5 + 7 * 5 * 12
    assert count(RecencyBias) == 2 * 7 * 12 + 6  # distances 1 to 6
    assert count(RecencyBias, block_size=4) == 2 * 7 * 12 + 2  # b0, b1, b2 or a partial sum
    assert count(RecencyBias, bias="latest") == 2 * 7 * 12 + 7
    assert count(RecencyBias, bias="slope", slope=1.0) == 2 * 7 * 12
    assert count(Temperature) == 2 * 7 * 12 + 7
    assert count(TopK, top_k=2) == count(Sparsemax) == count(Entmax) == 2 * 7 * 12


@pytest.mark.parametrize(
    ("scheme", "options"),
    [(LowRankKeys, {"norm_over": "rank"}), (RecencyBias, {}), (Temperature, {}), (Entmax, {})],
)
def test_state_is_that_of_attnres(scheme: Scheme, options: dict[str, Any]) -> None:
    assert state_per_token(lambda width: scheme(8, width, **options), 8) == (9, 0)
    assert state_per_token(lambda width: scheme(8, width, block_size=4, **options), 8) == (3, 0)


def test_facts_name_the_relative_and_its_sources() -> None:
    schemes = [make(scheme, 6, **options) for scheme, options in GRADIENTS]
    assert {mixer.facts().system for mixer in schemes} == {
        "LR-AttnRes", "AttnRes, recency bias", "AttnRes, learned temperature", "AttnRes, top-k",
        "AttnRes, sparsemax", "AttnRes, entmax",
    }  # fmt: skip
    assert make(RecencyBias, 6, block_size=2).facts().source == AttnRes(6, 4, block_size=2).facts().source
    assert make(RecencyBias, 6).facts().source == "[h[1]..h[l-1]]"
    assert make(RecencyBias, 6, block_size=2).facts().system == "AttnRes, recency bias, blocks"
    assert make(Temperature, 6, block_size=2).facts().system == "AttnRes, learned temperature, blocks"


def test_flops_count_low_rank_scores() -> None:
    """L = 2, D = 8, r = 2: 1 + 2 + 3 reads of sources (2 D mixing and 2 r scores each); 3 keys of 2 r."""
    flops = LowRankKeys(2, 8, rank=2, norm_over="rank").flops_per_token()
    assert flops == 6 * (16 + 4) + 3 * 4
    projected = LowRankKeys(2, 8, rank=2, norm_over="rank", keys="projected").flops_per_token()
    assert projected == flops + 3 * 2 * 2 * 8
    assert LowRankKeys(2, 8, rank=2).flops_per_token() == AttnRes(2, 8).flops_per_token()


@pytest.mark.parametrize(
    ("scheme", "options", "key", "allowed"),
    [
        (LowRankKeys, {"rank": 0}, "rank", "from 1 to the width, 8, or null"),
        (LowRankKeys, {"rank": 9}, "rank", "from 1 to the width, 8, or null"),
        (LowRankKeys, {"rank": 2.5}, "rank", "whole number"),
        (LowRankKeys, {"keys": "cut"}, "keys", "sliced, projected, projected_per_read"),
        (LowRankKeys, {"norm_over": "heads"}, "norm_over", "width, rank"),
        (LowRankKeys, {"heads": 2}, "heads", "1 with low-rank keys"),
        (LowRankKeys, {"query": "mixed_state"}, "query", "learned"),
        (LowRankKeys, {"norm_over": "rank", "act": "sigmoid"}, "act", "softmax"),
        (RecencyBias, {"bias": "alibi"}, "bias", "distance, latest, slope"),
        (RecencyBias, {"bias": "slope"}, "slope", "positive"),
        (RecencyBias, {"bias": "slope", "slope": 0}, "slope", "positive"),
        (RecencyBias, {"bias": "slope", "slope": True}, "slope", "positive"),
        (RecencyBias, {"slope": 1.0}, "slope", "null unless"),
        (RecencyBias, {"act": "sigmoid_normalized"}, "act", "softmax"),
        (TopK, {"top_k": 1}, "top_k", "from 2 to 7"),
        (TopK, {"top_k": 8}, "top_k", "from 2 to 7"),  # the output read of L = 6 sees 7 sources
        (TopK, {"top_k": 4, "block_size": 3}, "top_k", "from 2 to 3"),
        (TopK, {"top_k": True}, "top_k", "whole number"),
        (TopK, {"top_k": 2, "act": "sigmoid"}, "act", "softmax"),
        (Sparsemax, {"act": "sigmoid"}, "act", "softmax"),
        (Entmax, {"act": "sigmoid"}, "act", "softmax"),
    ],
    ids=str,
)
def test_bad_options_are_one_line(scheme: Scheme, options: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(6, 8, **options)
    assert caught.value.key == f"arm.mixer.{key}"
    assert allowed in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_read_of_another_package_gives_no_logits() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.backend"):
        Sparsemax(6, 8, backend="fla")
    assert LowRankKeys(6, 8, backend="fla").execution == "per_read"  # its queries are folded
