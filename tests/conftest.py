"""One thread per test process, set before torch starts: waiting OpenMP threads of two processes on two cores
slow both down many times over, and results then depend on no thread count. In CI, hypothesis draws the same
examples every time, so that a red run is about the change and can be repeated anywhere with CI=1. Without a
GPU, Triton's kernels run in its interpreter, which must be known before they are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="module", autouse=True)
def interpreter_patches_once() -> Iterator[None]:
    """Interpreted kernels in about half the time; nothing where a test file has no kernels."""
    if "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from repro.bench.interpreter import patching_once

    with patching_once():
        yield
