"""Sources taken away: equal to the plain model where nothing is, and to a float64 softmax by hand where
one is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from analysis.interventions import jackknife, rank_correlation, within_reads
from analysis.tables import to_text
from experiments import interventions as item
from experiments.item import Source
from repro.model.build import build_decoder
from repro.probe.__main__ import main
from repro.probe.mixers import METHODS, Intervention, ProbedAttnRes, ProbedPreNorm
from repro.probe.passes import losses_from, repeated, states_of
from repro.runs import Run
from tests.tiny import only_run, runs, tiny_config, train, with_arm

WIDTH, SHAPE = 8, (2, 3, 8)


def mixer_with(block_size: int, **options: object) -> ProbedAttnRes:
    """Four sublayers in float64 with random queries."""
    torch.manual_seed(0)
    mixer = ProbedAttnRes(4, WIDTH, block_size=block_size, execution="per_read", **options).double()
    with torch.no_grad():
        mixer.queries.normal_()
    return mixer


def state_before(mixer: ProbedAttnRes, l: int) -> tuple[object, list[torch.Tensor]]:
    """A state with random sublayer outputs, and the sources of read l."""
    generator = torch.Generator().manual_seed(1)
    state = mixer.begin(torch.randn(SHAPE, generator=generator, dtype=torch.float64))
    for k in range(l):
        _, state = mixer.read(state, k)
        state = mixer.write(state, k, torch.randn(SHAPE, generator=generator, dtype=torch.float64))
    return state, mixer.sources_at(state, l)


def by_hand(sources: list[torch.Tensor], query: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [S, B, T] and mixture of a softmax over depth, written out."""
    logits = torch.stack([(v / (v.square().mean(-1, keepdim=True) + 1e-8).sqrt()) @ query for v in sources])
    weights = logits.exp() / logits.exp().sum(0)
    return weights, sum(w.unsqueeze(-1) * v for w, v in zip(weights, sources, strict=True))


@pytest.mark.parametrize(("block_size", "l", "column"), [(1, 3, 1), (1, 4, 0), (2, 3, 2), (2, 4, 1)])
def test_removing_a_source_is_a_softmax_over_the_rest(block_size: int, l: int, column: int) -> None:
    mixer = mixer_with(block_size)
    state, sources = state_before(mixer, l)
    position = mixer.source_columns(l).index(column)
    _, expected = by_hand([v for i, v in enumerate(sources) if i != position], mixer.queries[l].detach())
    mixer.interventions = [(slice(0, 2), Intervention(l, l, column, "remove"))]
    found, _ = mixer.read(state, l)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_replacements_keep_the_weight_of_the_true_source() -> None:
    mixer = mixer_with(1)
    state, sources = state_before(mixer, 3)
    weights, mixed = by_hand(sources, mixer.queries[3].detach())
    direction = torch.zeros(SHAPE, dtype=torch.float64)
    direction[..., 0] = 1
    mean = torch.arange(8.0, dtype=torch.float64)
    put = {
        "zero": torch.zeros(SHAPE, dtype=torch.float64),
        "mean": mean.expand(SHAPE),
        "random": direction * sources[2].square().sum(-1, keepdim=True).sqrt(),
    }
    for method, value in put.items():
        plan = Intervention(3, 3, 2, method, means={3: mean}, direction=direction)
        mixer.interventions = [(slice(0, 2), plan)]
        expected = mixed + weights[2].unsqueeze(-1) * (value - sources[2])
        assert torch.allclose(mixer.read(state, 3)[0], expected, rtol=0, atol=1e-12), method


def test_the_control_takes_the_same_mass_from_others() -> None:
    """Weights 0.1, 0.2, 0.3, 0.4: removing mass 0.3 in the order 0, 1, 3 leaves 0, 0, 0.3, 0.4 over 0.7."""
    mixer = mixer_with(1)
    _, sources = state_before(mixer, 3)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).view(4, 1, 1, 1).expand(4, 1, 2, 3)
    plan = Intervention(3, 3, 2, "equal_mass", order=(0, 1, 2, 3))
    found, mass = mixer._changed(plan, 3, 2, weights, sources, sources[0])
    expected = (0.3 * sources[2] + 0.4 * sources[3]) / 0.7
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert mass == pytest.approx(0.3)


def test_a_source_of_no_weight_changes_nothing() -> None:
    mixer = mixer_with(1)
    state, _ = state_before(mixer, 2)
    with torch.no_grad():  # a key that the query dislikes by 60 sqrt(D) nats
        source = mixer.sources_at(state, 2)[1]
        mixer.queries[2] = -60 * source[0, 0] / source[0, 0].norm()
    state, _ = state_before(mixer, 2)
    plain, _ = mixer.read(state, 2)
    mixer.interventions = [(slice(0, 2), Intervention(2, 2, 1, "remove"))]
    changed, _ = mixer.read(state, 2)
    assert torch.allclose(changed[0, 0], plain[0, 0], rtol=0, atol=1e-12)
    assert not torch.allclose(changed, plain, rtol=0, atol=1e-3)  # other tokens give it weight


def test_a_span_of_reads_and_an_only_source() -> None:
    plan = Intervention(1, 4, 0, "remove")
    assert [plan.position(l, c) for l, c in ((0, [0]), (1, [0, 1]), (3, [1, 2]), (2, [0, 1, 2]))] == [
        None,
        0,
        None,
        0,
    ]
    assert Intervention(0, 4, 0, "zero").position(0, [0]) is None


@pytest.mark.parametrize(
    "arm", ["full", "block_s4", "full_sigmoid", "block_s4_h16", "prenorm", "full_input_query"]
)
def test_without_an_intervention_it_is_the_plain_model(arm: str) -> None:
    config = with_arm(tiny_config(), arm)
    config.precision = "64-true"
    target = {"prenorm": "PreNorm"}.get(arm, "AttnRes")
    plain = build_decoder(config).double()
    config.arm.mixer._target_ = f"repro.probe.mixers.Probed{target}"
    config.runtime.depth_execution = "per_read"
    probed = build_decoder(config).double()
    with torch.no_grad():
        for name, p in plain.mixer.named_parameters():
            p.normal_(generator=torch.Generator().manual_seed(len(name)))
    probed.load_state_dict(plain.state_dict())
    tokens = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(3))
    expected = plain.losses(tokens[:, :-1], tokens[:, 1:])
    states = states_of(probed, tokens[:, :-1])
    for l in (0, 3, 4):
        found = losses_from(probed, repeated(states[l], 2, 2), l, tokens[:, 1:].repeat(2, 1))
        assert torch.allclose(found, expected.repeat(2, 1), rtol=0, atol=1e-10), l


def test_rows_of_a_batch_carry_their_own_interventions() -> None:
    mixer = ProbedPreNorm(2, WIDTH)
    embedding = torch.randn(SHAPE)
    state = mixer.write(mixer.begin(embedding), 0, torch.ones(SHAPE))
    mixer.interventions = [(slice(1, 2), Intervention(1, 1, 0, "remove"))]
    found, _ = mixer.read(state, 1)
    assert torch.equal(found[0], embedding[0] + 1)
    assert torch.allclose(found[1], torch.ones(SHAPE[1:]), atol=1e-6)
    assert torch.equal(state[0], embedding + 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("probe")
    assert train(folder, "arm=full", "seed=1") == 0
    return folder


def test_the_record_of_a_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run: Run = only_run(root)
    command = ["interventions", f"run={run.directory}", f"data={root / 'data'}", "windows=4", "per_read=all"]
    assert main(command) == 0
    found = run.read_arrays("interventions")
    assert found is not None
    assert found["effect"].shape == (len(METHODS), 5, 5, 4)
    weight = found["weight"].mean(-1)
    assert np.allclose(np.nansum(weight, 1), 1, atol=1e-5)
    seen = np.tril(np.ones((5, 5), dtype=bool))
    assert (np.isfinite(weight) == seen).all()
    seen[0] = False  # the first read's only source is left alone
    assert (np.isfinite(found["effect"][0, ..., 0]) == seen).all()
    assert np.allclose(found["removed_mass"][0][seen], weight[seen], atol=1e-5)
    assert str(found["weights_sha256"]) == run.read_json("final.json")["weights_sha256"]  # type: ignore[index]
    before = (run.directory / "interventions.npz").stat().st_mtime_ns
    assert main(command) == 0
    assert "there already" in capsys.readouterr().out
    assert (run.directory / "interventions.npz").stat().st_mtime_ns == before


def test_the_item_from_records(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """PreNorm beside Full: no weights to rank, no control, and the sum's own effects."""
    assert train(root, "arm=prenorm", "seed=2") == 0
    for run in runs(root):
        assert main(["interventions", f"run={run.directory}", f"data={root / 'data'}", "windows=4"]) == 0
    rendered = item.ITEM.render(Source("smoke", root / "runs", root / "results"))
    by_arm = {arm.arm: arm for arm in rendered.data.arms}
    assert list(by_arm) == ["prenorm", "full"]
    assert by_arm["prenorm"].cells == by_arm["full"].cells == 2 + 3 + 4 + 5
    assert np.isnan(by_arm["prenorm"].by_weight.estimate)
    assert np.isnan(by_arm["prenorm"].over_control.estimate)
    assert by_arm["full"].by_weight.kind == "windows"
    assert len(rendered.records) == 28
    widths = [len(line) for table in rendered.terminal for line in to_text(table).splitlines()]
    assert max(widths) <= 120
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["interventions", "run=nowhere"], "run directory"),
        (["interventions", "windows=4"], "either run="),
        (["interventions", "run=x", "window=4"], "no setting of interventions"),
        (["interventions", "run=x", "windows=four"], "whole number"),
        (["downstream", "run=x", "tasks=hellaswag"], "names joined by +"),
        (["wrong"], "one of interventions, downstream"),
    ],
)
def test_bad_input_is_one_line(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert text in error


def test_a_run_without_checkpoint_says_how_to_get_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = next(run for run in runs(root) if run.directory.parent.name == "full")
    aside = run.checkpoint.rename(run.checkpoint.with_name("aside"))
    assert main(["downstream", f"run={run.directory}", f"data={root / 'data'}"]) == 2
    aside.rename(run.checkpoint)
    assert "python -m repro.train arm=full scale=smoke seed=1" in capsys.readouterr().err


def test_rank_correlations_and_their_interval() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    assert rank_correlation(x, np.array([10.0, 20.0, 30.0, 400.0, 1.0])) == pytest.approx(1)
    assert rank_correlation(x, np.array([1.0, 3.0, 2.0, 4.0, 0.0])) == pytest.approx(
        0.8
    )  # 1 - 6 * 2 / (4 * 15)
    assert np.isnan(rank_correlation(np.ones(5), x))
    rows = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    assert within_reads(rows, np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])) == pytest.approx(0)
    values = np.array(
        [1.0, 2.0, 3.0, 4.0]
    )  # of a mean, the jackknife is the t interval: 2.5 +- 3.182 * 0.6455
    found = jackknife(lambda counts: float(values @ counts / counts.sum()), 4)
    assert (found.low, found.high) == pytest.approx((0.446, 4.554), abs=1e-3)
