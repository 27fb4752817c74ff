"""Outside: one process per implementation, whatever it does.

An implementation that is not installed, raises at import, dies or hangs is an outcome, and the lines that it
wrote before are kept.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from repro.conformance.adapter import Adapter

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """What one implementation did: its lines by kind, and why there are no more of them."""

    adapter: Adapter
    about: dict[str, Any] = field(default_factory=dict)
    mixes: list[dict[str, Any]] = field(default_factory=list)
    walks: list[dict[str, Any]] = field(default_factory=list)
    stopped: str = ""  # empty where it went through all cases


def adapters(modules: Sequence[str]) -> list[tuple[str, Adapter]]:
    """Module and adapter of every implementation, in the order of the table."""
    return [(name, adapter) for name in modules for adapter in importlib.import_module(name).ADAPTERS]


def run(module: str, adapter: Adapter, python: str, timeout: float) -> Outcome:
    """Every case of one implementation in a new process of `python`, for at most `timeout` seconds."""
    env = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
    if adapter.interpreter and not torch.cuda.is_available():
        env["TRITON_INTERPRET"] = "1"
    else:
        env.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as folder:
        lines, errors = Path(folder) / "lines.jsonl", Path(folder) / "errors.txt"
        command = [python, "-m", "repro.conformance.worker", module, adapter.name, str(lines)]
        with errors.open("wb") as sink:
            process = subprocess.Popen(
                command, cwd=folder, env=env, stdout=sink, stderr=sink, start_new_session=True
            )
            try:
                code: int | None = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end_group(process)
        written = lines.read_text(encoding="utf-8") if lines.exists() else ""
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return outcome_of(adapter, written, code, said, timeout)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End what is left of the process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def outcome_of(adapter: Adapter, written: str, code: int | None, said: list[str], timeout: float) -> Outcome:
    """Outcome from what a process wrote, its exit code (None where it was ended) and its last words."""
    entries = [json.loads(line) for line in written.splitlines() if line.endswith("}")]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_kind.setdefault(entry["kind"], []).append(entry)
    done = len(by_kind.get("mix", [])) + len(by_kind.get("walk", []))
    if "missing" in by_kind:
        stopped = f"not installed: {by_kind['missing'][0]['package']}"
    elif code is None:
        stopped = f"ended after {timeout:g} s, with {done} cases done"
    elif code < 0:
        stopped = f"died of {signal.Signals(-code).name} after {done} cases"
    elif code or "end" not in by_kind:
        stopped = f"stopped after {done} cases: {said[-1][:200] if said else f'exit code {code}'}"
    else:
        stopped = ""
    about = by_kind.get("about", [{}])[0]
    return Outcome(adapter, about, by_kind.get("mix", []), by_kind.get("walk", []), stopped)
