"""Which code computes: a name is picked once, from `runtime.backend` and the device, and then looked up."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from repro.ops import eager, eager_phases, packages, phases, reference

#: What `runtime.backend` may be.
BACKENDS = ("auto", "reference", "eager", "triton", "fla", "liger")
#: Those that compute single reads only, and need their packages.
SINGLE_READS = tuple(packages.PACKAGES)


def _no_phases(name: str, *_: Any, **__: Any) -> Any:
    raise ValueError(f"backend {name!r} computes single reads only (depth_mix), not their phases")


@dataclass(frozen=True)
class Backend:
    """Operations of one backend, as `reference` defines them; of `SINGLE_READS` all but the first refuse."""

    depth_mix: Callable[..., Any]
    score: Callable[..., Any]
    mix: Callable[..., Any]
    merge: Callable[..., Any]


def pick(name: str, device: torch.device | str) -> str:
    """The backend that `name` means on a device; ValueError with the reason where it cannot run there."""
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is not one of {', '.join(BACKENDS)}")
    on_gpu = torch.device(device).type == "cuda"
    if name == "auto":
        return "triton" if on_gpu and importlib.util.find_spec("triton") else "eager"
    if name == "triton" and importlib.util.find_spec("triton") is None:
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if name in SINGLE_READS and not torch.compiler.is_compiling():  # the read itself is not compiled
        packages.check(name, torch.device(device).type)
    return name


def _by_phases(depth_mix: Callable[..., Any], raw: Any) -> Backend:
    return Backend(
        depth_mix, partial(phases.score, raw), partial(phases.mix, raw), partial(phases.merge, raw)
    )


_LOADED = {
    "reference": Backend(reference.depth_mix, reference.score, reference.mix, reference.merge),
    "eager": _by_phases(eager.depth_mix, eager_phases),
}


def load(name: str) -> Backend:
    """The operations of a picked backend; those that need a package are loaded when first asked for."""
    if name not in _LOADED and name == "triton":
        from repro.ops import triton

        _LOADED[name] = _by_phases(triton.depth_mix, triton)
    if name not in _LOADED:
        from repro.ops import peers

        refuse = partial(_no_phases, name)
        _LOADED[name] = Backend(peers.READS[name], refuse, refuse, refuse)
    return _LOADED[name]


def backend_for(name: str, device: torch.device) -> Backend:
    """The operations that `name` means on a device, unchecked; ValueError where it cannot run."""
    return load(pick(name, device))
