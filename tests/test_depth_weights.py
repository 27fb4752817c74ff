"""Fig. 8: sources found from where weights exist, statistics by hand, checks with and without runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis.depth_weights import PRE_ATTENTION, PRE_MLP, DepthWeights, contributions, sinks, statistics
from experiments.fig8 import ITEM
from experiments.item import Source
from repro.runs.arrays import add_snapshot, write_npz
from tests.synthetic_runs import write_run

N = math.nan
# Two transformer blocks, Full: reads 0 to 3 and the output read; columns: embedding and four outputs.
FULL = np.array(
    [
        [1.0, N, N, N, N],
        [0.5, 0.5, N, N, N],
        [0.1, 0.6, 0.3, N, N],
        [0.2, 0.4, 0.0, 0.4, N],
        [0.2, 0.2, 0.2, 0.2, 0.2],
    ]
)
# Block of two sublayers: column 1 is block 1 (its partial sum in read 1), column 2 block 2.
BLOCK = np.array([[1.0, N, N], [0.7, 0.3, N], [0.4, 0.6, N], [0.2, 0.5, 0.3], [0.2, 0.5, 0.3]])


def test_statistics_of_full_by_hand() -> None:
    model = DepthWeights(FULL, norms=np.array([1.0, 2.0, 4.0, 1.0]))
    assert model.is_full
    attention = statistics(model, PRE_ATTENTION)
    assert attention["predecessor"] == pytest.approx(1 / 2)  # row 1 (one source); row 2 prefers source 1
    assert attention["previous block"] == 1.0  # source 1 is an output of transformer block 1
    assert attention["embedding"] == pytest.approx(0.1)
    assert attention["attention"] == pytest.approx(0.6)  # source 1
    assert attention["mlp"] == pytest.approx(0.3)  # source 2
    entropy = -(0.1 * math.log(0.1) + 0.6 * math.log(0.6) + 0.3 * math.log(0.3)) / math.log(3)
    assert attention["entropy"] == pytest.approx(entropy)
    # Read 2: 0.6 x 1 and 0.3 x 2 in equal parts, the embedding left out; read 3: 0.4 x 1, 0, 0.4 x 4.
    assert contributions(model, 2) == pytest.approx([0.5, 0.5])
    assert contributions(model, 3) == pytest.approx([0.2, 0.0, 0.8])
    assert statistics(model, PRE_MLP)["contribution predecessor"] == 1.0
    assert sinks(model, PRE_MLP) == [(2, 1, 0.4), (2, 2, 0.0)]


def test_sources_of_blocks_are_found_from_the_first_read_that_sees_them() -> None:
    model = DepthWeights(BLOCK)
    assert not model.is_full
    assert model.starts == [-1, 0, 2, 4]
    # Column 1 holds output 0 in read 1, outputs 0 and 1 from read 2 on; column 2 in read 3 holds output 2.
    assert [model.last_sublayer(*place) for place in ((1, 1), (2, 1), (3, 1), (3, 2))] == [0, 1, 1, 2]
    assert statistics(model, PRE_ATTENTION)["predecessor"] == 1.0
    assert statistics(model, PRE_MLP)["predecessor"] == 0.0
    assert math.isnan(statistics(model, PRE_MLP)["attention"])


def test_rows_are_normalised_first() -> None:
    scaled = FULL * 1.04
    for panel in (PRE_ATTENTION, PRE_MLP):
        assert statistics(DepthWeights(scaled), panel) == pytest.approx(
            statistics(DepthWeights(FULL), panel), nan_ok=True
        )


def _write(root: Path, arm: str, seed: int, weights: np.ndarray) -> None:
    directory = write_run(root, arm, seed, [4.0] * 3)
    arrays = {"mean": weights[..., None], "entropy": np.zeros((len(weights), 1))}
    first = {name: np.full_like(value, 0.5) for name, value in arrays.items()}
    snapshots = add_snapshot(add_snapshot(None, 0, {}, first), 320, {}, arrays)
    write_npz(directory / "depth_weights.npz", snapshots)
    norms = {"stream_rms": np.ones(len(weights) - 1)}
    write_npz(directory / "depth_norms.npz", add_snapshot(None, 319, {}, norms))


def test_runs_are_averaged_and_decide_only_with_three_seeds(tmp_path: Path) -> None:
    source = Source("quick", tmp_path / "runs", tmp_path / "results")
    for seed in (1, 2):
        _write(tmp_path / "runs", "full", seed, FULL)
        _write(tmp_path / "runs", "block_s4", seed, BLOCK + (seed - 1) * np.array([0.0, 0.02, 0.0]))
    rendered = ITEM.render(source)
    weights = {
        (row["model"], row["read"], row["transformer_block"], row["source"]): row
        for row in rendered.records
        if row["quantity"] == "weight"
    }
    cell = weights["block_s4", "pre-MLP", 2, 1]
    assert cell["ours"] == pytest.approx(0.51)
    assert cell["sd"] == pytest.approx(0.02 / math.sqrt(2))
    assert ("full", "pre-attention", 1, 1) not in weights  # no such source: no record, and not zero
    outcomes = {check.statement: check.test(rendered.data)[0] for check in ITEM.checks}
    ours = [holds for statement, holds in outcomes.items() if not statement.startswith("Digitised")]
    assert ours == [None] * 6
    assert all(holds for statement, holds in outcomes.items() if statement.startswith("Digitised"))
    _write(tmp_path / "runs", "full", 3, FULL)
    _write(tmp_path / "runs", "block_s4", 3, BLOCK)
    data = ITEM.render(source).data
    by_statement = {check.statement: check.test(data)[0] for check in ITEM.checks}
    # Full agrees (0.4 against 0.3), Block does not (0.3 against 0.6): the sentence is about both.
    assert by_statement["Reads before MLPs are more local (weight of the predecessor)."] is False
    assert by_statement["Most rows have it in their own or the preceding transformer block."] is True


def test_the_picture_leaves_what_does_not_exist_out() -> None:
    figure = ITEM.render(Source("published")).figure
    panels = [axes for axes in figure.axes if axes.images]
    assert len(panels) == 4
    assert {axes.images[0].get_clim() for axes in panels} == {(0.0, 1.0)}
    masks = [np.ma.getmaskarray(axes.images[0].get_array()).sum() for axes in panels]
    # Triangles: Full has 1, 3, ..., 31 and 2, 4, ..., 32 of 32 sources; Block 1, 2, 2, ..., 8, 8, 9 of 9.
    assert masks == [16 * 32 - 16**2, 16 * 32 - 16 * 17, 16 * 9 - 80, 16 * 9 - 88]
    assert all(axes.patch.get_hatch() for axes in panels)
