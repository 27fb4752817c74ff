"""How a process computes, before its first step: no denormal numbers, and memory that stays."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from repro.train import resources


def prepare() -> None:
    """Flush denormals to zero (slow, and no information here) and keep freed memory for the next step."""
    torch.set_flush_denormal(True)
    resources.keep_freed_memory()


def keep_compiled(directory: Path) -> None:
    """Keep what torch.compile makes in a directory that outlives the process, unless one is named already.

    torch's own default is the system's temporary directory. To be called before the first compilation.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(directory))
