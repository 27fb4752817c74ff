"""How a process computes, before its first step: no denormal numbers, and memory that stays."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from repro.train import resources

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def prepare() -> None:
    """Flush denormals to zero (slow, and no information here) and keep freed memory for the next step."""
    torch.set_flush_denormal(True)
    resources.keep_freed_memory()


def keep_compiled(directory: Path) -> None:
    """Keep what torch.compile makes in a directory that outlives the process, unless the user named one.

    To be called before the first compilation. torch names its own default, in the system's temporary
    directory, in the environment as soon as it is asked for it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # here: it loads the compiler

    if os.environ.get(COMPILED, default_cache_dir()) == default_cache_dir():
        os.environ[COMPILED] = str(directory)
