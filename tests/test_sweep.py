"""Sweeps: one verdict over all runs, every run once, and the same weights whoever launches them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

import repro.train.job
import repro.train.training
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.runs import load_runs
from repro.train import resources, sweep
from repro.train.execute import Outcome
from repro.train.process import use_threads
from tests.tiny import ROOT, TINY, json_of, runs, train

Capture = pytest.CaptureFixture[str]
THREE = "arm=prenorm,full,block_s2"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep sets environment variables for its workers; none may stay."""
    for name in (*resources.THREAD_VARIABLES, resources.SLOTS):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    monkeypatch.delenv(resources.SLOTS)


def digests(root: Path) -> dict[str, str]:
    return {run.config["arm"]["name"]: json_of(run, "final")["weights_sha256"] for run in runs(root)}


def fail_for(monkeypatch: pytest.MonkeyPatch, arm: str) -> None:
    """The arm fails when its model is built for training: not the user's fault, and not foreseen."""

    def build(config: DictConfig, device: str = "cpu") -> Decoder:
        if device == "cpu" and config.arm.name == arm:
            raise RuntimeError(f"{arm} is broken\nin several lines")
        return build_decoder(config, device)

    monkeypatch.setattr(repro.train.training, "build_decoder", build)


def test_one_failing_arm_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with monkeypatch.context() as patch:
        fail_for(patch, "full")
        assert train(tmp_path, THREE, multirun=True) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == [
        "sweep: 3 runs: 2 done, 1 failed",
        "failed: full seed 1: RuntimeError: full is broken",
    ]
    assert any(line.startswith("[1/3] prenorm seed 1 | done") for line in out)
    assert any(line.startswith("[3/3] block_s2 seed 1 | done") for line in out)
    status = {run.config["arm"]["name"]: run.status.state for run in runs(tmp_path)}
    assert status == {"prenorm": "done", "full": "failed", "block_s2": "done"}

    # The same command again does what is left, and then nothing.
    assert train(tmp_path, THREE, multirun=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sweep: 3 runs: 2 cached, 1 done"
    monkeypatch.setattr(repro.train.training, "train", lambda *_: pytest.fail("trained again"))
    assert train(tmp_path, THREE, multirun=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sweep: 3 runs: 3 cached"
    assert load_runs(tmp_path / "runs")["status"].tolist() == ["done"] * 3
    assert not list((tmp_path / "runs" / ".sweeps").iterdir())
    assert sweep.LEDGER not in os.environ
    assert sweep.JOBS not in os.environ


def test_a_failure_before_a_run_has_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Nothing can be recorded, and still the others are trained."""
    execute = repro.train.job.execute

    def broken(config: DictConfig, say: Any) -> Outcome:
        if config.arm.name == "prenorm":
            raise KeyError("nobody foresaw this")
        return execute(config, say)

    monkeypatch.setattr(repro.train.job, "execute", broken)
    assert train(tmp_path, THREE, multirun=True) == 1
    out = capsys.readouterr().out
    assert "sweep: 3 runs: 2 done, 1 failed" in out
    assert "failed: prenorm seed 1: KeyError: 'nobody foresaw this'" in out
    assert set(digests(tmp_path)) == {"full", "block_s2"}


def test_data_that_vanishes_during_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The second arm finds a truncated shard."""
    execute = repro.train.job.execute

    def truncating(config: DictConfig, say: Any) -> Outcome:
        outcome = execute(config, say)
        (tokens,) = tmp_path.glob("data/shards/*/train.tokens")
        tokens.write_bytes(tokens.read_bytes()[:-2])
        return outcome

    monkeypatch.setattr(repro.train.job, "execute", truncating)
    assert train(tmp_path, THREE, multirun=True) == 1
    out = capsys.readouterr().out
    assert "1 done, 2 refused" in out
    assert "refused: full seed 1, block_s2 seed 1: " in out
    assert "train.tokens" in out.splitlines()[-1]
    assert list(digests(tmp_path)) == ["prenorm"]


def test_a_refused_setting_of_one_job_is_named(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=prenorm", "optim.lr=1e-3,-1", multirun=True) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == [
        "sweep: 2 runs: 1 done, 1 refused",
        "refused: prenorm seed 1: optim.lr=-1: a positive number",
    ]
    assert len(runs(tmp_path)) == 1


def test_a_sweep_that_is_refused_whole(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=prenorm,full", "runtime.threads=0", multirun=True) == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("refused: prenorm seed 1, full seed 1: runtime.threads=0: auto, or")
    assert runs(tmp_path) == []


def test_no_job_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, "arm=glob(zz*)", multirun=True) == 2
    assert capsys.readouterr().err == (
        "error: arm='(no match)': the sweep is empty: no value matches, no job to run\n"
    )
    assert runs(tmp_path) == []


def test_diverged_runs_are_results(tmp_path: Path, capsys: Capture) -> None:
    overrides = ("arm=prenorm", "optim.lr=1e-3,1e30", "budget.grad_clip=0")
    assert train(tmp_path, *overrides, multirun=True) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "sweep: 2 runs: 1 diverged, 1 done"


def test_an_interrupted_sweep_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(*_: Any) -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(repro.train.job, "execute", interrupted)
    assert train(tmp_path, THREE, multirun=True) == 130
    assert capsys.readouterr().err == "interrupted; start the same command again to go on\n"
    assert sweep.LEDGER not in os.environ


def test_killed_workers_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """A launcher that loses its pool after one job."""
    execute = repro.train.job.execute
    done: list[str] = []

    def dying(config: DictConfig, say: Any) -> Outcome:
        if done:
            raise SystemExit  # stands for a process that is gone
        done.append(config.arm.name)
        return execute(config, say)

    launch = sweep.BasicSweeper.sweep

    def losing(self: Any, arguments: list[str]) -> Any:
        try:
            return launch(self, arguments)
        except SystemExit:
            raise BrokenProcessPool("a child was killed") from None

    monkeypatch.setattr(repro.train.job, "execute", dying)
    monkeypatch.setattr(sweep.BasicSweeper, "sweep", losing)
    assert train(tmp_path, THREE, multirun=True) == 1
    told = capsys.readouterr()
    assert "a worker of the sweep was killed; start the same command again" in told.err
    assert "sweep: 3 runs: 1 done" in told.out
    assert "failed: 2 runs ended without a word" in told.out


def test_table_4_trains_the_papers_rows_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    seen: list[str] = []

    def note(config: DictConfig, say: Any) -> Outcome:
        seen.append(config.arm.name)
        return Outcome("done", tmp_path)

    monkeypatch.setattr(repro.train.job, "execute", note)
    assert train(tmp_path, "experiment=table4", multirun=True) == 0
    assert seen == [
        "prenorm",
        "denseformer",
        "mhc",
        "full",
        "full_input_query",
        "full_static",
        "full_sigmoid",
        "full_no_key_norm",
        "window_1p8",
        "block_s4",
        "block_s4_h16",
        "block_s4_no_key_norm",
    ]
    out = capsys.readouterr().out
    assert "[ 1/12] prenorm seed 1" in out
    assert out.splitlines()[-1] == "sweep: 12 runs: 12 done"
    seen.clear()
    assert train(tmp_path, "experiment=lr", "seed=1,2", multirun=True) == 0
    assert len(seen) % 2 == 0
    assert set(seen) == {"prenorm"}


# Other launchers, other places


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Weights of three arms trained one after another in this process."""
    root = tmp_path_factory.mktemp("basic")
    assert train(root, THREE, multirun=True) == 0
    return digests(root)


def entry(root: Path, *overrides: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "repro.train", *overrides, *TINY, f"paths.root={root}"],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_joblib_with_two_workers_from_another_directory(tmp_path: Path, basic: dict[str, str]) -> None:
    """As a user starts it: a process of its own, which starts two workers of one thread each."""
    here = tmp_path / "here"
    here.mkdir()
    done = entry(
        tmp_path / "root",
        "-m",
        THREE,
        "hydra/launcher=joblib",
        cwd=here,
        REPRO_WORKERS="2",
        OMP_NUM_THREADS="",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "sweep: 3 runs: 3 done"
    assert digests(tmp_path / "root") == basic
    assert {json_of(run, "meta")["threads"] for run in runs(tmp_path / "root")} == {1}
    assert not list(here.iterdir())  # everything went under paths.root


def test_submitit_local(tmp_path: Path, basic: dict[str, str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    here = tmp_path / "here"
    here.mkdir()
    done = entry(tmp_path / "root", "-m", "arm=full", "hydra/launcher=submitit_local", cwd=here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "sweep: 1 runs: 1 done"
    assert digests(tmp_path / "root") == {"full": basic["full"]}
    assert not list(here.iterdir())


def test_slots_keep_a_machines_runs_from_sharing_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As many at once as there are workers; a place is free again when its holder leaves."""
    monkeypatch.setenv(resources.WORKERS, "2")
    monkeypatch.setattr(resources.tempfile, "gettempdir", lambda: str(tmp_path))
    with resources.worker_slot() as first, resources.worker_slot() as second:
        assert {first, second} == {0, 1}
    with resources.worker_slot() as again:
        assert again == 0


def test_threads_and_workers_come_from_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "cores", lambda: 6)
    monkeypatch.delenv(resources.WORKERS, raising=False)
    assert resources.workers() == 6
    monkeypatch.setenv(resources.WORKERS, "3")
    assert resources.workers() == 3
    resources.limit_threads(1)
    assert {os.environ[name] for name in resources.THREAD_VARIABLES} == {"1"}
    before = torch.get_num_threads()
    try:
        for setting, variable, expected in ((4, "1", 4), ("auto", "1", 1), ("auto", None, 6), (2, None, 2)):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if variable:
                monkeypatch.setenv("OMP_NUM_THREADS", variable)
            use_threads(setting)
            assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)


def test_a_sweep_whose_runs_are_there_needs_no_lightning(tmp_path: Path) -> None:
    """Lightning takes seconds to import; what is cached is told without it."""
    assert train(tmp_path, "arm=prenorm") == 0
    program = (
        "import sys; from repro.train.__main__ import main; "
        "code = main(sys.argv[1:]); assert 'lightning' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", program, *TINY, f"paths.root={tmp_path}", "arm=prenorm"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "done: already there" in result.stdout
