"""Reading the small records of a run: YAML without tags, JSON, the status. Nothing here changes a file.

Every reader returns what is there, raises FileNotFoundError where there is nothing, DamagedRecord where it is
corrupt and a plain DataError where the file system refuses.
"""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from repro.runs import plain
from repro.runs.atomic import DamagedRecord, read_bytes
from repro.runs.status import Status


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases: a few of them can describe a value that fills the memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases are not used in records")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def yaml_text(value: Any) -> str:
    """YAML text of plain data, keys in the order given."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def read_config(path: str | Path) -> dict[str, Any]:
    """The mapping in a config.yaml, as text says it: tags are refused, interpolations are not followed."""
    text = _text(Path(path))
    try:
        value = deepcopy(_parsed(text))
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedRecord(f"{path}: not plain YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(value, dict):
        raise DamagedRecord(f"{path}: not a mapping")
    return value


@lru_cache(maxsize=1024)
def _parsed(text: str) -> Any:
    """What YAML text says. Kept, since every item reads the config of every run, and parsing takes 5 ms."""
    return yaml.load(text, Loader=_Loader)


def read_json(path: str | Path) -> Any:
    """The value in a JSON file written by a run."""
    text = _text(Path(path))
    try:
        return plain.decode(text)
    except ValueError as error:
        raise DamagedRecord(f"{path}: not JSON ({error})") from None


def read_status(path: str | Path) -> Status:
    """The status in a status.json."""
    value = read_json(path)
    try:
        return Status.from_plain(value)
    except ValueError as error:
        raise DamagedRecord(f"{path}: not a status ({error})") from None


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedRecord(f"{path}: not UTF-8 ({error.reason})") from None
