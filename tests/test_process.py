"""How a process prepares itself before its first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir

from repro.train import process, resources


def test_whether_freed_memory_is_kept_is_said() -> None:
    assert isinstance(resources.keep_freed_memory(), bool)


def _raise(_: str) -> Any:
    raise OSError("libc.so.6: cannot open shared object file")


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (_raise, False),  # another system
        (lambda _: SimpleNamespace(), False),  # another C library
        (lambda _: SimpleNamespace(mallopt=lambda name, value: 0), False),  # refused
        (lambda _: SimpleNamespace(mallopt=lambda name, value: 1), True),
    ],
    ids=["no_library", "no_mallopt", "refused", "told"],
)
def test_nothing_is_raised_where_memory_cannot_be_kept(
    library: Callable[[str], Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources.ctypes, "CDLL", library)
    assert resources.keep_freed_memory() is expected


def test_both_thresholds_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD -3 in malloc.h."""
    told: dict[int, int] = {}

    def mallopt(name: int, value: int) -> int:
        told[name] = value
        return 1

    monkeypatch.setattr(resources.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert resources.keep_freed_memory()
    assert set(told) == {-1, -3}
    assert all(2**28 < value < 2**31 for value in told.values())  # an int of C


def _denormals_are_flushed() -> bool:
    return (torch.tensor([1e-38]) * 1e-3).item() == 0.0  # 1e-41 is below the normal numbers of float32


def test_prepare_flushes_denormals_and_keeps_freed_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    monkeypatch.setattr(resources, "keep_freed_memory", lambda: calls.append(None))
    before = _denormals_are_flushed()
    try:
        torch.set_flush_denormal(False)
        assert not _denormals_are_flushed()
        process.prepare()
        assert torch.set_flush_denormal(True) == _denormals_are_flushed()  # where the processor can
    finally:
        torch.set_flush_denormal(before)
    assert len(calls) == 1


def test_compiled_code_is_kept_where_nothing_else_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache_dir()  # torch names its default here
    process.keep_compiled(tmp_path / "a")
    process.keep_compiled(tmp_path / "b")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == cache_dir() == str(tmp_path / "a")
