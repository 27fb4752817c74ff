"""Checkpoint surgery: the same function by derivation and in float64, on random and on trained weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from repro.convert import surgery
from repro.convert.__main__ import main
from repro.data.batches import Batches
from repro.errors import ConfigError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.norm import RMSNorm
from repro.probe.trained import open_trained
from repro.runs import Run, run_id
from tests.tiny import STEPS, json_of, records, runs, tiny_config, train
from tests.toy import normal

TOKENS = torch.randint(0, 16, (2, 16), generator=torch.Generator().manual_seed(0))
SHAPE = ("model.num_transformer_blocks=3", "model.norm_eps=1e-2")  # L = 6, and an eps that shows
FULL_AND_BLOCKS = [
    "full",
    "block_s2",
    "block_s4",
    "arm.mixer.block_size=3",
    "arm.mixer.block_size=5",
    "block_s8",
]


def decoder_of(choice: str, *overrides: str, exact: bool = False) -> Decoder:
    """The untrained decoder of an arm (or of Block with an option) in float64, shared weights perturbed."""
    arm = [f"arm={choice}"] if "=" not in choice else ["arm=block_s4", choice]
    more = ["+model.eps_by_sources=true"] if exact else []
    decoder = build_decoder(tiny_config(*SHAPE, *arm, *more, *overrides)).double()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if not name.startswith("mixer."):
                parameter.add_(0.1 * normal(name, *parameter.shape))
    return decoder


# The function


@pytest.mark.parametrize("choice", FULL_AND_BLOCKS)
def test_exact_conversion_is_the_same_function_with_the_same_gradients(choice: str) -> None:
    """RMSNorm(s / n; eps / n^2) = s / sqrt(mean(s^2) + eps) = RMSNorm(s; eps), at every read of n."""
    parent, decoder, kept = decoder_of("prenorm"), decoder_of(choice, exact=True), decoder_of(choice)
    surgery.transfer(parent, decoder)
    assert surgery.deviation(decoder, parent, TOKENS) < 1e-12
    assert surgery.deviation(kept, parent, TOKENS) > 1e-3  # eps 1e-2 as it was: another function
    for model in (parent, decoder):
        model.loss(TOKENS, TOKENS.roll(1)).backward()
    gradients = dict(decoder.named_parameters())
    for name, parameter in parent.named_parameters():
        found, expected = gradients[name].grad, parameter.grad
        assert found is not None
        assert expected is not None
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max(), name


def test_eps_of_each_norm() -> None:
    """L = 6, S = 4: reads of 1, 2, 2, 2 | 2, 3 sources, the output read of 3 (embedding and two blocks)."""
    decoder = decoder_of("block_s4", exact=True)
    norms = [*(sublayer.norm for sublayer in decoder.sublayers), decoder.final_norm]
    assert [round(0.01 / norm.eps, 9) for norm in norms] == [1, 4, 4, 4, 4, 9, 9]
    assert decoder.mixer.eps == 1e-2  # the key norm's stays


@pytest.mark.parametrize(("n", "square", "eps"), [(2, 1.0, 1e-3), (3, 0.5, 0.1), (33, 4.0, 1e-5)])
def test_kept_eps_shrinks_a_norm_by_the_derived_factor(n: int, square: float, eps: float) -> None:
    """s / n / sqrt(m / n^2 + eps) = s / sqrt(m + n^2 eps), so the factor is sqrt((m + eps) / (m + n^2 eps));
    with y = (n^2 - 1) eps / (m + eps) it is (1 + y)^(-1/2), which is at least 1 - y / 2."""
    norm = RMSNorm(8, eps).double()
    x = normal("stream", 5, 8)
    x = x * (square / x.square().mean(-1, keepdim=True)).sqrt()
    with torch.no_grad():
        ratio = norm(x / n) / norm(x)
    assert torch.allclose(ratio, torch.full_like(ratio, math.sqrt((square + eps) / (square + n * n * eps))))
    assert 0 <= float((1 - ratio).max()) <= (n * n - 1) * eps / (2 * (square + eps))


def test_kept_eps_deviates_in_proportion_to_eps() -> None:
    """To first order in eps, so a tenth of eps gives a tenth of the deviation (second order: below 1 %)."""
    found = []
    for eps in ("1e-6", "1e-7"):
        parent, decoder = (decoder_of(arm, f"model.norm_eps={eps}") for arm in ("prenorm", "full"))
        found.append(surgery.deviation(decoder, parent, TOKENS))
    assert found[0] / found[1] == pytest.approx(10, rel=0.01)


def test_which_schemes_convert() -> None:
    assert surgery.needs_eps_by_sources(decoder_of("full_input_query"), "full_input_query")
    assert surgery.needs_eps_by_sources(decoder_of("full_no_key_norm"), "full_no_key_norm")
    assert not surgery.needs_eps_by_sources(decoder_of("denseformer"), "denseformer")
    assert not surgery.needs_eps_by_sources(decoder_of("prenorm"), "prenorm")
    for arm in ("full_sigmoid", "control_random_query", "control_cumulative"):
        with pytest.raises(ConfigError, match=rf"^arm='{arm}': one whose untrained reads are the mean"):
            surgery.needs_eps_by_sources(decoder_of(arm), arm)
    windowed = decoder_of("window_1p8", "arm.mixer.window=2")
    with pytest.raises(ConfigError, match=r"^arm='window_1p8': one whose untrained reads"):
        surgery.needs_eps_by_sources(windowed, "window_1p8")


def test_a_parent_is_prenorm() -> None:
    surgery.check_parent(decoder_of("prenorm"), "prenorm")
    for arm in ("full", "denseformer", "mhc"):
        with pytest.raises(ConfigError, match=f"^run='{arm}': a run of PreNorm"):
            surgery.check_parent(decoder_of(arm), arm)


def test_other_shapes_and_weights_are_refused() -> None:
    parent = decoder_of("prenorm")
    with pytest.raises(ConfigError, match=r"embedding'?: of shape \[\d+, 32\], not \[\d+, 16\]$"):
        surgery.transfer(parent, decoder_of("full", "model.width=32"))
    deeper = decoder_of("full", "model.num_transformer_blocks=4")
    with pytest.raises(ConfigError, match="only the arm has this one"):
        surgery.transfer(parent, deeper)


@pytest.mark.parametrize("value", ["1", "null", "yes"])
def test_the_switch_is_true_or_false(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^model\.eps_by_sources=.*: true or false$"):
        build_decoder(tiny_config(f"+model.eps_by_sources='{value}'"))


# Runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A PreNorm run of 8 steps at an eps that shows, and one of Full beside it."""
    root = tmp_path_factory.mktemp("convert")
    for arm in ("prenorm", "full"):
        assert train(root, f"arm={arm}", "model.norm_eps=1e-2") == 0
    return next(run for run in runs(root) if run.directory.parent.name == "prenorm")


def convert(run: Run, *words: str) -> int:
    root = run.directory.parents[3]
    return main([f"run={run.directory}", f"paths.root={root}", "runtime.progress_seconds=null", *words])


def converted(run: Run) -> dict[tuple[str, str], Run]:
    """The runs that started from one, by arm and method."""
    found = [Run(path.parent) for path in run.directory.parents[3].glob("runs/smoke/convert/*/*/config.yaml")]
    starts = {found_run: found_run.config["start"] for found_run in found}
    return {(r.directory.parent.name, s["method"]): r for r, s in starts.items() if s["run"] == run.run_id}


def test_a_trained_run_is_converted_and_adapted(trained: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert(trained, "arm=block_s2+full", "steps=3") == 0
    found = converted(trained)
    assert set(found) == {
        ("prenorm", "exact"), ("block_s2", "exact"), ("block_s2", "keep_eps"), ("full", "exact"),
        ("full", "keep_eps"),
    }  # fmt: skip
    before = json_of(trained, "final.json")["val_loss"]
    for (arm, method), run in found.items():
        record = json_of(run, "convert.json")
        assert run.status.state == "done"
        assert run.config["start"] == {"run": trained.run_id, "method": method, "step": STEPS}
        assert run_id(run.config) == run.run_id
        assert record["val_loss_before"] == pytest.approx(before, abs=1e-12)
        exact = method == "exact"
        assert (record["logit_deviation"] <= 1e-12) == exact
        assert (abs(record["val_loss_after"] - before) < 1e-5) == exact, (arm, method)
        assert run.config["model"].get("eps_by_sources", False) == (exact and arm != "prenorm")
    first = {key: run.read_metrics() for key, run in found.items()}
    losses = {key: next(r["loss"] for r in rows if r["kind"] == "train") for key, rows in first.items()}
    # The same function on the same batch: the first training loss is that of the continued run.
    assert losses["full", "exact"] == pytest.approx(losses["prenorm", "exact"], abs=2e-5)
    assert abs(losses["full", "keep_eps"] - losses["prenorm", "exact"]) > 1e-4
    capsys.readouterr()
    assert convert(trained, "arm=block_s2+full", "steps=3") == 0
    assert capsys.readouterr().out.count("already there") == 5


def test_a_converted_run_opens_with_its_eps(trained: Run) -> None:
    """Reads of Full with L = 4: 1, 2, 3, 4 and, the output read, 5 sources."""
    assert convert(trained, "arm=full", "method=exact", "steps=3") == 0
    run = converted(trained)["full", "exact"]
    opened = open_trained(run.directory, trained.directory.parents[3] / "data", say=lambda _: None)
    found = [sublayer.norm.eps for sublayer in opened.decoder.sublayers]
    assert found == pytest.approx([1e-2, 1e-2 / 4, 1e-2 / 9, 1e-2 / 16], rel=1e-12)
    assert json_of(run, "convert.json")["norm_eps"] == pytest.approx([*found, 1e-2 / 25], rel=1e-12)


def test_an_interrupted_adaptation_goes_on_to_the_same_bits(trained: Run) -> None:
    words = ("arm=full", "method=exact", "steps=4", "runtime.checkpoint_seconds=0")
    assert convert(trained, *words) == 0
    run = next(r for r in converted_with(trained, 4) if r.directory.parent.name == "full")
    expected = records(run)
    checkpoint = torch.load(run.checkpoint, weights_only=True)
    assert checkpoint["global_step"] == 4
    run.set_status("failed", step=4)  # as if killed before its last validation
    assert convert(trained, *words) == 0
    assert records(run) == expected


def converted_with(run: Run, steps: int) -> list[Run]:
    found = [Run(path.parent) for path in run.directory.parents[3].glob("runs/smoke/convert/*/*/config.yaml")]
    return [one for one in found if one.config["budget"]["tokens"] == steps * 64]


def test_batches_follow_those_of_the_parent(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = Batches.batch

    def batch(self: Batches, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(k)
        return original(self, k)

    monkeypatch.setattr(Batches, "batch", batch)
    assert convert(trained, "arm=prenorm", "method=exact", "steps=2") == 0
    assert sorted(set(seen))[:2] == [STEPS, STEPS + 1]


def test_training_refuses_a_start_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, "+start.run=0123456789ab", "+start.step=3") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: start=")
    assert "python -m repro.convert" in line
    assert not list(tmp_path.glob("runs/*/*/*"))


def test_a_start_is_part_of_the_identity() -> None:
    plain = tiny_config("arm=full")
    ids = {run_id(plain)}
    for start in (
        {"run": "a" * 12, "method": "exact", "step": 1},
        {"run": "a" * 12, "method": "x", "step": 1},
    ):
        ids.add(run_id(OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(plain)), {"start": start})))
    assert len(ids) == 3
    nothing = OmegaConf.merge(OmegaConf.create(OmegaConf.to_container(plain)), {"start": None})
    assert run_id(nothing) == run_id(plain)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("arm=full_sigmoid",), "arm='full_sigmoid': one whose untrained reads are the mean of all sources"),
        (("arm=nothing",), "arm='nothing': one of "),
        (("arm=full", "method=sum"), "method='sum': one of exact, keep_eps"),
        (("arm=full", "steps=0"), "steps='0': auto, or a whole number of at least 1"),
        (("arm=full", "model.width=32"), "model.width='32': as in the run; a conversion may set optim"),
        (("arm=full", "seed=2"), "seed='2': as in the run"),
        (("arm=full", "optim.lrr=1"), "optim.lrr=1: no such setting; optim has name, lr"),
        (("arm=full", "data.name=x"), "data.name='x': as in the run"),
        (("arm=full", "optim.lr=-1"), "optim.lr=-1: a positive number"),
        (("arm=full", "scale=smoke"), "run="),
    ],
)
def test_bad_input_is_one_line(
    trained: Run, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(trained.directory.parents[3].rglob("config.yaml"))
    assert convert(trained, *words) == 2
    captured = capsys.readouterr()
    (told,) = captured.err.splitlines()
    assert told.startswith("error: ")
    assert line in told
    assert sorted(trained.directory.parents[3].rglob("config.yaml")) == before


def test_bad_runs_are_one_line(trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = next(run for run in runs(trained.directory.parents[3]) if run.directory.parent.name == "full")
    assert convert(full, "arm=block_s2") == 2
    assert "run='full': a run of PreNorm" in capsys.readouterr().err
    assert convert(Run(tmp_path / "a/b/c/d"), "arm=full") == 2
    assert "a run directory" in capsys.readouterr().err
    # A checkpoint of another architecture in the place of the run's own.
    own, aside = trained.checkpoint, trained.checkpoint.with_name("aside.ckpt")
    own.rename(aside)
    try:
        saved = torch.load(aside, weights_only=True)
        saved["state_dict"] = {name: value[..., :8] for name, value in saved["state_dict"].items()}
        torch.save(saved, own)
        assert convert(trained, "arm=full") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "not a checkpoint of this run" in line
        own.unlink()
        assert convert(trained, "arm=full") == 2
        assert "records hold no weights" in capsys.readouterr().err
    finally:
        aside.replace(own)
