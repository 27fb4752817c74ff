"""Depth weights over training: what is made of the arrays that a run records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.depth_snapshots import (
    Snapshots,
    over_positions,
    over_training,
    position_names,
    ratio_to_uniform,
    read_snapshots,
)
from analysis.depth_snapshots_figure import curves, maps_over_training
from repro.errors import DataError
from repro.runs.arrays import add_snapshot, write_npz


def test_snapshots_reduce_what_a_run_records(tmp_path: Path) -> None:
    """Two reads, two columns, two heads, two position buckets; every number by hand."""
    nan = np.nan
    mean = np.array([[[1.0, 1.0], [nan, nan]], [[0.25, 0.75], [0.75, 0.25]]])
    square = np.array([[[1.0, 1.0], [nan, nan]], [[0.0725, 0.5625], [0.5725, 0.0625]]])
    by_position = np.stack([mean, mean], axis=-1)
    by_position[1, 0] = [[0.2, 0.3], [0.6, 0.9]]
    arrays = {"mean": mean, "mean_square": square, "entropy": np.array([[0.0, 0.0], [0.4, 0.6]])}
    fixed = {"position_edges": np.array([0, 1, 4]), "sources": np.array([["b0", ""], ["b0", "b1"]])}
    write_npz(
        tmp_path / "depth_weights.npz", add_snapshot(None, 7, fixed, {**arrays, "by_position": by_position})
    )
    found = read_snapshots(tmp_path)
    assert found.steps.tolist() == [7]
    np.testing.assert_allclose(found.weights[0], [[1.0, nan], [0.5, 0.5]])
    # Variances by head 0.01 and 0, hence the root of 0.005.
    np.testing.assert_allclose(found.spread[0], [[0.0, nan], [0.005**0.5, 0.005**0.5]], atol=1e-12)
    np.testing.assert_allclose(found.entropy[0], [0.0, 0.5])
    np.testing.assert_allclose(found.by_position[0, 1, 0], [0.4, 0.6])
    np.testing.assert_allclose(found.at_position(1).weights[1], [0.6, 0.5])
    assert position_names(found.edges) == ["0", "1-3"]
    np.testing.assert_allclose(ratio_to_uniform(found.weights[0]), [[1.0, nan], [1.0, 1.0]])


def test_snapshots_that_lack_an_array_are_refused(tmp_path: Path) -> None:
    write_npz(tmp_path / "depth_weights.npz", {"mean": np.ones((1, 1, 1, 1))})
    with pytest.raises(DataError, match="no 'mean_square'"):
        read_snapshots(tmp_path)


def snapshots(steps: list[int], embedding: list[float]) -> Snapshots:
    """Four sublayers of Full whose reads give the embedding this weight at each step, the rest evenly."""
    weights = np.full((len(steps), 5, 5), np.nan)
    for k, share in enumerate(embedding):
        weights[k, 0, 0] = 1.0
        for read in range(1, 5):
            weights[k, read, : read + 1] = [share, *[(1 - share) / read] * read]
    by_position = np.stack([weights, weights], axis=-1)
    return Snapshots(
        np.array(steps), weights, 0 * weights, np.zeros(weights.shape[:2]), by_position, np.array([0, 1, 2])
    )


def test_models_over_training_are_those_of_each_step() -> None:
    runs = [snapshots([0, 5], [0.2, 0.4]), snapshots([0, 5], [0.2, 0.5]), snapshots([0, 5], [0.2, 0.6])]
    first, last = over_training("full", "Full", runs)
    assert first.values(0, "embedding") == pytest.approx([0.2, 0.2, 0.2])
    found = last.statistic(1, "embedding")
    assert found is not None
    # Mean 0.5, standard deviation 0.1, t of 2 degrees of freedom 4.3027: half-width 4.3027 * 0.1 / sqrt(3).
    assert (found.estimate, found.high - found.estimate) == pytest.approx((0.5, 0.24842), abs=1e-4)
    assert [model.values(1, "embedding") for model in over_positions("full", "Full", runs)] == [
        pytest.approx([0.4, 0.5, 0.6])
    ] * 2


def test_runs_with_other_steps_are_refused() -> None:
    with pytest.raises(DataError, match="arm full: its runs have snapshots at different steps"):
        over_training("full", "Full", [snapshots([0, 5], [0.2, 0.4]), snapshots([0, 6], [0.2, 0.4])])


def test_maps_share_one_scale_and_leave_missing_sources_out() -> None:
    run = snapshots([0, 5], [0.2, 0.4])
    figure = maps_over_training({"Full": list(run.weights)}, [0, 5], "title")
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert len(images) == 2
    assert {image.get_clim() for image in images} == {(-3.0, 3.0)}
    for image in images:
        assert np.array_equal(np.ma.getmaskarray(image.get_array()), ~np.tri(5, dtype=bool))
    # Read 3 has four sources, so 0.4 on the embedding is 1.6 times its uniform weight.
    assert images[1].get_array()[3, 0] == pytest.approx(np.log2(1.6))
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["Full, step 0", "Full, step 5"]


def test_curves_have_a_line_per_arm_and_kind_of_read() -> None:
    runs = [snapshots([0, 5], [0.2, 0.4]), snapshots([0, 5], [0.2, 0.5])]
    figure = curves([over_training("full", "Full", runs)], {"embedding": "panel"}, [0, 5], "step", "title")
    (axes,) = figure.axes
    attention, mlp = (container.lines[0] for container in axes.containers)
    assert list(attention.get_ydata()) == pytest.approx([0.2, 0.45])
    assert list(mlp.get_ydata()) == pytest.approx([0.2, 0.45])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "Full, pre-attention",
        "Full, pre-MLP",
    ]
