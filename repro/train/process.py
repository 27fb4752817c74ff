"""How a process computes, before its first step: no denormal numbers, and memory that stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from repro.errors import ConfigError
from repro.train import resources

COMPILED = "TORCHINDUCTOR_CACHE_DIR"


def prepare() -> None:
    """Flush denormals to zero (slow, and no information here) and keep freed memory for the next step."""
    torch.set_flush_denormal(True)
    resources.keep_freed_memory()


def use_threads(setting: Any) -> None:
    """Let torch compute with as many threads as `runtime.threads` says: auto, or a number.

    auto: those of OMP_NUM_THREADS, which a sweep sets for its workers, else one per core. To be called by
    whatever computes with a config: small models are bound by operators, and at more threads than cores that
    are free, waiting threads spin. A ConfigError for anything else.
    """
    if setting == "auto":
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or resources.cores()))
    elif isinstance(setting, bool) or not isinstance(setting, int) or setting < 1:
        raise ConfigError("runtime.threads", setting, "auto, or a whole number of at least 1")
    else:
        torch.set_num_threads(setting)


def keep_compiled(directory: Path) -> None:
    """Keep what torch.compile makes in a directory that outlives the process, unless the user named one.

    To be called before the first compilation. torch names its own default, in the system's temporary
    directory, in the environment as soon as it is asked for it.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # here: it loads the compiler

    if os.environ.get(COMPILED, default_cache_dir()) == default_cache_dir():
        os.environ[COMPILED] = str(directory)
