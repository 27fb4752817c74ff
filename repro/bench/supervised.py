"""Cases one after another under a deadline, in a child process that may die without taking the rest with it.

A kernel that writes where it must not makes every later call of its process fail, and a compiler or a kernel
can hang. So the child sends each row as it is measured; where it dies, or a case takes too long, the cases
that follow get a new one. Imports nothing heavy: the parent only waits and writes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

Row = dict[str, Any]
Say = Callable[[str], None]

#: In the text of an error after which a process can use its GPU no more.
_LOST = ("CUDA error", "Triton Error", "HIP error", "out of memory")


class Skipped(Exception):
    """Raised by a case that cannot run here; its text says why."""


@dataclass(frozen=True)
class Case:
    """One thing to measure.  work: a function of a module, which yields rows.  limit: seconds it may take."""

    section: str
    name: str
    work: Callable[..., Iterable[Row]]
    arguments: tuple[Any, ...] = ()
    limit: float = 60.0

    @property
    def title(self) -> str:
        return f"{self.section}: {self.name}"


@dataclass
class Outcome:
    """What came of a case.  status: done, skipped, failed, or left out; note: why, where not done."""

    case: Case
    status: str = "done"
    note: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)


def run_here(cases: Sequence[Case], deadline: float, say: Say) -> list[Outcome]:
    """In this process; `deadline` on the clock of time.monotonic, looked at between cases."""
    found = []
    for case in cases:
        outcome = Outcome(case)
        started = time.monotonic()
        if started >= deadline:
            outcome.status, outcome.note = "left out", "no time was left"
        else:
            for kind, value in _messages(case):
                _take(outcome, kind, value)
        found.append(_told(outcome, started, say))
    return found


def run_apart(cases: Sequence[Case], deadline: float, say: Say) -> list[Outcome]:
    """In a child process, killed at the deadline; a new one after a case that broke it or took too long."""
    found: list[Outcome] = []
    child: _Child | None = None
    try:
        for case in cases:
            outcome = Outcome(case)
            started = time.monotonic()
            if started >= deadline:
                outcome.status, outcome.note = "left out", "no time was left"
            else:
                child = child or _Child()
                if not child.run(outcome, min(case.limit, deadline - started)):
                    child.end()
                    child = None
            found.append(_told(outcome, started, say))
    finally:
        if child is not None:
            child.end()
    return found


def _told(outcome: Outcome, started: float, say: Say) -> Outcome:
    outcome.seconds = round(time.monotonic() - started, 2)
    end = "" if outcome.status == "done" else f", {outcome.status} ({outcome.note})"
    if outcome.status != "left out" or outcome.seconds > 0.5:
        say(f"  {outcome.seconds:6.1f} s  {outcome.case.title}{end}")
    return outcome


def _messages(case: Case) -> Iterator[tuple[str, Any]]:
    """Rows of a case as they come, then how it ended."""
    try:
        for row in case.work(*case.arguments):
            yield "row", row
    except Skipped as reason:
        yield "skipped", str(reason)
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            yield "skipped", "out of memory"
            return
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        yield "failed", f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
    else:
        yield "done", ""


def _take(outcome: Outcome, kind: str, value: Any) -> None:
    if kind == "row":
        outcome.rows.append(value)
    else:
        outcome.status, outcome.note = kind, value


def _serve(connection: Connection) -> None:
    """The child: cases come in, rows go out."""
    with suppress(OSError):
        os.setsid()  # a group of its own, so that compilers it starts end with it
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        for message in _messages(case):
            connection.send(message)


class _Child:
    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        self._process.start()
        theirs.close()

    def run(self, outcome: Outcome, seconds: float) -> bool:
        """Fill in the outcome; whether the child is fit for another case."""
        end = time.monotonic() + seconds
        kind = "row"
        try:
            self._connection.send(outcome.case)
            while kind == "row":
                if not self._connection.poll(max(0.0, end - time.monotonic())):
                    _take(outcome, "left out", f"stopped after {seconds:.0f} s")
                    return False
                kind, value = self._connection.recv()
                _take(outcome, kind, value)
        except (EOFError, OSError):
            self._process.join(5)
            _take(outcome, "failed", f"its process ended with {self._process.exitcode}")
            return False
        return not any(mark in outcome.note for mark in _LOST)

    def end(self) -> None:
        self._connection.close()  # which a child that waits for a case takes as the end
        self._process.join(0.5)
        group = self._process.pid
        assert group is not None
        with suppress(OSError):  # nobody is left of it, or it was never made
            os.killpg(group, signal.SIGKILL)
        self._process.kill()
        self._process.join()
