"""One run directory: opening, status, rows, arrays, snapshots, resuming, damage and a full disk."""

import json
import math
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from repro.errors import DataError
from repro.runs import (
    DamagedRecord,
    Run,
    Status,
    command_line,
    git_state,
    host_description,
    replace_atomically,
    run_id,
)
from tests.test_identity import CONFIG, changed

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.open(CONFIG, tmp_path)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Opening


def test_opening_makes_the_directory_once(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    assert run.directory == tmp_path / "quick" / "block_s4" / run_id(CONFIG)
    assert names(run.directory) == {"config.yaml"}
    assert run.config == yaml.safe_load(run.config_path.read_text())
    assert run.config["optim"] == {"lr": 0.001, "betas": [0.9, 0.95]}
    before = run.config_path.read_bytes()
    again = Run.open(changed("runtime.threads", 7), tmp_path)
    assert again.directory == run.directory
    assert run.config_path.read_bytes() == before


def test_small_floats_survive_the_config_file(run: Run) -> None:
    assert run.config["model"]["norm_eps"] == 1e-8
    assert run_id(run.config) == run.run_id


def test_a_foreign_directory_is_refused(run: Run, tmp_path: Path) -> None:
    other = Run.open(changed("seed", 9), tmp_path / "other")
    shutil.copy(other.config_path, run.config_path)
    with pytest.raises(DataError, match=f"another config \\({other.run_id}\\)"):
        Run.open(CONFIG, tmp_path)
    assert run.config["seed"] == 9


@pytest.mark.parametrize(
    "damage",
    [
        b"arm: [",
        b"",
        b"- 1\n",
        b"\xff\xfe",
        b"arm: {name: block_s4}\n",
        b"a: !!python/object/apply:os.system ['touch executed']\n",
        b"a: &a [1]\nb: *a\n",
    ],
)
def test_a_corrupt_config_is_kept_aside_and_written_again(
    run: Run, tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = run.config_path.read_bytes()
    for number in (1, 2):
        run.config_path.write_bytes(damage)
        caplog.clear()
        Run.open(CONFIG, tmp_path)
        assert run.config_path.read_bytes() == good
        assert (run.directory / f"config.yaml.corrupt-{number}").read_bytes() == damage
        assert len(caplog.records) == 1
        assert f"kept aside as config.yaml.corrupt-{number}" in caplog.text
    assert not (tmp_path / "executed").exists()


def test_a_root_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        Run.open(CONFIG, tmp_path / "file")


# Status


def test_status_moves_and_remembers_the_step(run: Run) -> None:
    assert run.status == Status("new", 0, 0.0, "")
    run.set_status("running", step=7)
    first = run.status
    assert (first.state, first.step, first.finished) == ("running", 7, False)
    run.set_status("failed", message="out of memory")
    assert (run.status.state, run.status.step, run.status.message) == ("failed", 7, "out of memory")
    assert run.set_status("diverged", step=9).finished
    assert run.set_status("done").finished
    assert run.status.message == ""
    assert run.status.heartbeat >= first.heartbeat > 1e9
    assert set(json.loads(run.status_path.read_text())) == {"state", "step", "heartbeat", "message"}
    with pytest.raises(ValueError, match="paused"):
        run.set_status("paused")
    assert run.status.state == "done"


@pytest.mark.parametrize(
    ("status", "now", "stale"),
    [
        (Status("running", 1, 1000.0), 1060.0, False),
        (Status("running", 1, 1000.0), 1060.5, True),
        (Status("done", 1, 1000.0), 9999.0, False),
        (Status(), 9999.0, False),
    ],
)
def test_stale_is_running_and_silent(status: Status, now: float, stale: bool) -> None:
    assert status.is_stale(now, timeout=60.0) is stale


@pytest.mark.parametrize(
    "damage",
    [
        b'{"state": "running", "st',
        b"",
        b"[]",
        b'"done"',
        b'{"state": "finished", "step": 1}',
        b'{"state": "done", "step": "1"}',
        b'{"state": "done", "heartbeat": "NaN"}',
        b"\x00\x00\x00",
        b"[" * 100_000,
    ],
)
def test_a_damaged_status_counts_as_failed(run: Run, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    run.status_path.write_bytes(damage)
    assert run.status.state == "failed"
    assert (run.directory / "status.json.corrupt-1").read_bytes() == damage
    assert len(caplog.records) == 1
    assert run.status.state == "failed"
    assert len(caplog.records) == 1


# Rows


def test_rows_come_back_as_they_were(run: Run) -> None:
    row = {"step": 3, "loss": np.float32(0.1), "by_source": {"é": {"loss": 0.1 + 0.2}}, "lr": 1e-8, "x": None}
    run.append_metrics(row)
    run.append_metrics(
        {"step": np.int64(4), "loss": math.nan, "grad_norm": np.float64(-math.inf), "ok": True}
    )
    lines = run.metrics_path.read_text(encoding="utf-8").splitlines()
    assert lines == [
        '{"step": 3, "loss": 0.10000000149011612, "by_source": {"é": {"loss": 0.30000000000000004}}, '
        '"lr": 1e-08, "x": null}',
        '{"step": 4, "loss": "NaN", "grad_norm": "-Infinity", "ok": true}',
    ]
    first, second = run.read_metrics()
    assert first["by_source"]["é"]["loss"] == 0.1 + 0.2
    assert math.isnan(second["loss"])
    assert second["grad_norm"] == -math.inf
    assert run.read_timings() == []


@pytest.mark.parametrize("row", [{"loss": 1.0}, {"step": 1.0}, {"step": True}, {"step": None}])
def test_a_row_needs_its_step(run: Run, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="step"):
        run.append_metrics(row)
    assert not run.metrics_path.exists()


def test_a_row_of_something_else_is_refused(run: Run) -> None:
    with pytest.raises(TypeError, match="not object"):
        run.append_metrics({"step": 1, "loss": object()})


def test_a_half_written_line_is_no_row_and_is_dropped_before_appending(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.metrics_path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert run.read_metrics() == [{"step": 1}]
    assert run.metrics_path.read_bytes().endswith(b'"lo')  # reading changes nothing: it may be being written
    run.append_metrics({"step": 2})
    assert run.metrics_path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    assert [record.message for record in caplog.records] == [
        f"{run.metrics_path}: dropped a half-written last line"
    ]


def test_a_damaged_line_is_named(run: Run) -> None:
    run.metrics_path.write_bytes(b'{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(DataError, match="line 2 is damaged"):
        run.read_metrics()


# Resuming


def test_cutting_keeps_the_bytes_before_the_checkpoint(run: Run) -> None:
    for step in range(1, 6):
        run.append_metrics({"step": step, "loss": 1 / step})
        run.append_timings({"step": step, "seconds": 0.5})
        run.append_snapshot("depth_norms", step, output_l2=[float(step), -1.0])
    run.append_snapshot("depth_weights", 5, mean=[1.0])
    kept = run.metrics_path.read_bytes().splitlines(keepends=True)[:3]
    with run.metrics_path.open("ab") as file:
        file.write(b'{"step": 6, "l')
    assert run.cut_after(3) is True
    assert run.metrics_path.read_bytes() == b"".join(kept)
    assert [row["step"] for row in run.read_timings()] == [1, 2, 3]
    norms = run.read_arrays("depth_norms")
    assert norms is not None
    np.testing.assert_array_equal(norms["steps"], [1, 2, 3])
    np.testing.assert_array_equal(norms["output_l2"], [[1, -1], [2, -1], [3, -1]])
    assert run.read_arrays("depth_weights") is None
    assert run.counts() == {"metrics.jsonl": 3, "depth_norms.npz": 3}


def test_cutting_then_repeating_gives_the_same_bytes(run: Run) -> None:
    def train(first: int) -> None:
        for step in range(first, 9):
            run.append_metrics({"step": step, "loss": step / 7})
            run.append_snapshot(
                "depth_weights", step, fixed={"labels": ["a", "b"]}, mean=[step / 7, math.nan]
            )

    train(0)
    records = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    assert run.cut_after(4)
    assert run.metrics_path.read_bytes() != records["metrics.jsonl"]
    train(5)
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == records
    assert run.cut_after(-1)
    assert names(run.directory) == {"config.yaml", "metrics.jsonl"}
    train(0)
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == records


def test_cutting_with_nothing_there(run: Run) -> None:
    assert run.cut_after(10) is True
    assert names(run.directory) == {"config.yaml"}


def break_line(run: Run) -> None:
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    run.metrics_path.write_bytes(lines[0] + b"\x00" + lines[1][1:] + lines[2])


def break_snapshots(run: Run) -> None:
    path = run.directory / "depth_weights.npz"
    path.write_bytes(path.read_bytes()[:-30])


def lose_a_row(run: Run) -> None:
    run.metrics_path.write_bytes(b"".join(run.metrics_path.read_bytes().splitlines(keepends=True)[:2]))


def lose_snapshots(run: Run) -> None:
    (run.directory / "depth_weights.npz").unlink()


@pytest.mark.parametrize("damage", [break_line, break_snapshots, lose_a_row, lose_snapshots])
def test_records_that_do_not_reach_the_checkpoint_start_again(
    run: Run, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2, 3):
        run.append_metrics({"step": step})
        run.append_timings({"step": step})
        run.append_snapshot("depth_weights", step, mean=[1.0])
    counts = run.counts()
    assert counts == {"metrics.jsonl": 3, "depth_weights.npz": 3}
    run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"weights"))
    damage(run)
    assert run.cut_after(3, counts) is False
    assert not run.checkpoint.exists()
    assert (run.checkpoint.parent / "last.ckpt.corrupt-1").read_bytes() == b"weights"
    assert run.read_metrics() == run.read_timings() == []
    assert run.read_arrays("depth_weights") is None
    assert (run.directory / "metrics.jsonl.corrupt-1").exists()
    assert "starts again from nothing" in caplog.text


def test_damaged_timings_cost_only_timings(run: Run) -> None:
    run.append_metrics({"step": 1})
    run.timings_path.write_bytes(b"what\n")
    assert run.cut_after(1, run.counts()) is True
    assert run.read_metrics() == [{"step": 1}]
    assert names(run.directory) == {"config.yaml", "metrics.jsonl", "timings.jsonl.corrupt-1"}


def test_a_forced_rerun_keeps_the_earlier_result(run: Run) -> None:
    for number in (1, 2):
        run.append_metrics({"step": number})
        run.append_timings({"step": 1})
        run.write_json("final", {"val_loss": number})
        run.write_arrays("val_losses", loss_sum=[1.0])
        run.checkpoint.parent.mkdir()
        run.checkpoint.write_bytes(b"weights")
        run.set_status("done", step=1)
        aside = run.supersede()
        assert aside == run.directory / f"superseded-{number}"
        assert Run(aside).read_json("final") == {"val_loss": number}
        assert Run(aside).read_metrics() == [{"step": number}]
        assert Run(aside).status.state == "done"
        assert Run(aside).checkpoint.read_bytes() == b"weights"
        assert run.status == Status()
        assert run.read_metrics() == []
        assert not run.checkpoint.exists()
    assert run.config["seed"] == 3


# Whole records


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


# Snapshots


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


# A disk that is full


def test_a_full_disk_leaves_the_earlier_file_and_no_temporary(run: Run) -> None:
    run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"earlier"))

    def write_to_full_disk(path: Path) -> None:
        path.write_bytes(b"half")
        with open("/dev/full", "wb", buffering=0) as full:
            full.write(b"rest")

    with pytest.raises(DataError, match=r"No space left on device.*earlier record is intact"):
        run.replace_atomically(run.checkpoint, write_to_full_disk)
    assert names(run.checkpoint.parent) == {"last.ckpt"}
    assert run.checkpoint.read_bytes() == b"earlier"


def test_a_writer_that_fails_leaves_the_earlier_file(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_bytes(b"earlier")

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("not serialisable")

    with pytest.raises(RuntimeError, match="not serialisable"):
        replace_atomically(target, fail)
    assert names(tmp_path) == {"a"}
    assert target.read_bytes() == b"earlier"


FULL_DISK = """
import resource, sys
import numpy as np
from pathlib import Path
from repro.errors import DataError
from repro.runs import Run

run = Run(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file may grow past this
noise = np.random.default_rng(0).normal(size=2000)
writes = [
    lambda: run.append_metrics({"step": 3, "text": "x" * 5000}),
    lambda: run.write_json("final", {"text": "x" * 5000}),
    lambda: run.write_arrays("val_losses", loss_sum=noise),
    lambda: run.append_snapshot("depth_weights", 2, mean=noise),
]
for write in writes:
    try:
        write()
    except DataError as error:
        assert len(str(error).splitlines()) == 1
        print("refused", Path(str(error).split(":")[0]).name)
run.set_status("failed", message="disk full")
"""


def test_every_record_survives_a_file_system_that_refuses(run: Run) -> None:
    run.append_metrics({"step": 1, "text": "y" * 3000})
    run.append_metrics({"step": 2})
    run.write_json("final", {"val_loss": 2.5})
    run.write_arrays("val_losses", loss_sum=[1.0])
    run.append_snapshot("depth_weights", 1, mean=np.zeros(2000))
    before = {path.name: path.read_bytes() for path in run.directory.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(run.directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "refused metrics.jsonl",
        "refused final.json",
        "refused val_losses.npz",
        "refused depth_weights.npz",
    ]
    assert run.status.state == "failed"
    run.status_path.unlink()
    assert {path.name: path.read_bytes() for path in run.directory.iterdir()} == before


# Meta


def test_the_host_is_described_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "tok-123456")
    monkeypatch.setattr("platform.node", lambda: "the-host-name")
    host = host_description()
    assert set(host) == {"cpu", "cores", "usable_cores", "memory_bytes", "os", "python", "versions"}
    assert host["memory_bytes"] > 10**8
    assert 1 <= host["usable_cores"] <= host["cores"]
    assert host["python"] == ".".join(map(str, sys.version_info[:3]))
    assert host["versions"]["numpy"] == np.__version__
    text = json.dumps(host)
    assert "tok-123456" not in text
    assert "the-host-name" not in text


def test_the_commit_is_that_of_this_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as inside a hook of another repository
    state = git_state()
    assert set(state) == {"sha", "dirty"}
    if (ROOT / ".git").exists():
        assert len(state["sha"]) == 40
        assert isinstance(state["dirty"], bool)
    monkeypatch.setattr("repro.runs.meta._REPOSITORY", tmp_path)
    assert git_state() == {"sha": None, "dirty": None}


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["/home/me/venv/bin/python", "-m", "repro.train", "arm=full"], "python -m repro.train arm=full"),
        (["data.path=/home/me/books/", "data.files=[/a/b,~/c/d]"], "data.path=books data.files=[b,d]"),
        (["logger.entity=me", "+logger.mode=online", "seed=1"], "seed=1"),
        (["data.token=hf_abc", "wandb.api_key=abc", "budget.tokens=5"], "budget.tokens=5"),
        (["scale=paper/48b", "data.dataset=org/name"], "scale=paper/48b data.dataset=org/name"),
    ],
)
def test_a_command_is_recorded_without_places_and_secrets(words: list[str], recorded: str) -> None:
    assert command_line(words) == recorded
