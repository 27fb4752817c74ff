"""Hydra's errors as one line: the key, and what it may be."""

from __future__ import annotations

import re

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from repro.train.paths import config_directory

_OPTIONS = re.compile(r"Available options in '[^']*':\n((?:\t.*(?:\n|$))+)")
_SWEPT = re.compile(r"=.*(?:,|\w\()")  # a choice of several values, of which there is no one config


def one_line(error: Exception, arguments: list[str]) -> str:
    """A line for an error of composition; `arguments` are the command's."""
    text = str(error)
    if found := re.search(r"Could not find '([^']*)/([^'/]*)'", text):
        options = _OPTIONS.search(text)
        names = [line.strip() for line in options[1].splitlines()] if options else ["(no option)"]
        return f"{found[1]}={found[2]!r}: one of {', '.join(names)}"
    if found := re.search(r"Could not (?:override|delete from config) '([^']+)'", text):
        return _unknown_key(found[1], arguments)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [
        line for line in lines if not line.startswith(("full_key", "object_type", "Set the env", "See http"))
    ]
    return " ".join(lines) or type(error).__name__


def _unknown_key(key: str, arguments: list[str]) -> str:
    """ "optim.lrr=1: no such key; optim has lr, ...", the neighbours taken from the config without it."""
    given = [argument for argument in arguments if argument.lstrip("+~").partition("=")[0] == key]
    shown = given[0] if given else key
    others = [a for a in arguments if a not in given and not a.startswith("-") and not _SWEPT.search(a)]
    parent = key.rpartition(".")[0]
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose("train", overrides=others)
        node = OmegaConf.select(config, parent) if parent else config
    except Exception:  # a second error, or a sweep: the first line still says which key
        node = None
    if not isinstance(node, DictConfig):
        return f"{shown}: no such key; --cfg job lists all"
    return f"{shown}: no such key; {parent or 'the top level'} has {', '.join(str(name) for name in node)}"
