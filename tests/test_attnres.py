"""AttnRes: source sets, equality of the executions, limits, and its start as PreNorm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.boundaries import ends_by_count, ends_by_size
from repro.depth.prenorm import PreNorm
from repro.errors import ConfigError
from tests.gold import walk
from tests.toy import Toy, default_dtype, error, normal, randomise

EXECUTIONS = ("per_read", "score_on_write", "two_phase")
WIDTH = 6


def build(
    num_sublayers: int, width: int = WIDTH, dtype: torch.dtype = torch.float64, **options: Any
) -> AttnRes:
    """With noise of standard deviation 0.5 on every query and gain, keyed by the parameter's name."""
    with default_dtype(dtype):
        mixer = AttnRes(num_sublayers, width, **options)
    randomise(mixer, 0.5)
    return mixer


def results(mixer: AttnRes, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """All reads, all recorded weights and all gradients of a random loss over all reads."""
    embedding = normal("embedding", 2, 3, mixer.width, dtype=dtype).requires_grad_()
    outputs = [
        normal(f"output {l}", 2, 3, mixer.width, dtype=dtype).requires_grad_()
        for l in range(mixer.num_sublayers)
    ]
    found: dict[str, Tensor] = {}
    mixer.tap = lambda l, weights: found.__setitem__(f"weights {l}", weights)
    reads = walk(mixer, embedding, outputs)
    mixer.tap = None
    loss = sum((read * normal(f"loss {l}", *read.shape, dtype=dtype)).sum() for l, read in enumerate(reads))
    leaves = {"embedding": embedding, **{f"output {l}": y for l, y in enumerate(outputs)}}
    leaves |= dict(mixer.named_parameters())
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for name, leaf, grad in zip(leaves, leaves.values(), grads, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    return found | {f"read {l}": read for l, read in enumerate(reads)}


def same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape, name
        size = max(b[name].abs().max().item(), 1e-3)  # a gradient may be exactly zero
        assert (a[name] - b[name]).abs().max().item() <= tolerance * size, name


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


# Executions


@pytest.mark.parametrize("num_sublayers", range(1, 10))
def test_executions_are_equal_for_every_block_size(num_sublayers: int) -> None:
    """Reads, weights and every gradient, short last blocks included, against the definition."""
    for block_size in range(1, num_sublayers + 1):
        options: dict[str, Any] = {"block_size": block_size}
        expected = results(build(num_sublayers, **options, execution="per_read", backend="reference"))
        for execution in EXECUTIONS:
            same(results(build(num_sublayers, **options, execution=execution)), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"act": "sigmoid"},
        {"act": "sigmoid_normalized"},
        {"act": "sigmoid", "block_size": 4},
        {"act": "sigmoid_normalized", "block_size": 4},
        {"key_norm": False},
        {"key_gain": False, "block_size": 4},
        {"heads": 3, "block_size": 4},
        {"heads": 3, "head_norm": True},
        {"heads": 2, "act": "sigmoid", "block_size": 8},
        {"num_blocks": 5},
        {"window": 1},
        {"window": 3},
        {"window": 3, "window_output": "window"},
        {"window": 2, "act": "sigmoid", "heads": 2},
    ],
    ids=str,
)
def test_executions_are_equal_for_every_option(options: dict[str, Any]) -> None:
    """20 sublayers, so that two-phase has three groups of reads."""
    expected = results(build(20, **options, execution="per_read", backend="reference"))
    for execution in EXECUTIONS:
        same(results(build(20, **options, execution=execution)), expected, 1e-11)


@settings(max_examples=15, deadline=None)
@given(num_sublayers=st.integers(1, 40), data=st.data(), execution=st.sampled_from(EXECUTIONS[1:]))
def test_executions_are_equal_at_any_depth(num_sublayers: int, data: st.DataObject, execution: str) -> None:
    num_blocks = data.draw(st.integers(1, num_sublayers))
    expected = results(build(num_sublayers, num_blocks=num_blocks, execution="per_read"))
    same(results(build(num_sublayers, num_blocks=num_blocks, execution=execution)), expected, 1e-11)


@pytest.mark.parametrize("block_size", [1, 4])
def test_executions_agree_in_float32(block_size: int) -> None:
    options: dict[str, Any] = {"block_size": block_size, "width": 64}
    expected = results(build(32, **options, execution="per_read"))
    for execution in EXECUTIONS:
        found = results(build(32, **options, execution=execution, dtype=torch.float32), torch.float32)
        same({name: value.double() for name, value in found.items()}, expected, 1e-5)


@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
def test_where_a_query_depends_on_the_input_every_read_is_computed_when_it_comes(query: str) -> None:
    assert AttnRes(4, WIDTH, query=query, execution="two_phase").execution == "per_read"
    assert AttnRes(4, WIDTH, window=2, execution="two_phase").execution == "score_on_write"
    assert AttnRes(4, WIDTH, execution="auto").execution == "two_phase"


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_gradcheck(execution: str) -> None:
    """All reads of a Block network of five sublayers, in everything, against finite differences."""
    mixer = build(5, 4, block_size=2, execution=execution)
    leaves = [normal(f"leaf {i}", 1, 2, 4).requires_grad_() for i in range(6)]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:  # the parameters among them are perturbed in place
        return tuple(walk(mixer, tensors[0], list(tensors[1:6])))

    assert torch.autograd.gradcheck(run, (*leaves, *mixer.parameters()))


# Limits


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_blocks_of_one_sublayer_are_full_bit_for_bit(execution: str) -> None:
    """Reached by size, by count and by default; per_read is bit-equal to the op over all sources."""
    full = results(build(7, execution=execution))
    for options in ({"block_size": 1}, {"num_blocks": 7}):
        block = results(build(7, **options, execution=execution))
        assert block.keys() == full.keys()
        assert all(torch.equal(block[name], full[name]) for name in full)
    if execution == "per_read":
        mixer = build(7)
        sources = [normal("embedding", 2, 3, WIDTH), *(normal(f"output {l}", 2, 3, WIDTH) for l in range(7))]
        for l in range(8):
            query = (mixer.queries * mixer.key_gains)[l]
            assert torch.equal(full[f"read {l}"], ops.depth_mix(sources[: l + 1], query)[0])


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("window", [7, 8, 100])
def test_a_window_of_all_sources_is_full(window: int, execution: str) -> None:
    full = results(build(7, execution=execution))
    same(results(build(7, window=window, execution=execution)), full)
    same(results(build(7, window=window, window_output="window", execution=execution)), full)


def test_equal_heads_are_one_head() -> None:
    """Sources that repeat over the heads, with queries that do, weigh like one head of the same logits."""
    single = build(6, 4, block_size=4, execution="per_read")
    multi = build(6, 12, block_size=4, heads=3, execution="per_read")
    with torch.no_grad():
        multi.queries.copy_(single.queries.repeat(1, 3))
        multi.key_gains.copy_(single.key_gains.repeat(1, 3))
    embedding, *outputs = (normal(f"source {i}", 2, 4) for i in range(7))
    narrow = walk(single, embedding, outputs)
    wide = walk(multi, embedding.repeat(1, 3), [y.repeat(1, 3) for y in outputs])
    for a, b in zip(wide, narrow, strict=True):
        assert error(a, b.repeat(1, 3)) < 1e-14


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_heads_choose_their_own_sources(execution: str) -> None:
    """Head 0 takes the embedding, head 1 the output (logits 200 apart, no key norm)."""
    mixer = AttnRes(1, 4, heads=2, key_norm=False, execution=execution)
    embedding, output = torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    with torch.no_grad():
        mixer.queries[1] = torch.tensor([200.0, 0.0, 200.0, 0.0])
    assert walk(mixer, embedding, [output])[1].tolist() == [[1.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_first_query_learns_nothing_and_all_others_do(block_size: int, execution: str) -> None:
    grads = results(build(6, block_size=block_size, execution=execution))
    for name in ("queries", "key_gains"):
        rows = grads[f"gradient of {name}"].abs().amax(1)
        assert rows[0] == 0
        assert rows[1:].min() > 1e-6


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("block_size", [1, 3])
def test_zero_queries_give_the_mean_and_no_gradient_to_the_gains(block_size: int, execution: str) -> None:
    mixer = AttnRes(7, WIDTH, block_size=block_size, execution=execution)
    assert not mixer.queries.any()
    assert torch.equal(mixer.key_gains, torch.ones(8, WIDTH))
    found = results(mixer, torch.float32)
    sources = [normal("embedding", 2, 3, WIDTH), *(normal(f"output {l}", 2, 3, WIDTH) for l in range(7))]
    for l in range(8):
        count = mixer.num_sources(l)
        mean = sum(sources[: l + 1]) / count  # the mean of block sums is the plain sum over their number
        assert (found[f"read {l}"] - mean).abs().max() < 1e-6
        assert (found[f"weights {l}"] - 1 / count).abs().max() < 1e-7
    assert not found["gradient of key_gains"].any()
    assert found["gradient of queries"][1:].any(1).all()


@pytest.mark.parametrize(
    "options", [{"block_size": s} for s in (1, 2, 4, 8, 32)] + [{"num_blocks": 8}], ids=str
)
def test_zero_queries_are_prenorm_as_eps_vanishes(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same function in float64; at a usual eps averaging is attenuated, which is printed."""
    toy = Toy(32, 16)
    with default_dtype(torch.float64):
        mixer, prenorm = AttnRes(32, 16, **options, eps=1e-30), PreNorm(32, 16, eps=1e-30)
    deviations = {}
    for eps in (1e-30, 1e-8, 1e-6, 1e-5):
        expected = toy.run(prenorm, eps=eps)
        deviations[eps] = ((toy.run(mixer, eps=eps) - expected).abs().max() / expected.std()).item()
    with capsys.disabled():
        print(
            f"\n{options}: deviation from PreNorm in std, "
            + ", ".join(f"eps {e:g}: {d:.2g}" for e, d in deviations.items())
        )
    assert deviations[1e-30] < 1e-10
    assert deviations[1e-8] < deviations[1e-6] < deviations[1e-5]


def test_exactly_how_eps_scales() -> None:
    """The mean of n sources through RMSNorm with eps / n^2 is their sum through RMSNorm with eps."""
    mixer = AttnRes(3, 4)
    sources = [0.01 * normal(f"source {i}", 5, 4) for i in range(4)]
    mean = walk(mixer, sources[0], sources[1:])[-1]
    total = sum(sources)
    a = mean * torch.rsqrt(mean.square().mean(-1, keepdim=True) + 1e-5 / 16)
    b = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5)
    assert error(a, b) < 1e-13


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


@pytest.mark.parametrize("query", ["latest_source", "mixed_state"])
@pytest.mark.parametrize("block_size", [1, 2])
def test_input_dependent_queries(query: str, block_size: int) -> None:
    """Against the definition written out: q = P_l RMSNorm(x), x the latest source or the last read."""
    mixer = build(4, query=query, block_size=block_size)
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
        unit = origin / origin.square().mean(-1, keepdim=True).sqrt()
        q = torch.einsum("ij,btj->bti", mixer.query_projections[l], unit)
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


# Precision and settings


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("options", [{}, {"block_size": 2}, {"act": "sigmoid"}], ids=str)
def test_autocast_keeps_mixing_in_float32(options: dict[str, Any], execution: str) -> None:
    """bfloat16 outputs on a float32 embedding: sums, logits and reads of the same numbers in float32."""
    mixer = build(5, dtype=torch.float32, execution=execution, **options)
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(6))
    narrow = [y.bfloat16() for y in outputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reads = walk(mixer, embedding, narrow)
    for a, b in zip(reads, walk(mixer, embedding, [y.float() for y in narrow]), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_bfloat16_streams_are_mixed_in_float32(execution: str) -> None:
    """All-bfloat16 Full: every read is within one rounding of the float32 mix of the same numbers."""
    mixer = build(20, dtype=torch.float32, execution=execution)
    embedding, *outputs = (normal(f"source {i}", 2, 3, WIDTH, dtype=torch.bfloat16) for i in range(21))
    reads = walk(mixer, embedding, outputs)
    wide = walk(mixer, embedding.float(), [y.float() for y in outputs])
    for a, b in zip(reads, wide, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).abs().max() <= 2**-8 * b.abs().max()


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{"block_size": 2}, {"window": 2}, {"query": "mixed_state"}], ids=str)
def test_torch_compile_sees_one_graph(options: dict[str, Any]) -> None:
    """A whole pass is traced without a break, and computes what it computed."""
    mixer = build(3, dtype=torch.float32, **options)
    sources = [normal(f"source {i}", 2, 3, WIDTH, dtype=torch.float32) for i in range(4)]
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: walk(mixer, x[0], list(x[1:])), backend="eager", fullgraph=True)
    for a, b in zip(compiled(*sources), walk(mixer, sources[0], sources[1:]), strict=True):
        assert error(a, b) < 1e-6
