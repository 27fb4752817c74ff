"""Which code computes: a name is picked once, from `runtime.backend` and the device, and then looked up."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from repro.ops import eager, eager_phases, native, packages, phases, reference

#: What `runtime.backend` may be.
BACKENDS = ("auto", "reference", "eager", "native", "triton", "fla", "liger")
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


def pick(name: str, device: torch.device | str, compiled: bool = False) -> str:
    """The backend that `name` means on a device; ValueError with the reason where it cannot run there.

    compiled: whether torch.compile makes the code, which on CPUs then takes plain torch operations.
    """
    if name not in BACKENDS:
        raise ValueError(f"backend {name!r} is not one of {', '.join(BACKENDS)}")
    kind = torch.device(device).type
    if name == "auto":
        return _best(kind, compiled or torch.compiler.is_compiling())
    if name == "native" and kind != "cpu":
        raise ValueError(f"backend 'native' computes on CPU, not on {kind}")
    compiling = torch.compiler.is_compiling()  # the library is then neither needed nor looked for
    if name == "native" and not compiling and (reason := native.unavailable()) is not None:
        raise ValueError(f"backend 'native' cannot run here: {reason}")
    if name == "triton" and importlib.util.find_spec("triton") is None:
        raise ValueError("backend 'triton' needs the package triton, which is not installed")
    if name in SINGLE_READS and not torch.compiler.is_compiling():  # the read itself is not compiled
        packages.check(name, kind)
    return name


def _best(kind: str, compiled: bool) -> str:
    """The fastest backend on a kind of device: its kernels, or else plain torch operations."""
    if kind == "cuda" and importlib.util.find_spec("triton"):
        return "triton"
    if kind == "cpu" and not compiled and native.unavailable() is None:
        return "native"
    return "eager"


def _by_phases(depth_mix: Callable[..., Any], raw: Any) -> Backend:
    return Backend(
        depth_mix, partial(phases.score, raw), partial(phases.mix, raw), partial(phases.merge, raw)
    )


_LOADED = {
    "reference": Backend(reference.depth_mix, reference.score, reference.mix, reference.merge),
    "eager": _by_phases(eager.depth_mix, eager_phases),
    "native": _by_phases(eager.depth_mix, native),
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
