"""Triton's interpreter without its largest cost: it patches `triton.language` anew for every device function.

A kernel that calls small jitted functions spends most of its interpreted time there. Once per launch and
function is enough, since what a launch patches it also restores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton.runtime import interpreter


@contextmanager
def patching_once() -> Iterator[None]:
    """Kernels that run inside patch the language once per launch and device function; same results."""
    call, run = interpreter.InterpretedFunction.__call__, interpreter.GridExecutor.__call__
    patched: set[Any] = set()

    def call_once_patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(self.fn)
        return self.rewrite()(*args, **kwargs)

    def run_afresh(self: Any, *args: Any, **kwargs: Any) -> Any:
        patched.clear()
        return run(self, *args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call_once_patched
    interpreter.GridExecutor.__call__ = run_afresh
    try:
        yield
    finally:
        interpreter.InterpretedFunction.__call__ = call
        interpreter.GridExecutor.__call__ = run
