"""Classes that a config names by `_target_`: the registry of arms and schedules is their YAML."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, TypeVar

from repro.errors import ConfigError

T = TypeVar("T")


def locate(key: str, target: object, base: type[T]) -> type[T]:
    """The class behind a dotted name, which must be a subclass of `base`; ConfigError naming `key` if not."""
    module, _, name = str(target).rpartition(".")
    allowed = f"the dotted name of a {base.__name__}"
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(key, target, f"{allowed} ({error})") from None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(key, target, allowed)
    return found


def refuse_unknown(key: str, found: type, options: Mapping[str, Any], reserved: Collection[str] = ()) -> None:
    """ConfigError for an option that the constructor of `found` does not take, listing those it does.

    reserved: arguments that do not come from the config.
    """
    known = [name for name in _keywords(found) if name not in reserved]
    for name, value in options.items():
        if name not in known:
            has = ", ".join(known) or "none"
            raise ConfigError(f"{key}.{name}", value, f"not an option of {found.__name__}, which has {has}")


def _keywords(found: type) -> list[str]:
    """Named arguments of a constructor, those included that it hands on as `**options` to its base."""
    names: list[str] = []
    for owner in found.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
        names += [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return list(dict.fromkeys(names))
