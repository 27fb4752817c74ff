"""Arrays on disk: npz files without pickles whose bytes depend on their contents alone.

A *snapshot* file stacks what was measured at several steps: ``steps`` [K] and, per quantity, an array whose
first axis is K. Names in ``fixed`` (labels, bucket edges) are stored once, without that axis.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from repro.runs.atomic import DamagedRecord, read_bytes, write_bytes

Arrays = dict[str, np.ndarray]
STEPS, FIXED = "steps", "fixed"


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> Path:
    """Atomically writes arrays (numbers, booleans, text) as a compressed npz.

    Entries are sorted by name and carry no time, so equal arrays give equal files. Raises TypeError for
    arrays of objects, which only a pickle could hold.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(arrays):
            array = np.asarray(arrays[name], order="C")
            if array.dtype.hasobject:
                raise TypeError(f"{name}: arrays of {array.dtype} cannot be recorded")
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return write_bytes(path, buffer.getvalue())


def read_npz(path: str | Path) -> Arrays:
    """All arrays of an npz, read to the last byte (checksums included) and never unpickled.

    Raises FileNotFoundError where there is none and DamagedRecord where it is corrupt.
    """
    data = read_bytes(path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (
        Exception
    ) as error:  # from memory, nothing but the bytes can be at fault; zipfile and NumPy raise many
        raise DamagedRecord(f"{path}: not a readable npz ({error})") from error


def add_snapshot(
    earlier: Arrays | None, step: int, fixed: Mapping[str, Any], arrays: Mapping[str, Any]
) -> Arrays:
    """`earlier` with the quantities measured at `step`; a step that is there already is replaced.

    Raises ValueError where names, shapes or fixed arrays differ from those of the earlier steps.
    """
    if reserved := {STEPS, FIXED} & {*fixed, *arrays}:
        raise ValueError(f"{', '.join(sorted(reserved))}: reserved name of a snapshot file")
    new = {name: np.asarray(value)[None] for name, value in arrays.items()}
    once = {name: np.asarray(value) for name, value in fixed.items()}
    header = {FIXED: np.array(sorted(once), dtype=np.str_)}
    if earlier is None:
        return {STEPS: np.array([step], dtype=np.int64), **header, **once, **new}
    if set(earlier) != {STEPS, FIXED, *once, *new}:
        raise ValueError(f"snapshot at step {step}: other arrays than before ({sorted({*once, *new})})")
    for name, value in once.items():
        if not np.array_equal(earlier[name], value, equal_nan=value.dtype.kind == "f"):
            raise ValueError(f"snapshot at step {step}: {name} is fixed and differs from before")
    others = earlier[STEPS] != step
    steps = np.append(earlier[STEPS][others], step)
    order = np.argsort(steps)
    stacked = {name: np.concatenate([earlier[name][others], value])[order] for name, value in new.items()}
    return {STEPS: steps[order], **header, **once, **stacked}


def cut_snapshots(arrays: Arrays, step: int) -> Arrays | None:
    """The snapshots up to and including `step`; None where none is left."""
    kept = arrays[STEPS] <= step
    if not kept.any():
        return None
    once = {STEPS, FIXED, *arrays[FIXED].tolist()}
    return {
        STEPS: arrays[STEPS][kept],
        **{name: value if name in once else value[kept] for name, value in arrays.items() if name != STEPS},
    }


def is_snapshot_file(arrays: Arrays) -> bool:
    """Whether these arrays were written by `add_snapshot`."""
    return STEPS in arrays and FIXED in arrays
