"""Which code computes: a name is picked once, from `runtime.backend` and the device, and then looked up."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from repro.ops import eager, eager_phases, phases, reference

#: What `runtime.backend` may be.
BACKENDS = ("auto", "reference", "eager", "triton", "fla", "liger")
#: Those that compute single reads only, and need their packages.
SINGLE_READS = ("fla", "liger")


@dataclass(frozen=True)
class Backend:
    """Operations of one backend, as `reference` defines them; None where it has single reads only."""

    depth_mix: Callable[..., Any]
    score: Callable[..., Any] | None = None
    mix: Callable[..., Any] | None = None
    merge: Callable[..., Any] | None = None


def pick(name: str, device: torch.device | str) -> str:
    """The backend that `name` means on a device; ValueError with the reason where it cannot run there."""
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is not one of {', '.join(BACKENDS)}")
    on_gpu = torch.device(device).type == "cuda"
    if name == "auto":
        return "triton" if on_gpu and importlib.util.find_spec("triton") else "eager"
    package = {"triton": "triton", "fla": "fla", "liger": "liger_kernel"}.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise ValueError(f"backend {name!r} needs the package {package}, which is not installed")
    return name


@cache
def load(name: str) -> Backend:
    """The operations of a picked backend."""
    if name == "reference":
        return Backend(reference.depth_mix, reference.score, reference.mix, reference.merge)
    if name == "eager":
        return _by_phases(eager.depth_mix, eager_phases)
    if name == "triton":
        from repro.ops import triton  # only here: no other backend needs the package

        return _by_phases(triton.depth_mix, triton)
    from repro.ops import peers

    return Backend(peers.READS[name])


def _by_phases(depth_mix: Callable[..., Any], raw: Any) -> Backend:
    return Backend(
        depth_mix, partial(phases.score, raw), partial(phases.mix, raw), partial(phases.merge, raw)
    )
