"""Backends that are packages of others: which, from which version on, and what of a read they can compute.

Each computes one case of `reference.depth_mix`: softmax, one head, normalised keys, one query for all tokens.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from functools import cache

#: Per backend: the distribution, the version from which it can be used, and the module of its operation.
#: Liger-Kernel left out sources past the 32nd without a word before 0.8.5.
PACKAGES = {
    "fla": ("fla-core", (0, 6, 0), "fla.ops.attnres"),
    "liger": ("liger-kernel", (0, 8, 5), "liger_kernel.ops.attn_res"),
}


def refusal(name: str, *, act: str, heads: int, key_norm: bool, token_query: bool) -> str | None:
    """Why a backend cannot compute reads with these options, in one line; None where it can."""
    if name not in PACKAGES:
        return None
    reasons = (
        (act != "softmax", f"act={act!r}, only softmax"),
        (heads > 1, f"heads={heads}, only one"),
        (not key_norm, "key_norm=False, only normalised keys"),
        (token_query, "query that depends on the input, only one [D] for all tokens"),
    )
    return next((f"{PACKAGES[name][0]} has no {reason}" for holds, reason in reasons if holds), None)


@cache
def check(name: str, device_type: str) -> None:
    """ValueError where the package of a backend is missing, too old, or cannot run on such a device."""
    distribution, oldest, module = PACKAGES[name]
    wanted = f"{distribution} {'.'.join(map(str, oldest))} or later"
    installed = _version(distribution)
    if installed is not None and installed < oldest:
        raise ValueError(f"backend {name!r} needs {wanted}, found {'.'.join(map(str, installed))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of no GPU
            importlib.import_module(module)
    except Exception as error:  # of an import that fails in whatever way
        reason = str(error).partition("\n")[0]
        raise ValueError(f"backend {name!r} needs {wanted} ({reason})") from error
    if name == "liger" and device_type != "cuda" and not _interpreted():
        raise ValueError(
            f"backend 'liger' needs tensors on a GPU, not on {device_type} (on a CPU only in Triton's "
            "interpreter: set TRITON_INTERPRET=1 before Python starts)"
        )


def _version(distribution: str) -> tuple[int, ...] | None:
    try:
        parts = importlib.metadata.version(distribution).split(".")[:3]
    except importlib.metadata.PackageNotFoundError:  # a checkout on the path, or nothing
        return None
    return tuple(int(part) for part in parts if part.isdigit())


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
