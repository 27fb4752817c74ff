"""AttnRes where it is something else: Block as Full, heads as one head, zero queries as the mean, PreNorm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from repro import ops
from repro.depth.attnres import AttnRes
from repro.depth.prenorm import PreNorm
from tests.gold import walk
from tests.passes import EXECUTIONS, WIDTH, build, randomised, results, same
from tests.toy import Toy, default_dtype, error, normal

ARMS = Path(__file__).parents[1] / "conf" / "arm"


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_blocks_of_one_sublayer_are_full_bit_for_bit(execution: str) -> None:
    """20 blocks found by count, at round(20 k / 20), and 20 reads of Full: three groups of two-phase."""
    full = results(build(20, execution=execution))
    block = results(build(20, num_blocks=20, execution=execution))
    assert block.keys() == full.keys()
    assert all(torch.equal(block[name], full[name]) for name in full)


def test_the_arm_full_is_the_arm_block_with_blocks_of_one_sublayer() -> None:
    config = OmegaConf.load(ARMS / "block_s4.yaml")
    config.mixer.block_size = 1
    full, block = (
        results(randomised(instantiate(mixer, num_sublayers=20, width=WIDTH)), torch.float32)
        for mixer in (OmegaConf.load(ARMS / "full.yaml").mixer, config.mixer)
    )
    assert block.keys() == full.keys()
    assert all(torch.equal(block[name], full[name]) for name in full)


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_full_is_a_mix_of_the_embedding_and_every_output_so_far(execution: str) -> None:
    """Against single mixes of the source list written out: the same bits where a read is such a mix."""
    mixer = build(20, execution=execution)
    found = results(mixer)
    embedding = normal("embedding", 2, 3, WIDTH).requires_grad_()
    outputs = [normal(f"output {l}", 2, 3, WIDTH).requires_grad_() for l in range(20)]
    loss, expected = torch.zeros(()), {}
    for l in range(21):
        sources = [embedding, *outputs[:l]]
        read, weights = ops.depth_mix(sources, mixer.queries[l], key_weight=mixer.key_gains[l])
        expected |= {f"read {l}": read, f"weights {l}": weights}
        loss = loss + (read * normal(f"loss {l}", 2, 3, WIDTH)).sum()
    if execution == "per_read":
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    leaves = {"embedding": embedding, **{f"output {l}": y for l, y in enumerate(outputs)}}
    leaves |= dict(mixer.named_parameters())
    grads = torch.autograd.grad(loss, list(leaves.values()))
    same(found, expected | {f"gradient of {name}": g for name, g in zip(leaves, grads, strict=True)})


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
