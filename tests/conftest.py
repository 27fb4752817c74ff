"""One thread per test process, set before torch starts: waiting OpenMP threads of two processes on two cores
slow both down many times over, and results then depend on no thread count."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
