"""Values as plain data: what may stand in a record or a config, and its JSON text.

JSON has no NaN and no infinities. Everywhere in a run directory they are the strings "NaN", "Infinity" and
"-Infinity", so that every line is strict JSON, and they come back as floats. Finite floats are written with
the shortest digits that give the same float64 back, so a number survives the round trip bit for bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, ListConfig, OmegaConf

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_plain(value: Any) -> Any:
    """The same value made of dict, list, str, int, float, bool and None only.

    Accepts OmegaConf nodes (interpolations are resolved), mappings, tuples, paths, NumPy scalars and
    arrays, and any zero-dimensional object with `item()`. Raises TypeError for everything else.
    """
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=True, enum_to_str=True)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return to_plain(value.tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {_plain_key(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return to_plain(value.item())
    raise TypeError(f"a record holds numbers, text, lists and mappings, not {type(value).__name__}")


def encode(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON text of `value`, keys in the order given."""
    return json.dumps(_spell_non_finite(to_plain(value)), indent=indent, allow_nan=False, ensure_ascii=False)


def decode(text: str | bytes) -> Any:
    """The value behind JSON text written by `encode`; raises ValueError where it is not JSON."""
    try:
        return _read_non_finite(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain_key(key: Any) -> str:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise TypeError(f"a record's keys are text, not {type(key).__name__}")
    return str(key)


def _spell_non_finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _spell_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_spell_non_finite(item) for item in value]
    return value


def _read_non_finite(value: Any) -> Any:
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _read_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_non_finite(item) for item in value]
    return value
