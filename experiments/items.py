"""All tables and figures: each module of this package that defines ``ITEM``. A new item is a new file."""

from __future__ import annotations

import importlib
import pkgutil

import experiments
from experiments.item import PaperItem
from repro.errors import ConfigError

__all__ = ["ITEMS", "PaperItem", "find"]


def _discover() -> dict[str, PaperItem]:
    items = []
    for module in pkgutil.iter_modules(experiments.__path__):
        if module.name not in ("item", "items"):
            item = getattr(importlib.import_module(f"experiments.{module.name}"), "ITEM", None)
            if isinstance(item, PaperItem):
                items.append(item)
    return {item.name: item for item in sorted(items, key=lambda item: (item.order, item.name))}


ITEMS: dict[str, PaperItem] = _discover()


def find(name: str) -> PaperItem:
    """The item of that name; a ``ConfigError`` naming all of them where there is none."""
    if name not in ITEMS:
        raise ConfigError("item", name, f"must be one of {', '.join(ITEMS)}")
    return ITEMS[name]
