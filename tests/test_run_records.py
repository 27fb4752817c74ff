"""Whole records: JSON, arrays and stacked snapshots come back as they were, or say that they are damaged."""

import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest

from repro.runs import DamagedRecord, Run
from tests.run_cases import opened_run

run = opened_run


def test_json_and_arrays_come_back(run: Run) -> None:
    run.write_json("final", {"val_loss": 2.5, "by": {"a": math.inf}, "shape": (1, 2), "n": np.arange(2)})
    assert run.read_json("final.json") == {
        "val_loss": 2.5,
        "by": {"a": math.inf},
        "shape": [1, 2],
        "n": [0, 1],
    }
    json.loads((run.directory / "final.json").read_text(), parse_constant=pytest.fail)  # strict JSON
    given = {
        "x": np.array([[1.5, math.nan]], dtype=np.float32),
        "transposed": np.arange(6).reshape(2, 3).T,
        "source": ["speeches", "é"],
        "scalar": 3,
    }
    run.write_arrays("val_losses", **given)
    found = run.read_arrays("val_losses.npz")
    assert found is not None
    assert set(found) == set(given)
    assert found["x"].dtype == np.float32
    for name, value in given.items():
        np.testing.assert_array_equal(found[name], np.asarray(value))
    assert run.read_json("meta") is None
    assert run.read_arrays("depth_weights") is None


def test_equal_arrays_are_equal_files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5))
    first = run.write_arrays("a", x=x, y=["p"]).read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    monkeypatch.setattr("time.localtime", lambda *_: (2033, 5, 18, 3, 33, 20, 2, 138, 0))
    assert run.write_arrays("b", y=["p"], x=np.asfortranarray(x)).read_bytes() == first
    assert run.write_arrays("c", y=["p"], x=x + 1e-9).read_bytes() != first
    with zipfile.ZipFile(run.directory / "a.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_objects_are_neither_written_nor_read(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="x: arrays of object"):
        run.write_arrays("a", x=np.array([{}, None]))
    np.savez(run.directory / "a.npz", x=np.array([{}, None]))
    assert run.read_arrays("a") is None
    assert (run.directory / "a.npz.corrupt-1").exists()


def test_damaged_records_are_kept_aside_and_absent(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    (run.directory / "final.json").write_bytes(b'{"val_loss": 2.')
    assert run.read_json("final") is None
    path = run.write_arrays("a", x=np.arange(1000))
    data = path.read_bytes()
    middle = len(data) // 2
    cuts = [
        b"",
        b"PK",
        data[:-1],
        data[:100],
        data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :],
    ]
    for number, damage in enumerate(cuts, start=1):
        path.write_bytes(damage)
        assert run.read_arrays("a") is None, number
        assert (run.directory / f"a.npz.corrupt-{number}").read_bytes() == damage
    np.save(run.directory / "single.npy", np.arange(3))
    (run.directory / "single.npy").rename(path)
    assert run.read_arrays("a") is None
    assert len(caplog.records) == 1 + len(cuts) + 1


def test_snapshots_stack_in_order_and_once(run: Run) -> None:
    fixed = {"labels": ["emb", "b1"], "position_edges": [0, 1, 2]}
    for step, value in [(0, 0.0), (8, 8.0), (4, 4.0), (8, 88.0)]:
        run.append_snapshot("depth_weights", step, fixed=fixed, mean=[[value, math.nan]], entropy=value)
    found = run.read_arrays("depth_weights")
    assert found is not None
    np.testing.assert_array_equal(found["steps"], [0, 4, 8])
    np.testing.assert_array_equal(found["mean"], [[[0, math.nan]], [[4, math.nan]], [[88, math.nan]]])
    np.testing.assert_array_equal(found["entropy"], [0, 4, 88])
    assert found["labels"].tolist() == ["emb", "b1"]
    np.testing.assert_array_equal(found["position_edges"], [0, 1, 2])
    before = (run.directory / "depth_weights.npz").read_bytes()
    run.append_snapshot("depth_weights", 8, fixed=fixed, mean=[[88.0, math.nan]], entropy=88.0)
    assert (run.directory / "depth_weights.npz").read_bytes() == before


def test_snapshots_that_do_not_fit_are_refused(run: Run) -> None:
    run.append_snapshot("s", 1, fixed={"labels": ["a"]}, mean=[1.0, 2.0])
    before = (run.directory / "s.npz").read_bytes()
    with pytest.raises(ValueError, match="other arrays"):
        run.append_snapshot("s", 2, fixed={"labels": ["a"]}, mean=[1.0, 2.0], entropy=1.0)
    with pytest.raises(ValueError, match="labels is fixed"):
        run.append_snapshot("s", 2, fixed={"labels": ["b"]}, mean=[1.0, 2.0])
    with pytest.raises(ValueError, match="dimension"):
        run.append_snapshot("s", 2, fixed={"labels": ["a"]}, mean=[1.0])
    with pytest.raises(ValueError, match="reserved"):
        run.append_snapshot("s", 2, steps=[1.0])
    assert (run.directory / "s.npz").read_bytes() == before


def test_a_snapshot_is_not_added_to_damaged_ones(run: Run) -> None:
    path = run.append_snapshot("s", 1, mean=[1.0])
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DamagedRecord, match=r"s\.npz"):
        run.append_snapshot("s", 2, mean=[1.0])
    assert len(path.read_bytes()) == 50
