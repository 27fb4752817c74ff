"""What a card can do at most, and how long work takes on it: events, a cold cache, no waiting for the host.

Bandwidth is that of torch's own copy of a large tensor, bytes read and written. The rate of matrix units is
that of a square product in bfloat16, the rate of vector units that of one in float32 (torch keeps TF32 off).
Work takes no less than its bytes and its operations need at these rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from repro.bench.supervised import Row

#: Cycles of the processor's clock in a second, at most: a wait may last longer than asked, never shorter.
_CYCLES = 2.2e9
#: Bytes that surely push everything else out of the cache.
_FLUSHED = 2**28


class Timing(NamedTuple):
    """Milliseconds on the device: median and quartiles; microseconds that the host took to hand it over."""

    median: float
    low: float
    high: float
    host: float

    def row(self) -> Row:
        return {
            "quantity": "time",
            "value": self.median,
            "unit": "ms",
            "low": self.low,
            "high": self.high,
            "host_us": self.host,
        }


def timing(work: Callable[[], Any], device: torch.device, repeats: int) -> Timing:
    """Time of `work`, each time with nothing of its data in the cache.

    The device is kept busy until the host has handed all of it over, so that a slow host, or one that
    allocates, does not count: its time stands apart.
    """
    for _ in range(2):  # compilation, the allocator's first blocks
        work()
    if device.type != "cuda":
        return _timing_of_host(work, repeats)
    handed = []
    for _ in range(3):
        torch.cuda.synchronize(device)
        started = time.perf_counter()
        work()
        handed.append(time.perf_counter() - started)
    torch.cuda.synchronize(device)
    host = float(np.median(handed))
    properties = torch.cuda.get_device_properties(device)
    cached = int(getattr(properties, "L2_cache_size", 0))
    flush = torch.empty(max(_FLUSHED, 4 * cached), dtype=torch.int8, device=device)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        flush.zero_()
        torch.cuda._sleep(int((2 * host + 5e-5) * _CYCLES))
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize(device)
    low, median, high = np.quantile([begin.elapsed_time(end) for begin, end in events], [0.25, 0.5, 0.75])
    return Timing(float(median), float(low), float(high), 1e6 * host)


def _timing_of_host(work: Callable[[], Any], repeats: int) -> Timing:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return Timing(1e3 * float(median), 1e3 * float(low), 1e3 * float(high), 1e6 * float(median))


def card(device_name: str, copied: int, sides: Sequence[int], repeats: int) -> Iterator[Row]:
    """Rates of a card: a copy of `copied` elements at most, and products of matrices of these sides."""
    device = torch.device(device_name)
    if device.type == "cuda":
        copied = min(copied, torch.cuda.get_device_properties(device).total_memory // 32)
    yield _rate("copy", torch.float32, timing(_copy(copied, device), device, repeats), 8 * copied)
    for side, dtype in zip(sides, (torch.bfloat16, torch.float32), strict=True):
        found = timing(_product(side, dtype, device), device, repeats)
        yield _rate("matrix product", dtype, found, 2 * side**3)


def _rate(name: str, dtype: torch.dtype, found: Timing, amount: int) -> Row:
    """Bytes or floating-point operations a second; `time` as it was measured beside it."""
    rate = amount / found.median / (1e6 if name == "copy" else 1e9)
    unit = "GB/s" if name == "copy" else "TFLOP/s"
    row = {"operation": name, "dtype": str(dtype).removeprefix("torch."), "quantity": "rate"}
    return row | {"value": rate, "unit": unit, "host_us": found.host}


def _copy(elements: int, device: torch.device) -> Callable[[], Any]:
    source = torch.ones(elements, device=device)
    into = torch.empty_like(source)
    return lambda: into.copy_(source)


def _product(side: int, dtype: torch.dtype, device: torch.device) -> Callable[[], Any]:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    into = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=into)
