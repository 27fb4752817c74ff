"""Rows of metrics and timings, and going back to how they were at a checkpoint."""

import math
from typing import Any

import numpy as np
import pytest

from repro.errors import DataError
from repro.runs import DamagedRecord, Run, Status
from tests.run_cases import names, opened_run

run = opened_run


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


def test_a_file_system_that_refuses_to_read_is_no_damage(run: Run) -> None:
    run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"weights"))
    run.append_snapshot("depth_weights", 1, mean=[1.0])
    run.metrics_path.mkdir()  # reading it fails as on a broken mount
    with pytest.raises(DataError, match=r"metrics\.jsonl: cannot be read") as caught:
        run.cut_after(1)
    assert not isinstance(caught.value, DamagedRecord)
    assert run.checkpoint.read_bytes() == b"weights"
    assert names(run.directory) == {"config.yaml", "metrics.jsonl", "depth_weights.npz", "checkpoints"}


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


def test_what_a_killed_process_was_writing_is_no_record(run: Run) -> None:
    """A half-written temporary file beside whole records: nothing is damaged, nothing starts again."""
    run.append_metrics({"step": 0, "loss": 1.0})
    run.append_snapshot("depth_weights", 0, mean=[1.0])
    run.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    run.checkpoint.write_bytes(b"whole")
    (run.directory / ".tmp-0123456789ab-depth_weights.npz").write_bytes(b"")
    counts = run.counts()
    assert counts == {"metrics.jsonl": 1, "depth_weights.npz": 1}
    assert run.cut_after(0, counts)
    assert run.checkpoint.read_bytes() == b"whole"
    assert not list(run.directory.glob("*.corrupt-*"))
