"""Which part of a config decides the numbers, and the name it gives to a run directory.

Two configs with the same identity train the same weights up to rounding (device, backend, compile and threads
may change bits, not meaning; they are recorded in meta.json instead). A run is
``<paths.runs>/<scale>/<arm.name>/<run_id>``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from repro.errors import ConfigError
from repro.runs.plain import to_plain

# Raised when code changes what a config means, so that older runs are not taken for new ones.
# 1  first version
SEMANTICS = 1

IDENTITY_NODES = (
    "arm",
    "model",
    "data",
    "optim",
    "schedule",
    "budget",
    "evaluation",
    "precision",
    "seed",
    "init_seed",
    "data_seed",
    "semantics",
)
# Part of the identity where they are there; `start`: the run whose weights a run starts from, and how.
OPTIONAL_NODES = ("start",)
# The row's text and its place in the table say nothing about training; the name stays, so that an id is
# found under one arm only.
PRESENTATION = ("arm.label", "arm.parent")
# Where files lie is not what is in them: data.fingerprint stands for the contents.
PATH_KEY = re.compile(r"(?:.+_)?(?:path|paths|dir|dirs|root|folder|file|files)")
# Never written anywhere.
SECRET_KEY = re.compile(r"(?:.+_)?(?:token|api_key|secret|password)")
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """The nodes of a resolved config that decide the numbers, as plain data.

    `init_seed` and `data_seed` that are absent or null mean `seed`; an absent `semantics` means the present
    one. Left out: arm.label, arm.parent, secrets and every key that names a place on disk; of an absolute or
    home path under any other key only the last component counts, as in `recorded`, so both have one identity.
    Raises ConfigError for a missing node, an unset value ("???") or an unresolved interpolation.
    """
    config = _resolved(config)
    seed = config.get("seed")
    implied = {"init_seed": seed, "data_seed": seed, "semantics": SEMANTICS}
    nodes = {}
    for name in IDENTITY_NODES:
        value = config.get(name)
        if value is None:
            value = implied.get(name)
        if value is None:
            raise ConfigError(name, value, "is part of every run's identity and must be set")
        nodes[name] = _canonical(name, value)
    for name in OPTIONAL_NODES:
        if config.get(name) is not None:
            nodes[name] = _canonical(name, config[name])
    return nodes


def run_id(config: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits of the SHA-256 over the identity.

    Key order, tuples or lists, and 1 or 1.0 make no difference; 1 and true, and 1 and "1", do.
    """
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:12]


def run_directory(config: Mapping[str, Any], root: str | Path | None = None) -> Path:
    """``<root>/<scale>/<arm.name>/<run_id>``; root defaults to `paths.runs`.

    A scale may have several parts (``paper/48b``). Raises ConfigError for names that are not plain.
    """
    config = _resolved(config)
    if root is None:
        root = (config.get("paths") or {}).get("runs")
        if not root:
            raise ConfigError("paths.runs", root, "the directory under which runs are kept")
    digits = run_id(config)
    scale, arm = config.get("scale"), config["arm"]
    name = arm.get("name") if isinstance(arm, dict) else None
    parts = scale.split("/") if isinstance(scale, str) else [""]
    if not all(SAFE_NAME.fullmatch(part) for part in parts):
        raise ConfigError(
            "scale", scale, "a name of letters, digits, '.', '_' and '-' (parts separated by '/')"
        )
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        raise ConfigError("arm.name", name, "a name of letters, digits, '.', '_' and '-'")
    return Path(root).joinpath(*parts, name, digits)


def recorded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as it is kept in config.yaml: without nodes that say who ran it and where.

    Drops hydra, paths, logger and secrets, and shortens a value that names a place to its last component.
    """
    config = _resolved(config)
    kept = {key: value for key, value in config.items() if key not in ("hydra", "paths", "logger")}
    kept.setdefault("semantics", SEMANTICS)
    return _without_places(kept)


def _resolved(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        if isinstance(config, DictConfig):
            # An interpolation into ${hydra:...} has no value outside a Hydra job, and is not ours.
            keep = [str(key) for key in config if key != "hydra"]
            config = OmegaConf.masked_copy(config, keep) if "hydra" in config else config
        plain = to_plain(config)
    except (OmegaConfBaseException, TypeError) as error:
        where = getattr(error, "full_key", None) or "config"
        raise ConfigError(where, "?", f"cannot be resolved: {str(error).splitlines()[0]}") from None
    if not isinstance(plain, dict):
        raise ConfigError("config", type(plain).__name__, "must be a mapping")
    return plain


def _canonical(where: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _canonical(f"{where}.{key}", item)
            for key, item in value.items()
            if f"{where}.{key}" not in PRESENTATION
            and not (PATH_KEY.fullmatch(key) or SECRET_KEY.fullmatch(key))
        }
    if isinstance(value, list):
        return [_canonical(f"{where}.{index}", item) for index, item in enumerate(value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # also -0.0
    if isinstance(value, str) and (value == "???" or re.search(r"\$\{[^}]*\}", value)):
        raise ConfigError(where, value, "must be set before a run can be named")
    return _without_places(value)


def _without_places(value: Any, place: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_places(item, bool(PATH_KEY.fullmatch(key)))
            for key, item in value.items()
            if not SECRET_KEY.fullmatch(key)
        }
    if isinstance(value, list):
        return [_without_places(item, place) for item in value]
    if isinstance(value, str) and (place or value.startswith(("/", "~"))):
        return Path(value).name
    return value
