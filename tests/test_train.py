"""Optimisers, schedules and what a training run does at each step, on tiny runs through the real entry."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from torch import nn
from torch.nn import functional as F

from repro.data.shards import Shards
from repro.depth.base import PARAMETER_GROUPS, tagged
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.train.callbacks import snapshot_steps
from repro.train.evaluate import DepthWeightRecorder, DynamicsRecorder, position_edges
from repro.train.optim import JointOptimizer, build_optimizer, parameters_by_group
from repro.train.schedule import WSD, Cosine
from tests.tiny import ARMS, STEPS, arrays_of, json_of, only_run, tiny_config, train, with_arm
from tests.toy import normal

SIZE = ("model.num_transformer_blocks=4", "data.tokenizer.vocab_size=11", "budget.context=12")
ADAMW = {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.5}
MUON = {**ADAMW, "name": "muon", "momentum": 0.95}


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


# Optimisers


def inner(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else [optimizer]


@pytest.mark.parametrize("optim", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("arm", ARMS)
def test_parameters_are_routed_by_their_tag(config: DictConfig, arm: str, optim: dict[str, Any]) -> None:
    """Only matrices are decayed or go to Muon; every parameter is in exactly one group, at the same rate."""
    decoder = build_decoder(with_arm(config, arm))
    placed: dict[int, tuple[str, float]] = {}
    for optimizer in inner(build_optimizer(decoder, optim)):
        for group in optimizer.param_groups:
            assert group["lr"] == 0.1
            for parameter in group["params"]:
                assert id(parameter) not in placed
                placed[id(parameter)] = (type(optimizer).__name__, group["weight_decay"])
    matrices = {
        name
        for name, _ in decoder.named_parameters()
        if name.rsplit(".", 1)[-1] in ("query", "key", "value", "output", "gate", "up")
    }
    assert len(matrices) == 4 * (4 + 3)
    for name, parameter in decoder.named_parameters():
        kind, decay = placed.pop(id(parameter))
        assert decay == (0.5 if name in matrices else 0.0), name
        assert kind == ("Muon" if optim["name"] == "muon" and name in matrices else "AdamW"), name
    assert not placed


@pytest.mark.parametrize("optim", [ADAMW, MUON], ids=["adamw", "muon"])
def test_without_gradient_only_matrices_shrink(config: DictConfig, optim: dict[str, Any]) -> None:
    """One step at lr 0.1 with decay 0.5 and zero gradients multiplies matrices by 0.95 and no other."""
    decoder = build_decoder(with_arm(config, "full"))
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(decoder, optim).step()
    for name, parameter in decoder.named_parameters():
        factor = 0.95 if name.endswith((".query", ".key", ".value", ".output", ".gate", ".up")) else 1.0
        assert torch.allclose(parameter, factor * before[name], rtol=1e-6, atol=0), name


def test_a_first_step_of_adamw_is_its_learning_rate() -> None:
    """g / sqrt(g^2) is a sign, so every entry moves by lr."""
    model = nn.Module()
    model.queries = tagged(torch.zeros(3, 4), "query")
    model.queries.grad = normal("gradient", 3, 4, dtype=torch.float32)
    build_optimizer(model, {**ADAMW, "eps": 0.0}).step()
    assert torch.allclose(model.queries.detach(), -0.1 * model.queries.grad.sign(), rtol=1e-5)


def test_a_first_step_of_muon_has_the_rms_of_adamw() -> None:
    """0.2 sqrt(max(A, B)) times a semi-orthogonal update of [A, B], whose RMS is 1 / sqrt(max(A, B))."""
    model = nn.Module()
    model.matrix = tagged(torch.zeros(8, 32), "matrix")
    model.matrix.grad = normal("gradient", 8, 32, dtype=torch.float32)
    model.gain = tagged(torch.ones(4), "gain")
    model.gain.grad = torch.ones(4)
    build_optimizer(model, MUON).step()
    # The Newton-Schulz iteration stops at singular values between 0.7 and 1.2.
    assert 0.7 < model.matrix.square().mean().sqrt().item() / (0.2 * 0.1) < 1.2
    assert model.gain.tolist() == pytest.approx([0.9] * 4)


def test_an_untagged_parameter_is_an_error(config: DictConfig) -> None:
    decoder = build_decoder(with_arm(config, "prenorm"))
    decoder.mixer.scale = nn.Parameter(torch.ones(3))
    for optim in (ADAMW, MUON):
        with pytest.raises(TypeError, match=r"parameter mixer\.scale carries no group"):
            build_optimizer(decoder, optim)
    with pytest.raises(ValueError, match="not one of"):
        tagged(torch.ones(1), "weights")


def test_every_group_of_parameters_exists_in_some_arm(config: DictConfig) -> None:
    used = set()
    for arm in ARMS:
        groups = parameters_by_group(build_decoder(with_arm(config, arm)))
        used |= {group for group, members in groups.items() if members}
    assert used == set(PARAMETER_GROUPS)


def steps(decoder: Decoder, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for k in numbers:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (k + 1)
        draw = (1000 * normal(f"batch {k}", 2, 13)).long() % 11
        optimizer.zero_grad()
        decoder.loss(draw[:, :-1], draw[:, 1:]).backward()
        optimizer.step()


def test_joint_optimizer_saves_and_loads_bit_for_bit(config: DictConfig) -> None:
    decoder = build_decoder(with_arm(config, "full"))
    optimizer = build_optimizer(decoder, MUON)
    assert isinstance(optimizer, JointOptimizer)
    steps(decoder, optimizer, range(3))
    stored = io.BytesIO()
    torch.save({"model": decoder.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    steps(decoder, optimizer, range(3, 6))

    stored.seek(0)
    saved = torch.load(stored, weights_only=True)
    resumed = build_decoder(with_arm(config, "full"))
    resumed.load_state_dict(saved["model"])
    again = build_optimizer(resumed, MUON)
    again.load_state_dict(saved["optimizer"])
    steps(resumed, again, range(3, 6))
    for (name, a), b in zip(decoder.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    # A rate set on the whole reaches the parts after loading as well.
    again.param_groups[0]["lr"] = again.param_groups[1]["lr"] = 7.0
    assert [group["lr"] for o in inner(again) for group in o.param_groups] == [7.0, 7.0]


# Schedules


def test_cosine_by_hand() -> None:
    """Ten steps, two of warm-up: half, full; then from 1 down to 0.1 over eight steps."""
    schedule = Cosine(warmup=0.2, final=0.1)
    factors = [schedule.factor(step, 10) for step in range(11)]
    assert factors[:3] == [0.5, 1.0, 1.0]  # warm-up ends at its second step, decay starts at the third
    assert factors[4] == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)))
    assert factors[6] == pytest.approx(0.55)  # halfway
    assert factors[10] == pytest.approx(0.1)  # the end, and beyond
    assert schedule.factor(99, 10) == pytest.approx(0.1)
    assert Cosine(warmup=0.0, final=0.0).factor(0, 10) == 1.0
    assert Cosine(warmup=1.0).factor(9, 10) == 1.0


def test_wsd_by_hand() -> None:
    """Ten steps: two of warm-up, flat, the last four down by quarters of the way to the end."""
    assert [WSD(warmup=0.2, decay=0.4, final=0.0).factor(step, 10) for step in range(11)] == pytest.approx(
        [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    )
    assert WSD(warmup=0.2, decay=0.4, final=0.2).factor(8, 10) == pytest.approx(0.6)
    assert WSD(warmup=0.0, decay=0.0).factor(9, 10) == 1.0


@pytest.mark.parametrize("schedule", [Cosine(0.1, 0.05), WSD(0.1, 0.3, 0.05)], ids=["cosine", "wsd"])
@pytest.mark.parametrize("total", [1, 2, 7, 1000])
def test_schedules_rise_once_and_fall_once(schedule: Cosine | WSD, total: int) -> None:
    factors = [schedule.factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1
    peak = factors.index(1)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


# A run through the entry


def metrics(root: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in only_run(root).read_metrics() if row["kind"] == kind]


def series(root: Path, key: str, kind: str = "train") -> list[Any]:
    return [row[key] for row in metrics(root, kind)]


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


# Validation and its records


def test_the_final_validation_recomputed(reference: Path) -> None:
    """From the checkpoint and the shards, without the code that validates."""
    run = only_run(reference)
    config = with_arm(tiny_config(), "block_s2")
    decoder = build_decoder(config)
    saved = torch.load(run.checkpoint, weights_only=True)["state_dict"]
    decoder.load_state_dict({name.removeprefix("decoder."): value for name, value in saved.items()})
    (directory,) = (path for path in (reference / "data" / "shards").iterdir() if path.is_dir())
    stream = torch.from_numpy(np.array(Shards.open(directory).tokens["val"], dtype=np.int64))
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(stream) - 1, 16):
            window = stream[start : start + 17]
            losses = F.cross_entropy(decoder(window[None, :-1])[0], window[1:], reduction="sum")
            total, count = total + losses.item(), count + len(window) - 1
    final, arrays = json_of(run, "final"), arrays_of(run, "val_losses")
    assert final["val_loss"] == pytest.approx(total / count, rel=1e-6)
    assert arrays["tokens"].sum() == count == len(stream) - 1
    assert arrays["loss_sum"].sum() == pytest.approx(total, rel=1e-6)
    assert final["val_bpb"] == pytest.approx(arrays["loss_sum"].sum() / math.log(2) / arrays["bytes"].sum())
    for source, loss in final["val_loss_by_source"].items():
        own = arrays["source"] == source
        assert loss == pytest.approx(arrays["loss_sum"][own].sum() / arrays["tokens"][own].sum())
    assert set(final["val_loss_by_source"]) == {"copy", "markov"}


def test_snapshot_steps_are_log_spaced() -> None:
    assert snapshot_steps(1000, 4) == [0, 125, 250, 500, 1000]
    assert snapshot_steps(3, 8) == [0, 1, 2, 3]
    assert snapshot_steps(1, 1) == [0, 1]


def test_position_buckets_double() -> None:
    assert position_edges(16) == [0, 1, 2, 4, 8, 16]
    assert position_edges(20) == [0, 1, 2, 4, 8, 16, 20]
    assert position_edges(1) == [0, 1]


def test_depth_weights_of_a_run(reference: Path) -> None:
    """Block of two sublayers, L = 4: reads see 1, 2, 2, 3 and at the end 3 sources, equally at first."""
    arrays = arrays_of(only_run(reference), "depth_weights")
    sources = [1, 2, 2, 3, 3]
    columns = {0: [0], 1: [0, 1], 2: [0, 1], 3: [0, 1, 2], 4: [0, 1, 2]}
    assert arrays["steps"].tolist() == [0, 4, 8]
    assert arrays["mean"].shape == arrays["mean_square"].shape == (3, 5, 3, 1)
    assert arrays["entropy"].shape == (3, 5, 1)
    assert arrays["position_edges"].tolist() == [0, 1, 2, 4, 8, 16]
    assert arrays["by_position"].shape == (3, 5, 3, 1, 5)
    for l, count in enumerate(sources):
        absent = [c for c in range(3) if c not in columns[l]]
        assert np.isnan(arrays["mean"][:, l, absent]).all()  # and not zero
        assert np.isfinite(arrays["mean"][:, l, columns[l]]).all()
        np.testing.assert_allclose(arrays["mean"][0, l, columns[l], 0], 1 / count, rtol=1e-6)
        np.testing.assert_allclose(arrays["entropy"][0, l, 0], math.log(count), atol=1e-6)
        np.testing.assert_allclose(np.nansum(arrays["mean"][:, l], axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(np.nansum(arrays["by_position"][:, l], axis=1), 1, rtol=1e-5)
        square, mean = arrays["mean_square"][:, l, columns[l]], arrays["mean"][:, l, columns[l]]
        assert (square >= mean**2 * (1 - 1e-6)).all()
    assert arrays["sources"][3].tolist()[:2] == ["b0", "b1"]
    assert arrays["sources"][0].tolist() == ["b0", "", ""]
    assert arrays["entropy"][2, 4, 0] != pytest.approx(math.log(3), abs=1e-9)  # it learned


class Weights(nn.Module):
    """A stand-in for a mixer of two reads whose weights are given."""

    num_sublayers, depth_heads = 1, 2

    def source_columns(self, l: int) -> list[int]:
        return [[0], [0, 2]][l]

    def source_labels(self, l: int) -> list[str]:
        return [["b0"], ["b0", "b2"]][l]


def test_depth_weights_reduced_by_hand() -> None:
    """Two batches, of two windows and one, and weights that do not sum to one (the sigmoid)."""
    weights = 0.1 + normal("weights", 2, 2, 3, 5).abs()  # [S, H, B, T]
    mixer: Any = Weights()
    with DepthWeightRecorder(mixer, context=5) as recorder:
        for rows in (slice(0, 2), slice(2, 3)):
            mixer.tap(1, weights[:, :, rows])
    assert mixer.tap is None
    arrays = recorder.arrays()
    assert np.isnan(arrays["mean"][0]).all()
    assert np.isnan(arrays["mean"][1, 1]).all()
    for c, s in ((0, 0), (2, 1)):
        np.testing.assert_allclose(arrays["mean"][1, c], weights[s].mean((1, 2)))
        np.testing.assert_allclose(arrays["mean_square"][1, c], weights[s].square().mean((1, 2)))
        for bucket, (low, high) in enumerate(itertools.pairwise([0, 1, 2, 4, 5])):
            expected = weights[s, :, :, low:high].mean((1, 2))
            np.testing.assert_allclose(arrays["by_position"][1, c, :, bucket], expected)
    share = weights / weights.sum(0)
    np.testing.assert_allclose(arrays["entropy"][1], -(share * share.log()).sum(0).mean((1, 2)))
    assert recorder.labels()["sources"].tolist() == [["b0", "", ""], ["b0", "", "b2"]]


def test_dynamics_by_hand() -> None:
    """Norms of a tensor and of the gradient of a mean loss, over two micro-batches."""
    recorder = DynamicsRecorder(2)
    batch = normal("batch", 4, 3, 5)
    for rows in (batch[:2], batch[2:]):
        x = rows.clone().requires_grad_()
        recorder.observe("output", 1, x)
        (x.square().sum(-1).mean() / 2).backward()  # half a step each, as Lightning scales it
    arrays = recorder.arrays()
    gradient = 2 * batch / 12  # of the mean over all 12 tokens
    for name, tensor in (("output", batch), ("output_grad", gradient)):
        assert arrays[f"{name}_l2"][1] == pytest.approx(tensor.norm(dim=-1).mean().item(), rel=1e-6)
        assert arrays[f"{name}_rms"][1] == pytest.approx(tensor.square().mean().sqrt().item(), rel=1e-6)
        assert arrays[f"{name}_mean_abs"][1] == pytest.approx(tensor.abs().mean().item(), rel=1e-6)
        assert np.isnan(arrays[f"{name}_l2"][0])
    assert np.isnan(arrays["stream_l2"]).all()
    assert recorder.arrays(0.5)["output_grad_l2"][1] == arrays["output_grad_l2"][1] / 2
    assert recorder.arrays(0.5)["output_l2"][1] == arrays["output_l2"][1]


def test_magnitudes_of_a_run(reference: Path) -> None:
    """Recorded at the training steps that follow snapshots, and at the last one."""
    arrays = arrays_of(only_run(reference), "depth_norms")
    assert arrays["steps"].tolist() == [0, 4, 7]
    for name in arrays.keys() - {"steps", "fixed"}:
        assert arrays[name].shape == (3, 4), name
        assert (arrays[name] > 0).all(), name
    # The first sublayer of a block begins the partial sum.
    np.testing.assert_array_equal(arrays["stream_l2"][:, [0, 2]], arrays["output_l2"][:, [0, 2]])
    assert (arrays["stream_l2"][:, [1, 3]] != arrays["output_l2"][:, [1, 3]]).all()


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
