"""The lock of a run directory: of the processes that ask for one run, one is inside at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from repro.runs.status import Status


class RunBusy(RuntimeError):
    """Another process holds the run's lock; the text says where and how far it is."""


@contextmanager
def hold(
    directory: Path,
    status: Callable[[], Status],
    blocking: bool,
    timeout: float | None,
    on_wait: Callable[[Status], object] | None,
) -> Iterator[None]:
    """Holds ``<directory>/lock``, which dies with its process; the arguments are those of `Run.lock`.

    status: the holder's, asked for where the lock is not free at once.  Raises RunBusy where it stays taken.
    """
    held = FileLock(directory / "lock")
    try:
        held.acquire(blocking=False)
    except Timeout:
        if on_wait is not None:
            on_wait(status())
        try:
            held.acquire(blocking=blocking, timeout=-1 if timeout is None else timeout)
        except Timeout:
            now = status()
            raise RunBusy(
                f"{directory}: another process trains this run ({now.state}, step {now.step})"
            ) from None
    try:
        yield
    finally:
        held.release()
