"""A probe's record in the run's directory: written under the run's lock, and found again by what decides
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.probe.trained import Trained, provenance
from repro.runs.plain import encode


def kept(trained: Trained, name: str, settings: Mapping[str, Any]) -> bool:
    """Whether ``<name>.npz`` holds what these settings give for these weights."""
    found = trained.run.read_arrays(name)
    expected = {"settings": encode(dict(settings)), "weights_sha256": trained.digest}
    return found is not None and all(str(found.get(key)) == value for key, value in expected.items())


def write(trained: Trained, name: str, settings: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
    """Write ``<name>.npz`` with where it came from; what was written, in words."""
    with trained.run.lock():
        path = trained.run.write_arrays(name, **arrays, **provenance(trained, settings))
    return f"wrote {path.name} ({path.stat().st_size / 1e3:.0f} kB)"
