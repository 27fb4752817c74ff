"""What training goes on from: the last checkpoint, and the one before it until the last has proved good.

A checkpoint holds the weights before a step, so whether their loss is finite is known only after it was
written. Until then the earlier one stays beside it, so that a run that diverges keeps its last good weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from repro.runs import Run


def save(run: Run, write: Callable[[Path], object]) -> None:
    """Atomically make what `write` puts at a path the last checkpoint, the earlier one kept beside it."""
    if run.checkpoint.exists():
        with suppress(OSError):  # a file system without links keeps no earlier one
            _earlier(run).unlink(missing_ok=True)
            os.link(run.checkpoint, _earlier(run))
    run.replace_atomically(run.checkpoint, write)


def confirm(run: Run) -> None:
    """The weights of the last checkpoint gave a finite loss: the earlier one is not needed any more."""
    _earlier(run).unlink(missing_ok=True)


def withdraw(run: Run, step: int) -> None:
    """The weights before `step` are no good: where the last checkpoint holds them, go back to the earlier."""
    if not run.checkpoint.exists():
        return
    try:
        bad = int(_load(run)["global_step"]) == step
    except Exception:  # cannot be read, so nobody goes on from it
        bad = True
    if bad and _earlier(run).exists():
        os.replace(_earlier(run), run.checkpoint)
    elif bad:
        run.checkpoint.unlink()
    confirm(run)


def resume_step(run: Run, say: Callable[[str], None]) -> int | None:
    """Cut the records back to the checkpoint; its step, or None where training starts from nothing."""
    if run.checkpoint.exists():
        try:
            saved = _load(run)
            step, counts = int(saved["global_step"]), dict(saved["records"])
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:80]
            run.keep_aside(run.checkpoint, f"not a checkpoint of ours: {reason}")
        else:
            if run.cut_after(step, counts):
                say(f"going on from step {step}")
                return step
    run.cut_after(-1)
    return None


def _earlier(run: Run) -> Path:
    return run.checkpoint.with_name("earlier.ckpt")


def _load(run: Run) -> dict:
    return torch.load(run.checkpoint, map_location="cpu", weights_only=True)
