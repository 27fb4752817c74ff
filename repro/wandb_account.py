"""Whether W&B can be written to from here, in one line where it cannot. Nothing is asked."""

from __future__ import annotations

from typing import Any

import yaml

from repro.errors import DataError
from repro.runs.places import project_root


def require_login() -> None:
    """Return where a login for W&B is present; a ``DataError`` that says what to do where it is not."""
    try:
        import wandb
    except ImportError:
        raise DataError("wandb is not installed: pip install wandb") from None
    try:
        known = wandb.login(prompt=False, verify=False)
    except Exception as error:  # whatever is wrong with an account, training and reports go on without it
        raise DataError(f"W&B refused the login ({first_line(error)}): run `wandb login` once") from None
    if not known:
        raise DataError("no W&B login here: run `wandb login` once (or set WANDB_API_KEY), then repeat")


def logger_settings() -> dict[str, Any]:
    """``conf/logger/wandb.yaml``: where runs are mirrored to unless told otherwise."""
    path = project_root() / "conf" / "logger" / "wandb.yaml"
    settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return settings


def first_line(error: Exception) -> str:
    """What an error says, in one line; its kind where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
