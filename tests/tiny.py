"""Runs small enough for tests: four sublayers of width 16 on a few hundred generated tokens.

`train` calls the entry in this process. `Zygote` starts real processes that can be killed: it imports the
entry once and forks, so that a process costs no imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from repro.model.lit import LitDecoder
from repro.runs import Run
from repro.train.__main__ import main

ROOT = Path(__file__).resolve().parents[1]
ARMS = sorted(path.stem for path in (ROOT / "conf" / "arm").glob("*.yaml"))
STEPS = 8
TINY = (
    "scale=smoke",
    "model.width=16",
    "model.num_transformer_blocks=2",
    "model.num_heads=2",
    "model.mlp_width=24",
    "data.train_tokens=4000",
    "data.val_tokens=600",
    "budget.context=16",
    "budget.batch_size=4",
    f"budget.tokens={STEPS * 64}",
    "evaluation.num_snapshots=2",
    "evaluation.subset_tokens=64",
    "evaluation.log_every=1",
    "runtime.progress_seconds=null",
)
#: what must not depend on how often a run was interrupted
RECORDS = ("metrics.jsonl", "final.json", "val_losses.npz", "depth_weights.npz", "depth_norms.npz")


def train(root: Path, *overrides: str, multirun: bool = False, base: Iterable[str] = TINY) -> int:
    """Exit code of `python -m repro.train` with the tiny settings, run in this process."""
    return main([*(["-m"] if multirun else []), *base, f"paths.root={root}", *overrides])


def runs(root: Path) -> list[Run]:
    """All runs under a root, by arm and id."""
    return [Run(path.parent) for path in sorted(root.glob("runs/*/*/*/config.yaml"))]


def only_run(root: Path) -> Run:
    (run,) = runs(root)
    return run


def records(run: Run) -> dict[str, bytes]:
    """The bytes of every record that a rerun must reproduce; one that the arm has not is left out."""
    return {name: (run.directory / name).read_bytes() for name in RECORDS if (run.directory / name).exists()}


def json_of(run: Run, name: str) -> dict[str, Any]:
    """A JSON record that must be there."""
    value = run.read_json(name)
    assert isinstance(value, dict), f"{name} of {run} is {value}"
    return value


def arrays_of(run: Run, name: str) -> dict[str, Any]:
    """Arrays that must be there."""
    value = run.read_arrays(name)
    assert value is not None, f"{name} of {run} is missing"
    return value


def series(root: Path, key: str, kind: str = "train") -> list[Any]:
    """A column of the only run's metrics, over its rows of one kind."""
    return [row[key] for row in only_run(root).read_metrics() if row["kind"] == kind]


def tiny_config(*overrides: str) -> DictConfig:
    """The composed configuration of a tiny run."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=[*TINY, *overrides])


def with_arm(config: DictConfig, name: str) -> DictConfig:
    """The same configuration with another arm."""
    config = config.copy()
    OmegaConf.update(
        config, "arm", OmegaConf.load(ROOT / "conf" / "arm" / f"{name}.yaml"), merge=False, force_add=True
    )
    return config


SERVER = """
import json, os, resource, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from repro.train import job, training  # everything heavy, before the first fork
from repro.train.__main__ import main

for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
    else:
        sys.stdout.flush()
        answer = os.fork()
        if answer == 0:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            if request["file_bytes"]:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_bytes"],) * 2)
            code = main(request["arguments"])
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    print(answer, flush=True)
"""


class Process:
    """A training process; `wait` gives its exit code (negative: the signal that ended it)."""

    def __init__(self, zygote: Zygote, pid: int, out: Path, err: Path) -> None:
        self._zygote, self.pid, self._out, self._err = zygote, pid, out, err

    def wait(self) -> int:
        return self._zygote.ask({"wait": self.pid})

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()


class Zygote:
    """Starts training processes by forking one that has everything imported and nothing begun."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._count = directory, 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, root: Path, *overrides: str, file_bytes: int = 0) -> Process:
        """A process with the tiny settings; file_bytes: no file of it may grow beyond (0: no limit)."""
        self._count += 1
        out, err = (self._directory / f"{self._count}.{name}" for name in ("out", "err"))
        arguments = [*TINY, f"paths.root={root}", *overrides]
        pid = self.ask({"arguments": arguments, "out": str(out), "err": str(err), "file_bytes": file_bytes})
        return Process(self, pid, out, err)

    def ask(self, request: dict[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._server.kill()
        self._server.communicate()


class Stop(RuntimeError):
    """Stands for whatever ends a process."""


def stop_before(monkeypatch: pytest.MonkeyPatch, step: int, micro_batch: int = 0) -> None:
    """Fail in the forward pass of a micro-batch of a step."""
    forward = LitDecoder.training_step

    def training_step(self: LitDecoder, batch: Any, batch_idx: int) -> Any:
        if self.global_step == step and batch_idx % self.trainer.accumulate_grad_batches == micro_batch:
            raise Stop(f"before step {step}")
        return forward(self, batch, batch_idx)

    monkeypatch.setattr(LitDecoder, "training_step", training_step)
