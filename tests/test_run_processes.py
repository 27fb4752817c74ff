"""Several processes on one run: one lock, and records that survive SIGKILL at any instant."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repro.runs import Run, RunBusy, Status, load_runs
from repro.runs.arrays import read_npz
from repro.runs.jsonl import read_rows
from repro.runs.reading import read_config, read_json, read_status
from tests.test_identity import CONFIG

ROOT = Path(__file__).resolve().parents[1]
FORK = multiprocessing.get_context("fork")

# Does the work of a run unless it is done, as training does; says what it saw.
WORK = """
import json, sys, time
from pathlib import Path
from repro.runs import Run, Status

config, root, steps = json.loads(sys.argv[1]), Path(sys.argv[2]), 20
saw = []
run = Run.open(config, root)
print("open", flush=True)
sys.stdin.readline()
with run.lock(on_wait=lambda status: saw.append(status.state)):
    if run.status.finished:
        saw.append("done before")
    else:
        run.set_status("running", step=0)
        for step in range(steps):
            run.append_metrics({"step": step})
            time.sleep(0.02)
        run.set_status("done", step=steps)
        saw.append("trained")
print(json.dumps(saw), flush=True)
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_processes_on_one_id_do_the_work_once(tmp_path: Path) -> None:
    workers = [start(WORK, json.dumps(CONFIG), str(tmp_path)) for _ in range(2)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "open\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        outputs = [worker.communicate(timeout=60) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    saw = sorted((json.loads(out) for out, _ in outputs), key=len)
    assert saw[0] == ["trained"], outputs
    assert saw[1] in (["new", "done before"], ["running", "done before"])
    run = Run.open(CONFIG, tmp_path)
    assert [row["step"] for row in run.read_metrics()] == list(range(20))
    assert run.status.state == "done"


def hold(run: Run, ready: Any) -> None:
    with run.lock():
        run.set_status("running", step=5)
        ready.set()
        time.sleep(60)


def test_a_taken_lock_is_reported_and_dies_with_its_holder(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    ready = FORK.Event()
    holder = FORK.Process(target=hold, args=(run, ready), daemon=True)
    holder.start()
    assert ready.wait(20)
    saw: list[Status] = []
    try:
        for options in ({"blocking": False}, {"timeout": 0.2}):
            busy = pytest.raises(RunBusy, match=r"another process trains this run \(running, step 5\)")
            with busy, run.lock(on_wait=saw.append, **options):
                pytest.fail("two inside at a time")
        assert [status.step for status in saw] == [5, 5]
        with Run(tmp_path / "quick" / "full" / "0123456789ab").lock(blocking=False):
            pass  # another run is free
    finally:
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
    with run.lock(blocking=False):
        assert run.status.state == "running"
    with run.lock(blocking=False):
        pass  # released at the end of the block


def test_an_error_inside_releases_the_lock(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    with pytest.raises(KeyError), run.lock():
        raise KeyError
    with run.lock(blocking=False):
        pass


def write_for_ever(run: Run, first: int, ready: Any) -> None:
    step = first
    while True:
        run.append_metrics({"step": step, "text": "x" * 300})
        run.append_snapshot("depth_weights", step % 5, mean=[float(step)] * 50)
        run.replace_atomically(run.checkpoint, lambda path, step=step: path.write_text(f"{step}\n" * 5000))
        run.write_json("final", {"step": step, "text": "y" * 3000})
        run.set_status("running", step=step)
        step += 1
        ready.set()


def test_records_are_whole_after_sigkill_at_any_instant(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    dice = random.Random(0)
    first = 0
    for _ in range(12):
        ready = FORK.Event()
        writer = FORK.Process(target=write_for_ever, args=(run, first, ready), daemon=True)
        writer.start()
        assert ready.wait(20)
        time.sleep(dice.uniform(0, 0.05))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        status = read_status(run.status_path)
        rows = read_rows(run.metrics_path)
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert status.step in (len(rows) - 1, len(rows) - 2)
        assert read_json(run.directory / "final.json")["text"] == "y" * 3000
        assert set(read_npz(run.directory / "depth_weights.npz")) == {"steps", "fixed", "mean"}
        lines = set(run.checkpoint.read_text().splitlines())
        assert len(lines) == 1
        assert read_config(run.config_path)["seed"] == 3
        assert run.cut_after(int(lines.pop()))
        first = run.counts()["metrics.jsonl"]
    assert not list(run.directory.glob("*.corrupt-*"))


def die_halfway(write: Callable[[], object]) -> int | None:
    writer = FORK.Process(target=write, daemon=True)
    writer.start()
    writer.join(20)
    return writer.exitcode


def test_killed_between_writing_and_renaming(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    run.replace_atomically(run.checkpoint, lambda path: path.write_bytes(b"earlier"))

    def kill_self(path: Path) -> None:
        path.write_bytes(b"ha")
        os.kill(os.getpid(), signal.SIGKILL)

    status = run.directory / "status.json"
    assert die_halfway(lambda: run.replace_atomically(run.checkpoint, kill_self)) == -signal.SIGKILL
    assert die_halfway(lambda: run.replace_atomically(status, kill_self)) == -signal.SIGKILL
    assert run.checkpoint.read_bytes() == b"earlier"
    assert run.status.state == "new"
    (leftover,) = run.directory.glob(".tmp-*")
    (other,) = run.checkpoint.parent.glob(".tmp-*")
    assert list(load_runs(tmp_path)["status"]) == ["new"]
    with run.lock():
        assert leftover.exists()  # young: it may belong to a living writer
    for path in (leftover, other):
        os.utime(path, (time.time() - 3600,) * 2)
    with run.lock():
        assert not leftover.exists()
        assert not other.exists()
    assert run.checkpoint.read_bytes() == b"earlier"


def test_a_line_cut_by_sigkill_is_dropped_on_resuming(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    for step in range(3):
        run.append_metrics({"step": step, "loss": 1.0})
    whole = run.metrics_path.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for missing in range(1, last):
        run.metrics_path.write_bytes(whole[:-missing])
        assert run.cut_after(2, {"metrics.jsonl": 2})
        assert [row["step"] for row in run.read_metrics()] == [0, 1]
