"""What a training run does at each step, on tiny runs through the real entry."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from repro.train.schedule import Cosine
from tests.tiny import STEPS, arrays_of, json_of, only_run, series, train


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of block_s2."""
    root = tmp_path_factory.mktemp("reference")
    assert train(root, "arm=block_s2") == 0
    return root


def test_what_a_run_leaves(reference: Path) -> None:
    run = only_run(reference)
    assert run.status.state == "done"
    assert run.status.step == STEPS
    assert series(reference, "step") == list(range(1, STEPS + 1))
    assert series(reference, "tokens") == [64 * step for step in range(1, STEPS + 1)]
    assert series(reference, "step", "val") == [0, 4, 8]
    assert len(run.read_timings()) == STEPS
    final, meta = json_of(run, "final"), json_of(run, "meta")
    assert final["step"] == STEPS
    assert final["tokens"] == 512
    assert final["parameters"] == meta["parameters"] == 6480 + 2 * 5 * 16
    assert meta["depth_execution"] == "two_phase"
    assert meta["device"] == "cpu"
    # An untrained model knows nothing: log(64) nats per token, up to its small head.
    assert series(reference, "loss", "val")[0] == pytest.approx(math.log(64), abs=0.05)


def test_the_learning_rate_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the optimiser sees it and as it is recorded: cosine over 8 steps, 2 of warm-up."""
    used: list[list[float]] = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, closure: Any = None) -> Any:
        used.append([group["lr"] for group in self.param_groups])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    assert train(tmp_path, "arm=prenorm", "optim.lr=0.02", "schedule.warmup=0.25", "schedule.final=0.1") == 0
    expected = [0.02 * Cosine(0.25, 0.1).factor(k, STEPS) for k in range(STEPS)]
    assert expected[0] == 0.01
    assert expected[5] == pytest.approx(0.02 * 0.55)
    assert used == [[lr, lr] for lr in expected]  # matrices, and all others
    assert series(tmp_path, "lr") == expected


@pytest.mark.parametrize("clip", [0.25, 0.0])
def test_clipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clip: float) -> None:
    """The recorded norm is the one before; the optimiser sees at most `clip`, and all of it if that is 0."""
    seen: list[float] = []
    step = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, closure: Any = None) -> Any:
        result = step(self, closure)
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        seen.append(math.sqrt(sum(grad.square().sum().item() for grad in grads)))
        return result

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    assert train(tmp_path, "arm=full", f"budget.grad_clip={clip}") == 0
    norms = series(tmp_path, "grad_norm")
    assert min(norms) > 0.25
    assert seen == pytest.approx([clip or norm for norm in norms], rel=1e-4)


def compare(root: Path, reference: Path, tolerance: float) -> None:
    """The same rows, curves and validation losses up to rounding."""
    for kind in ("train", "val"):
        assert series(root, "step", kind) == series(reference, "step", kind)
        assert series(root, "loss", kind) == pytest.approx(series(reference, "loss", kind), rel=tolerance)
    assert series(root, "grad_norm") == pytest.approx(series(reference, "grad_norm"), rel=100 * tolerance)
    a, b = only_run(root), only_run(reference)
    losses, expected = arrays_of(a, "val_losses"), arrays_of(b, "val_losses")
    np.testing.assert_allclose(losses["loss_sum"], expected["loss_sum"], rtol=10 * tolerance)
    assert losses["tokens"].tolist() == expected["tokens"].tolist()


@pytest.mark.parametrize("accumulate", [2, 4])
def test_accumulation_changes_nothing_but_rounding(tmp_path: Path, reference: Path, accumulate: int) -> None:
    assert train(tmp_path, "arm=block_s2", f"runtime.accumulate={accumulate}") == 0
    assert only_run(tmp_path).run_id == only_run(reference).run_id
    compare(tmp_path, reference, 1e-6)
    norms, expected = (arrays_of(only_run(root), "depth_norms") for root in (tmp_path, reference))
    assert set(norms) == set(expected)
    for name in norms.keys() - {"fixed"}:
        np.testing.assert_allclose(norms[name], expected[name], rtol=1e-4, err_msg=name)


def test_bf16_on_the_cpu(tmp_path: Path, reference: Path) -> None:
    assert train(tmp_path, "arm=block_s2", "precision=bf16-mixed") == 0
    assert only_run(tmp_path).status.state == "done"
    losses, expected = series(tmp_path, "loss"), series(reference, "loss")
    assert losses != expected
    assert losses == pytest.approx(expected, rel=2**-7)  # bf16 keeps eight bits


def test_float64(tmp_path: Path, reference: Path) -> None:
    assert train(tmp_path, "arm=block_s2", "precision=64-true", "runtime.checkpoint_seconds=0") == 0
    assert series(tmp_path, "loss") == pytest.approx(series(reference, "loss"), rel=1e-5)
    saved = torch.load(only_run(tmp_path).checkpoint, weights_only=True)
    assert {value.dtype for value in saved["state_dict"].values()} == {torch.float64}


@pytest.mark.parametrize("backend", ["reference", "eager"])
@pytest.mark.parametrize("execution", ["per_read", "score_on_write"])
def test_backends_and_executions_train_the_same(
    tmp_path: Path, reference: Path, backend: str, execution: str
) -> None:
    overrides = (f"runtime.backend={backend}", f"runtime.depth_execution={execution}")
    assert train(tmp_path, "arm=block_s2", *overrides) == 0
    assert only_run(tmp_path).run_id == only_run(reference).run_id
    meta = json_of(only_run(tmp_path), "meta")
    assert (meta["backend"], meta["depth_execution"]) == (backend, execution)
    compare(tmp_path, reference, 1e-6)


def test_a_compiled_run_trains_the_same(tmp_path: Path) -> None:
    """One transformer block: compiling takes most of the time."""
    small = ("arm=prenorm", "model.num_transformer_blocks=1", "budget.tokens=256")
    assert train(tmp_path / "eager", *small) == 0
    assert train(tmp_path / "compiled", *small, "runtime.compile=true") == 0
    assert json_of(only_run(tmp_path / "compiled"), "meta")["compile"] is True
    compare(tmp_path / "compiled", tmp_path / "eager", 1e-5)
    names = torch.load(only_run(tmp_path / "compiled").checkpoint, weights_only=True)["state_dict"]
    assert not [name for name in names if "_orig_mod" in name]


def test_the_seed_sets_data_and_initialisation_which_can_be_set_apart(tmp_path: Path) -> None:
    short = ("arm=prenorm", "budget.tokens=64")
    losses = {}
    for name, overrides in {
        "1": (),
        "2": ("seed=2",),
        "init 2": ("init_seed=2",),
        "data 2": ("data_seed=2",),
        "init 2 data 2": ("init_seed=2", "data_seed=2"),
    }.items():
        assert train(tmp_path / name, *short, *overrides) == 0
        losses[name] = (series(tmp_path / name, "loss")[0], series(tmp_path / name, "loss", "val")[0])
    assert len({pair[0] for pair in losses.values()}) == 4
    assert losses["2"] == losses["init 2 data 2"]
    assert losses["data 2"][1] == losses["1"][1] != losses["2"][1]  # before training: initialisation alone


# Data parallelism, in two processes on the CPU


def test_two_processes_train_as_one(tmp_path: Path, reference: Path) -> None:
    assert train(tmp_path, "arm=block_s2", "trainer=ddp_sim", "runtime.checkpoint_seconds=0") == 0
    assert only_run(tmp_path).run_id == only_run(reference).run_id
    compare(tmp_path, reference, 1e-6)  # which checks that each row is written once
    weights, expected = (arrays_of(only_run(root), "depth_weights") for root in (tmp_path, reference))
    np.testing.assert_allclose(weights["mean"], expected["mean"], rtol=1e-4)
    assert json_of(only_run(tmp_path), "meta")["devices"] == 2


def test_two_processes_that_diverge(tmp_path: Path) -> None:
    overrides = ("arm=full", "optim.lr=1e30", "budget.grad_clip=0", "trainer=ddp_sim")
    assert train(tmp_path, *overrides) == 0
    run = only_run(tmp_path)
    assert run.status.state == "diverged"
    assert run.status.step == 1
    assert json_of(run, "final")["diverged_at_step"] == 1
    assert series(tmp_path, "step") == [1]
