"""Interrupted and resumed equals uninterrupted, bit for bit; finished work is not done again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import repro.train.training
from repro.model.lit import LitDecoder
from repro.runs import Run
from tests.tiny import RECORDS, STEPS, Process, Zygote, only_run, records, stop_before, train

LONG = 60  # steps of a run that is to be hit in its middle
LONG_RUN = ("arm=block_s2", f"budget.tokens={64 * LONG}", "runtime.checkpoint_seconds=0")


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("elsewhere")) as started:
        yield started


@pytest.fixture(scope="module")
def uninterrupted(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Records of the long run."""
    root = tmp_path_factory.mktemp("uninterrupted")
    assert zygote.start(root, *LONG_RUN).wait() == 0
    return records(only_run(root))


def until(condition: Callable[[], Any], process: Process, seconds: float = 60) -> None:
    """Wait for a condition; the process's own words tell why it never came."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, process.out + process.err
        time.sleep(0.001)


def last_step(root: Path) -> int:
    """Last whole training row of the only run's metrics (0 for none)."""
    for path in root.glob("runs/*/*/*/metrics.jsonl"):
        rows = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return max((row["step"] for row in rows if row["kind"] == "train"), default=0)
    return 0


def hit(zygote: Zygote, root: Path, step: int, number: signal.Signals) -> Process:
    """Send a signal to a process of the long run once it has written the row of `step`."""
    process = zygote.start(root, *LONG_RUN)
    until(lambda: last_step(root) >= step, process)
    os.kill(process.pid, number)
    return process


def test_killed_three_times_equals_uninterrupted(
    zygote: Zygote, uninterrupted: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = sorted(random.sample(range(1, LONG - 2), 3))
    for step in steps:
        assert hit(zygote, tmp_path, step, signal.SIGKILL).wait() == -signal.SIGKILL
        assert only_run(tmp_path).status.state == "running"  # nobody could say otherwise
    last = zygote.start(tmp_path, *LONG_RUN)
    assert last.wait() == 0
    with capsys.disabled():
        print(f"\nkilled at steps {steps}:{last.out.splitlines()[1].rpartition('|')[2]}")
    assert "going on from step" in last.out
    found = records(only_run(tmp_path))
    assert set(found) == set(uninterrupted) == set(RECORDS)
    for name, content in found.items():
        assert content == uninterrupted[name], f"{name} differs after kills at {steps}"
    assert last.err == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_told_to_stop(
    zygote: Zygote, uninterrupted: dict[str, bytes], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = hit(zygote, tmp_path, 20, number)
    assert process.wait() == code
    assert process.err == "interrupted; start the same command again to go on\n"
    run = only_run(tmp_path)
    assert run.status.state == "failed"
    assert run.status.message == "interrupted"
    again = zygote.start(tmp_path, *LONG_RUN)
    assert again.wait() == 0
    assert "going on from step" in again.out
    assert records(run) == uninterrupted


def test_two_processes_on_one_run_do_it_once(
    zygote: Zygote, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    first = zygote.start(tmp_path, *LONG_RUN)
    until(lambda: last_step(tmp_path) >= 3, first)
    second = zygote.start(tmp_path, *LONG_RUN)
    assert [first.wait(), second.wait()] == [0, 0]
    assert "another process trains this run" in second.out
    assert "done: already there" in second.out
    assert "another process" not in first.out
    assert "done: validation" in first.out
    assert records(only_run(tmp_path)) == uninterrupted


def test_a_full_disk_stops_a_run_and_leaves_its_records(
    zygote: Zygote, uninterrupted: dict[str, bytes], tmp_path: Path
) -> None:
    """No file may grow beyond 50 kB, which a checkpoint does; given space, the run is finished."""
    process = zygote.start(tmp_path, *LONG_RUN, file_bytes=50_000)
    assert process.wait() == 2
    assert len(process.err.splitlines()) == 1, process.err
    assert "cannot be written (File too large); the earlier record is intact" in process.err
    run = only_run(tmp_path)
    assert run.status.state == "failed"
    assert not list(run.directory.rglob(".tmp-*"))
    again = zygote.start(tmp_path, *LONG_RUN)
    assert again.wait() == 0
    assert records(run) == uninterrupted


# Interruptions at chosen places, in this process


VARIANTS = {
    "accumulate": ("arm=block_s2", "runtime.accumulate=2"),
    "muon": ("arm=full", "optim=muon"),
    "wsd, mhc": ("arm=mhc", "schedule=wsd"),
    "prenorm": ("arm=prenorm",),
    "bf16": ("arm=full_input_query", "precision=bf16-mixed"),
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """Records of each variant, uninterrupted."""
    found = {}
    for name, overrides in VARIANTS.items():
        root = tmp_path_factory.mktemp("variant")
        assert train(root, *overrides) == 0
        found[name] = records(only_run(root))
    return found


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seconds", [0, 1e6], ids=["checkpoints", "no checkpoint"])
def test_a_failure_at_any_step_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expected: dict[str, dict[str, bytes]],
    variant: str,
    seconds: float,
) -> None:
    """At the first, a middle (in the second micro-batch where there are two) and the last step."""
    overrides = (*VARIANTS[variant], f"runtime.checkpoint_seconds={seconds}")
    for step in (0, 5, STEPS - 1):
        with monkeypatch.context() as patch:
            stop_before(patch, step, micro_batch=int(variant == "accumulate"))
            assert train(tmp_path, *overrides) == 1
        run = only_run(tmp_path)
        assert run.status.state == "failed"
        assert run.status.message == f"Stop: before step {step}"
        assert run.checkpoint.exists() == (seconds == 0 and step > 0)
    capsys.readouterr()
    assert train(tmp_path, *overrides) == 0
    assert ("going on from step 7" in capsys.readouterr().out) == (seconds == 0)
    assert records(only_run(tmp_path)) == expected[variant]


def test_a_failure_in_the_last_validation_repeats_that_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expected: dict[str, dict[str, bytes]],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(repro.train.training, "write_results", lambda *_: 1 / 0)
        assert train(tmp_path, "arm=prenorm") == 1
    error = capsys.readouterr().err
    assert "ZeroDivisionError" in error.splitlines()[-1]  # a fault of ours is told with its traceback
    monkeypatch.setattr(LitDecoder, "training_step", lambda *_: pytest.fail("trained again"))
    assert train(tmp_path, "arm=prenorm") == 0
    assert f"going on from step {STEPS}" in capsys.readouterr().out
    assert records(only_run(tmp_path)) == expected["prenorm"]


def test_a_finished_run_is_returned_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path, "arm=full") == 0
    before = {p: p.stat().st_mtime_ns for p in only_run(tmp_path).directory.rglob("*") if p.name != "lock"}
    monkeypatch.setattr(repro.train.training, "train", lambda *_: pytest.fail("trained again"))
    capsys.readouterr()
    assert train(tmp_path, "arm=full", "trainer=gpu", "runtime.compile=true") == 0
    assert "done: already there" in capsys.readouterr().out
    after = {p: p.stat().st_mtime_ns for p in only_run(tmp_path).directory.rglob("*") if p.name != "lock"}
    assert after == before


def test_force_trains_again_and_keeps_the_earlier_result(
    tmp_path: Path, expected: dict[str, dict[str, bytes]]
) -> None:
    assert train(tmp_path, "arm=prenorm") == 0
    run = only_run(tmp_path)
    assert train(tmp_path, "arm=prenorm", "runtime.force=true") == 0
    earlier = run.directory / "superseded-1"
    assert records(run) == records(Run(earlier)) == expected["prenorm"]
    assert Run(earlier).checkpoint.exists()
    assert train(tmp_path, "arm=prenorm", "runtime.force=true") == 0
    assert (run.directory / "superseded-2" / "final.json").exists()
