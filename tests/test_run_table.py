"""The table of runs, the loaders and the copies kept with the results."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from repro.errors import DataError
from repro.runs import Run, copy_records, load_arrays, load_metrics, load_runs, load_timings, load_val_losses
from repro.runs.table import COLUMNS
from tests.test_identity import CONFIG, changed


def finish(run: Run, loss: float = 2.5) -> Run:
    run.write_json(
        "meta", {"device": "cpu", "compile": False, "backend": "eager", "threads": 1, "parameters": 10}
    )
    run.write_json(
        "final",
        {
            "step": 9,
            "tokens": 900,
            "val_loss": loss,
            "val_bpb": 1.25,
            "parameters": 1000,
            "mixer_parameters": 66,
            "flops_per_token": 6000.0,
        },
    )
    run.append_metrics({"step": 1, "kind": "train", "loss": 3.0})
    run.append_metrics({"step": 2, "kind": "val", "by_source": {"talks": {"loss": 2.0, "bpb": 1.0}}})
    run.append_timings({"step": 2, "seconds": 0.1})
    run.write_arrays(
        "val_losses", loss_sum=[5.0, 7.0], tokens=[2, 3], bytes=[9, 11], source=["talks", "plays"]
    )
    run.append_snapshot("depth_weights", 2, mean=[0.5])
    run.set_status("done", step=9)
    return run


def row(root: Path) -> pd.Series:
    frame = load_runs(root)
    assert len(frame) == 1
    return frame.iloc[0]


def test_a_finished_run_is_a_row(tmp_path: Path) -> None:
    run = finish(Run.open(changed("data_seed", 5), tmp_path))
    found = row(tmp_path)
    expected = {
        "run_id": run.run_id,
        "scale": "quick",
        "arm": "block_s4",
        "label": "Block (S = 4)",
        "parent": "prenorm",
        "seed": 3,
        "init_seed": 3,
        "data_seed": 5,
        "status": "done",
        "step": 9,
        "tokens": 900,
        "val_loss": 2.5,
        "val_bpb": 1.25,
        "parameters": 1000,
        "mixer_parameters": 66,
        "flops_per_token": 6000.0,
        "device": "cpu",
        "precision": "32-true",
        "compile": "False",
        "backend": "eager",
        "depth_execution": "auto",
        "threads": 1,
        "data": "prose",
        "data_fingerprint": "f00d",
        "semantics": 1,
        "path": str(run.directory),
    }
    assert {name: found[name] for name in expected} == expected
    assert pd.isna(found["diverged_at_step"])
    assert found["problem"] is None
    assert set(expected) | {"diverged_at_step", "git_sha", "problem"} == set(COLUMNS)


def test_an_empty_or_absent_root_is_an_empty_table(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        frame = load_runs(root)
        assert len(frame) == 0
        assert list(frame.columns) == list(COLUMNS)
        assert frame["val_loss"].dtype == "float64"
        assert str(frame["seed"].dtype) == "Int64"


def test_rows_are_in_a_fixed_order_and_of_the_scale_asked_for(tmp_path: Path) -> None:
    settings = [("quick", 10), ("quick", 2), ("cpu", 1), ("paper/48b", 7)]
    for scale, seed in settings:
        Run.open({**changed("seed", seed), "init_seed": None, "data_seed": None, "scale": scale}, tmp_path)
    Run.open({**changed("arm.name", "a_first"), "scale": "quick"}, tmp_path)
    frame = load_runs(tmp_path)
    assert list(zip(frame["scale"], frame["arm"], frame["seed"], strict=True)) == [
        ("cpu", "block_s4", 1),
        ("paper/48b", "block_s4", 7),
        ("quick", "a_first", 3),
        ("quick", "block_s4", 2),
        ("quick", "block_s4", 10),
    ]
    assert list(load_runs(tmp_path, scale="paper/48b")["seed"]) == [7]
    assert list(load_runs(tmp_path, scale="quick")["seed"]) == [3, 2, 10]
    assert len(load_runs(tmp_path, scale="gpu")) == 0


def test_unfinished_runs_have_no_losses(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path))
    for state in ("running", "failed", "new"):
        run.set_status(state, step=4)
        found = row(tmp_path)
        assert (found["status"], found["step"]) == (state, 4)
        assert np.isnan(found["val_loss"])
        assert found["parameters"] == 10  # known before training, from meta.json


def test_a_diverged_run_is_a_row(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    run.write_json("final", {"step": 6, "val_loss": None, "diverged_at_step": 6})
    run.set_status("diverged", step=6)
    found = row(tmp_path)
    assert (found["status"], found["diverged_at_step"], found["problem"]) == ("diverged", 6, None)
    assert np.isnan(found["val_loss"])


DAMAGE = {
    "cut": b'{"state": "do',
    "empty": b"",
    "binary": b"\xff\x00\xfe",
    "list": b"[1, 2]",
    "text": b'"done"',
    "deep": b"[" * 50_000,
    "types": b'{"val_loss": "low", "step": [1], "seed": {}, "state": 5, "arm": [], "data": 3, "x": 1e400}',
    "tag": b"!!python/object/apply:os.system ['touch executed']",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("name", ["config.yaml", "status.json", "meta.json", "final.json"])
def test_a_damaged_run_is_a_row_and_stays_as_it_is(
    tmp_path: Path, name: str, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = finish(Run.open(CONFIG, tmp_path))
    (run.directory / name).write_bytes(damage)
    before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    found = row(tmp_path)
    assert found["run_id"] == run.run_id
    assert found["arm"] == "block_s4"
    assert found["scale"] == "quick"
    assert found["status"] == ("failed" if name == "status.json" else "done")
    if name == "final.json":
        assert np.isnan(found["val_loss"])
    if name in ("config.yaml", "status.json"):
        assert name in found["problem"]
    assert len(load_runs(tmp_path, scale="quick")) == 1
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == before
    assert not (tmp_path / "executed").exists()


def test_missing_records_and_foreign_configs_are_named(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path))
    other = Run.open(changed("seed", 9), tmp_path / "other")
    run.config_path.write_bytes(other.config_path.read_bytes())
    assert row(tmp_path / "quick")["problem"] == f"config.yaml is that of run {other.run_id}"
    run.config_path.unlink()
    assert row(tmp_path / "quick")["problem"] == "no readable config.yaml"
    assert row(tmp_path / "quick")["status"] == "done"


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "meta.json", "final.json"])
def test_an_unreadable_record_is_a_row(tmp_path: Path, name: str) -> None:
    run = finish(Run.open(CONFIG, tmp_path))
    (run.directory / name).unlink()
    (run.directory / name).mkdir()
    assert f"{name}: cannot be read" in row(tmp_path)["problem"]


def test_other_files_and_directories_are_no_runs(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path))
    for name in (".wandb/quick/full/0123456789ab", "quick/full/not-an-id", "quick/full/0123456789AB"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "table.csv").write_text("")
    run.supersede()
    assert list(load_runs(tmp_path)["status"]) == ["new"]


def test_loaders(tmp_path: Path) -> None:
    path = finish(Run.open(CONFIG, tmp_path)).directory
    metrics = load_metrics(path)
    assert list(metrics["step"]) == [1, 2]
    assert metrics.loc[1, "by_source.talks.loss"] == 2.0
    assert np.isnan(metrics.loc[0, "by_source.talks.bpb"])
    assert list(load_timings(path)["seconds"]) == [0.1]
    losses = load_val_losses(path)
    assert losses.to_dict("list") == {
        "bytes": [9, 11],
        "loss_sum": [5.0, 7.0],
        "source": ["talks", "plays"],
        "tokens": [2, 3],
    }
    assert load_arrays(path, "depth_weights")["mean"].tolist() == [[0.5]]


def test_loaders_say_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    path = run.directory
    for load in (load_metrics, load_timings, load_val_losses):
        with pytest.raises(DataError, match="missing"):
            load(path)
    run.metrics_path.write_bytes(b"what\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl: line 1 is damaged"):
        load_metrics(path)
    (path / "val_losses.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"val_losses\.npz: not a readable npz"):
        load_val_losses(path)
    assert (path / "val_losses.npz").exists()
    run.write_arrays("val_losses", loss_sum=[1.0, 2.0], tokens=[1])
    with pytest.raises(DataError, match="one value per document"):
        load_val_losses(path)


def test_copied_records_load_like_the_run(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path / "runs"))
    with run.lock():
        run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"weights"))
    for name in ("train.log", "final.json.corrupt-1", ".tmp-1-final.json", "events.txt"):
        (run.directory / name).write_text("x")
    (run.directory / "wandb").mkdir()
    os.symlink("/etc/hostname", run.directory / "link.json")
    results = tmp_path / "results"
    target = copy_records(run.directory, results / "quick" / "runs")
    assert target == results / "quick" / "runs" / "block_s4" / run.run_id
    assert {path.name for path in target.iterdir()} == {
        "config.yaml",
        "status.json",
        "meta.json",
        "final.json",
        "metrics.jsonl",
        "timings.jsonl",
        "val_losses.npz",
        "depth_weights.npz",
    }
    original = load_runs(tmp_path / "runs").drop(columns="path")
    for root in (results, results / "quick", results / "quick" / "runs"):
        copied = load_runs(root, scale="quick")
        pd.testing.assert_frame_equal(copied.drop(columns="path"), original)
    pd.testing.assert_frame_equal(load_metrics(copied["path"][0]), load_metrics(run.directory))
    assert json.loads((target / "final.json").read_text())["val_loss"] == 2.5


def test_a_lean_copy_takes_nothing_away(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path / "runs"))
    weights = (run.directory / "depth_weights.npz").read_bytes()
    target = copy_records(run.directory, tmp_path / "lean", without=["depth_weights.npz"])
    assert not (target / "depth_weights.npz").exists()
    assert (target / "val_losses.npz").exists()
    copy_records(run.directory, tmp_path / "lean")
    assert (target / "depth_weights.npz").read_bytes() == weights
    (target / "depth_weights.npz").write_bytes(b"of an earlier run")
    copy_records(run.directory, tmp_path / "lean", without=["depth_weights.npz"])
    assert (target / "depth_weights.npz").read_bytes() == weights


def test_copying_again_follows_the_run(tmp_path: Path) -> None:
    run = finish(Run.open(CONFIG, tmp_path / "runs"))
    copy_records(run.directory, tmp_path / "results")
    run.supersede()
    run.append_metrics({"step": 1})
    target = copy_records(run.directory, tmp_path / "results")
    assert {path.name for path in target.iterdir()} == {"config.yaml", "metrics.jsonl"}
    assert (target / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
    with pytest.raises(DataError, match="not a run directory"):
        copy_records(tmp_path / "runs", tmp_path / "results")
