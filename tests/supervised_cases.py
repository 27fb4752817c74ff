"""Cases that end in every way a case can; imported by the child process, so without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from repro.bench.supervised import Row, Skipped


def measured(value: int) -> Iterator[Row]:
    yield {"value": value}
    yield {"value": value + 1}


def raises(text: str) -> Iterator[Row]:
    yield {"value": 0}
    raise RuntimeError(text)


def skipped() -> Iterator[Row]:
    raise Skipped("not here")
    yield {}


def exhausted() -> Iterator[Row]:
    class OutOfMemoryError(RuntimeError):
        """As torch names it."""

    raise OutOfMemoryError("CUDA out of memory")
    yield {}


def dies() -> Iterator[Row]:
    yield {"value": 7}
    os._exit(3)


def hangs() -> Iterator[Row]:
    yield {"value": 8}
    time.sleep(600)


def process() -> Iterator[Row]:
    yield {"value": os.getpid()}
