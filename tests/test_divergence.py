"""A loss that is not finite ends a run with a result: terminal, recorded, and not trained again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import repro.train.results
import repro.train.training
from repro.model.decoder import Decoder
from repro.runs import Run, load_runs
from repro.train.schedule import Cosine
from tests.tiny import STEPS, json_of, only_run, records, train

EXPLODE = ("arm=block_s2", "optim.lr=1e30", "budget.grad_clip=0")


def weights(run: Run) -> tuple[int, dict[str, torch.Tensor]]:
    saved = torch.load(run.checkpoint, weights_only=True)
    return saved["global_step"], saved["state_dict"]


def poison(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """An update of 1e30 is made at `step`: the weights stay finite, the next loss does not."""
    factor = Cosine.factor
    monkeypatch.setattr(
        Cosine, "factor", lambda self, k, total: 1e33 if k == step else factor(self, k, total)
    )


def test_a_diverged_run_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, *EXPLODE) == 0
    told = capsys.readouterr()
    assert "diverged: loss not finite at step 1" in told.out
    assert told.err == ""
    run = only_run(tmp_path)
    assert (run.status.state, run.status.step) == ("diverged", 1)
    final = json_of(run, "final")
    assert final["status"] == "diverged"
    assert final["diverged_at_step"] == final["step"] == 1
    assert final["val_loss"] is None
    assert final["parameters"] == json_of(run, "meta")["parameters"]
    rows = run.read_metrics()
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert max(row["step"] for row in rows) == 1
    assert not (run.directory / "val_losses.npz").exists()
    assert not run.checkpoint.exists()  # there was no good one

    table = load_runs(tmp_path / "runs")
    assert table["status"].tolist() == ["diverged"]
    assert table["diverged_at_step"].tolist() == [1]
    assert table["val_loss"].isna().all()

    before = records(run)
    with monkeypatch.context() as patch:
        patch.setattr(repro.train.training, "train", lambda *_: pytest.fail("trained again"))
        assert train(tmp_path, *EXPLODE) == 0
    assert "diverged: already there" in capsys.readouterr().out
    assert records(run) == before

    assert train(tmp_path, *EXPLODE, "runtime.force=true") == 0
    assert "diverged: loss not finite at step 1" in capsys.readouterr().out
    assert records(Run(run.directory / "superseded-1")) == before == records(run)


@pytest.mark.parametrize("step", [1, 4, STEPS - 1])
def test_the_last_good_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """A checkpoint before every step: the one of the bad weights is taken back, the one before stays."""
    poison(monkeypatch, step)
    assert train(tmp_path, "arm=full", "runtime.checkpoint_seconds=0") == 0
    run = only_run(tmp_path)
    assert (run.status.state, run.status.step) == ("diverged", step + 1)
    saved_step, state = weights(run)
    assert saved_step == step
    assert all(value.isfinite().all() and value.abs().max() < 10 for value in state.values())
    assert [path.name for path in run.checkpoint.parent.iterdir()] == ["last.ckpt"]


def test_a_good_run_keeps_one_checkpoint(tmp_path: Path) -> None:
    assert train(tmp_path, "arm=full", "runtime.checkpoint_seconds=0") == 0
    run = only_run(tmp_path)
    assert weights(run)[0] == STEPS
    assert [path.name for path in run.checkpoint.parent.iterdir()] == ["last.ckpt"]


def test_a_snapshot_that_is_not_finite_is_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation comes before the next training loss: the row that cannot be a number is not written."""
    losses = Decoder.losses
    monkeypatch.setattr(Decoder, "losses", lambda self, *batch: losses(self, *batch) * float("nan"))
    assert train(tmp_path, "arm=prenorm") == 0
    run = only_run(tmp_path)
    assert (run.status.state, run.status.step) == ("diverged", 0)
    assert run.read_metrics() == []


def test_a_final_validation_that_is_not_finite_is_a_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every snapshot is fine, a document outside the subset is not: the weights before stay."""
    monkeypatch.setattr(
        repro.train.results,
        "document_losses",
        lambda decoder, windows, documents, device: (
            torch.full((documents,), float("inf")).numpy()
            if len(windows.windows) > 4
            else torch.ones(documents).numpy()
        ),
    )
    assert train(tmp_path, "arm=prenorm", "runtime.checkpoint_seconds=0") == 0
    run = only_run(tmp_path)
    assert (run.status.state, run.status.step) == ("diverged", STEPS)
    assert weights(run)[0] == STEPS - 1
    assert json_of(run, "final")["val_loss"] is None


def test_an_infinite_gradient_is_stopped_before_the_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is finite and its gradient is not: the weights must not be touched."""
    clip = torch.nn.utils.clip_grad_norm_
    norms: list[float] = []

    def infinite_at_the_third(parameters: Any, bound: float) -> torch.Tensor:
        norms.append(0.0)
        if len(norms) == 3:
            for parameter in parameters:
                parameter.grad.fill_(float("inf"))
        return clip(parameters, bound)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", infinite_at_the_third)
    assert train(tmp_path, "arm=full", "runtime.checkpoint_seconds=0") == 0
    run = only_run(tmp_path)
    assert (run.status.state, run.status.step) == ("diverged", 2)
    assert weights(run)[0] == 1  # the gradient of the weights before step 2 is what is not finite
