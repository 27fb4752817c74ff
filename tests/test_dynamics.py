"""Fig. 5: shape measures by hand, curves and series from records, differences over seeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.dynamics import NORMS, TENSORS, evenness, growth, period, resets, spread
from experiments.fig5 import ITEM
from experiments.item import Source
from repro.runs.arrays import add_snapshot, write_npz
from tests.synthetic_runs import config, write_run


def test_measures_by_hand() -> None:
    values = np.array([1.0, 4.0, 2.0])
    assert growth(values) == 2.0
    assert spread(values) == 4.0
    assert evenness(values) == pytest.approx(49 / 63)
    assert evenness(np.ones(5)) == 1.0
    assert evenness(np.array([1.0, 0.0, 0.0, 0.0])) == 0.25


@pytest.mark.parametrize("length", [2, 3, 5])
def test_the_period_of_a_sawtooth_is_that_of_its_teeth(length: int) -> None:
    teeth = np.concatenate([np.arange(1.0, length + 1) * (1 + 0.1 * tooth) for tooth in range(4)])
    assert resets(teeth) == [length, 2 * length, 3 * length]
    assert period(teeth) == (length, 1.0)


def test_no_period_where_there_is_none() -> None:
    assert period(np.arange(1.0, 9.0)) is None
    assert (
        period(np.array([1.0, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0])) is None
    )  # distances 2 and 3, once each


def _write(root: Path, arm: str, seed: int, losses: list[float], stream: list[float]) -> None:
    node = config(arm, seed)["arm"] | {"mixer": {"block_size": 4}}
    directory = write_run(root, arm, seed, [losses[-1]] * 3, arm_node=node)
    rows = [
        {"step": step, "kind": "val", "tokens": 10 * step, "loss": loss}
        for step, loss in zip((0, 100, 200), losses, strict=True)
    ]
    rows.insert(2, {"step": 150, "kind": "train", "tokens": 1500, "loss": 99.0})
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    names = [f"{t}{g}_{n}" for t in TENSORS for g in ("", "_grad") for n in NORMS]
    write_npz(
        directory / "depth_norms.npz", add_snapshot(None, 199, {}, {name: np.array(stream) for name in names})
    )


def _runs(root: Path, seeds: int) -> None:
    for seed in range(1, seeds + 1):
        # Per sublayer; a transformer block ends at every second: 1, 2, ..., 16 and 2, 4, 2, ...
        _write(root, "prenorm", seed, [7.0, 5.0, 4.5], [1, 1, 1, 2, 1, 4, 1, 8, 1, 9, 1, 16])
        _write(root, "block_s4", seed, [7.0, 4.9, 4.4 - 0.01 * seed], [1, 2, 1, 4, 1, 2, 1, 4, 1, 2, 1, 4])


def test_numbers_from_records(tmp_path: Path) -> None:
    _runs(tmp_path / "runs", 3)
    rendered = ITEM.render(Source("quick", tmp_path / "runs", tmp_path / "results"))
    found = {
        (row["arm"], row["quantity"]): row
        for row in rendered.records
        if row["norm"] in ("", "rms") and row["tensor"] in ("loss", "stream")
    }
    assert found["prenorm", "magnitude: last / first"]["ours"] == 16.0
    assert found["prenorm", "magnitude: last / first"]["paper"] == pytest.approx(12.15 / 0.04)
    assert found["block_s4", "magnitude: last / first"]["ours"] == 2.0
    assert found["block_s4", "magnitude: period"]["ours"] == 2.0
    difference = found["block_s4", "minus PreNorm"]
    assert difference["ours"] == pytest.approx(-0.12)  # -0.11, -0.12, -0.13
    # t with 2 degrees of freedom, 4.3027, times 0.01 / sqrt(3)
    assert difference["high"] == pytest.approx(-0.12 + 4.3027 * 0.01 / np.sqrt(3), abs=1e-5)
    outcomes = {check.statement: check.test(rendered.data) for check in ITEM.checks}
    assert all(holds for holds, _ in outcomes.values())
    assert outcomes["Block's validation loss ends below PreNorm's."][1].startswith("-0.120 [")


def test_a_partial_sum_without_a_gradient_has_that_of_its_newest_output(tmp_path: Path) -> None:
    _write(tmp_path / "runs", "block_s4", 1, [7.0, 5.0, 4.5], [1, 2, 1, 4])
    (directory,) = (tmp_path / "runs/quick/block_s4").iterdir()
    arrays = {f"{t}{g}_{n}": np.ones(4) for t in TENSORS for g in ("", "_grad") for n in NORMS}
    arrays["stream_grad_rms"] = np.array([1.0, 3.0, np.nan, np.nan])
    arrays["output_grad_rms"] = np.array([1.0, 3.0, 5.0, 9.0])
    write_npz(directory / "depth_norms.npz", add_snapshot(None, 199, {}, arrays))
    data = ITEM.render(Source("quick", tmp_path / "runs", tmp_path / "results")).data
    assert data.arm("block", False).blocks("stream_grad_rms").tolist() == [[3.0, 9.0]]


def test_one_seed_gives_no_verdict(tmp_path: Path) -> None:
    _runs(tmp_path / "runs", 1)
    data = ITEM.render(Source("quick", tmp_path / "runs", tmp_path / "results")).data
    decided = {check.statement: check.test(data)[0] for check in ITEM.checks}
    assert decided["Block's validation loss ends below PreNorm's."] is None
    assert decided["PreNorm's magnitude grows more over depth than Block's."] is None


def test_an_arm_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path / "runs", "prenorm", 1, [7.0, 5.0, 4.5], [1, 1, 1, 2, 1, 4, 1, 16])
    rendered = ITEM.render(Source("quick", tmp_path / "runs", tmp_path / "results"))
    assert {run.arm for run in rendered.runs} == {"prenorm"}
    assert all(row["ours"] is None for row in rendered.records if row["arm"] == "block")
