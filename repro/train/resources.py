"""Threads and workers from the cores that exist. Imports nothing heavy: it must run before torch does.

On two cores, two training processes of two threads each ran 7 times slower than the same two with one
thread each, since waiting OpenMP threads spin; two workers of one thread beat one worker of two threads
(10,000 against 7,800 tokens/s). `python -m repro.train.throughput` repeats the measurement.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

WORKERS, SLOTS = "REPRO_WORKERS", "REPRO_SLOTS"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def cores() -> int:
    """Cores this process may use (its affinity mask, not the machine's size)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Runs at once in a parallel sweep: one per core, or what REPRO_WORKERS says."""
    return max(1, int(os.environ.get(WORKERS, cores())))


def limit_threads(threads: int) -> None:
    """Set the thread count for this process and all it starts; only effective before torch is imported."""
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed for the next allocation; whether it could be told.

    By default it hands large blocks back at once, and the next step takes and zeroes the same pages again:
    40,000 page faults a step at `scale=cpu_wide`, a sixth of its time.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    trim_threshold, mmap_threshold = -1, -3  # names of malloc.h
    # Older versions of glibc take no threshold above 32 MiB.
    large = mallopt(mmap_threshold, 2**30) or mallopt(mmap_threshold, 2**25)
    return bool(mallopt(trim_threshold, 2**31 - 1) and large)


@contextlib.contextmanager
def worker_slot() -> Iterator[int]:
    """Wait for one of `workers()` places on this machine.

    submitit's local executor starts every job of a sweep at once; the places keep them from sharing cores.
    """
    directory = Path(tempfile.gettempdir()) / f"attnres-repro-slots-{os.getuid()}"
    directory.mkdir(parents=True, exist_ok=True)
    while True:
        for index in range(workers()):
            lock = FileLock(directory / f"slot-{index}.lock")
            try:
                lock.acquire(timeout=0 if index < workers() - 1 else 1.0)
            except Timeout:
                continue
            try:
                yield index
            finally:
                lock.release()
            return
