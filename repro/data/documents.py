"""What every text source yields, and the rule that sends a document to training or to validation."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

SPLITS = ("train", "val")


class Document(NamedTuple):
    """One document: where it is from (losses are reported per source), its title, its text."""

    source: str
    title: str
    text: str


class TextSource(Protocol):
    """Documents that can be read more than once: for the tokenizer, then for the token files."""

    def identity(self) -> dict[str, Any]:
        """What decides the text, as plain data: names the cache directory, the same on every machine."""
        ...

    def documents(self) -> Iterator[tuple[str, Document]]:
        """(split, document) in a fixed order."""
        ...


def hash_position(title: str) -> float:
    """Where a title falls in [0, 1), uniformly: the first four bytes of its sha256."""
    return int.from_bytes(hashlib.sha256(title.encode()).digest()[:4], "big") / 2**32


def split_of(title: str, val_fraction: float) -> str:
    """Side of a document, from its title alone: equal titles never land on both sides."""
    return "val" if hash_position(title) < val_fraction else "train"
