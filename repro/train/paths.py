"""Where relative paths of a config start: the project's root, so that commands work from any directory."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

import repro
from repro.runs.places import project_root


def config_directory() -> Path:
    """Folder `conf/`, beside the package in a checkout and when installed."""
    return Path(repro.__file__).resolve().parent.parent / "conf"


def under_root(root: str | None, path: str | None) -> Path:
    """`path` itself if absolute, else under `root` (null: the project's root)."""
    return Path(root or project_root()).expanduser() / Path(path or ".").expanduser()


def resolve_path(config: DictConfig, path: str) -> Path:
    """`under_root` for `paths.root` of a config."""
    return under_root(config.paths.root, path)
