"""The resolver ``${by_scale:folder,key}``: the value of ``key`` in ``conf/<folder>/<scale>.yaml``.

For choices that mean another number at each scale, as the sizes of a ladder and the tokens of a multiple of
its compute: Hydra's sweeper has no zip, so a size must be one choice, and its files would otherwise be one
per scale.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from repro.errors import ConfigError
from repro.train.paths import config_directory


def by_scale(folder: str, key: str, *, _root_: DictConfig) -> Any:
    """A number from the file of the config's scale; a ``ConfigError`` where there is none."""
    scale = str(_root_.scale)
    value = _table(folder, scale)
    for name in key.split("."):
        if not isinstance(value, dict) or name not in value:
            raise ConfigError(folder, key, f"no such value in conf/{folder}/{scale}.yaml")
        value = value[name]
    return value


@cache
def _table(folder: str, scale: str) -> Any:
    directory = config_directory() / folder
    path = directory / f"{scale}.yaml"
    if not path.is_file():
        known = sorted(
            p.relative_to(directory).with_suffix("").as_posix() for p in directory.glob("**/*.yaml")
        )
        raise ConfigError("scale", scale, f"one of {', '.join(known)} with {folder.split('/')[0]}=...")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def register() -> None:
    """Make the resolver known to OmegaConf."""
    OmegaConf.register_new_resolver("by_scale", by_scale, replace=True)
