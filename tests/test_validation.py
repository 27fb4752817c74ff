"""Validation and what is recorded beside it: losses of documents, depth weights, magnitudes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from repro.data.shards import Shards
from repro.model.build import build_decoder
from repro.train.callbacks import snapshot_steps
from repro.train.evaluate import DepthWeightRecorder, DynamicsRecorder, position_edges
from tests.tiny import arrays_of, json_of, only_run, tiny_config, train, with_arm
from tests.toy import normal


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of block_s2."""
    root = tmp_path_factory.mktemp("reference")
    assert train(root, "arm=block_s2") == 0
    return root


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


def test_a_stream_beside_the_graph_has_its_outputs_gradient() -> None:
    recorder = DynamicsRecorder(1, shared_gradient=True)
    output = normal("output", 4, 3).requires_grad_()
    recorder.observe("output", 0, output)
    recorder.observe("stream", 0, 2 * output)  # as a partial sum that no read has seen yet
    (3 * output).sum().backward()
    arrays = recorder.arrays()
    assert arrays["stream_grad_rms"][0] == arrays["output_grad_rms"][0] == pytest.approx(3.0)
    assert arrays["stream_rms"][0] == pytest.approx(2 * arrays["output_rms"][0])


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
