"""The user's own text (``data=files``): a .txt file is one document, so is a line of a .jsonl file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repro.data.documents import Document, hash_position, split_of
from repro.errors import ConfigError, DataError

SUFFIXES = (".txt", ".jsonl")


class TextFiles:
    """A file, or every .txt and .jsonl file below a folder, in the order of their names.

    The source of a document is the first folder below ``path`` ("files" where there is none), or the row's
    ``source``. A .jsonl row is an object with ``text_key`` and, if it has one, a ``title``. Documents are
    split by title, or by text where there is none, so that a repeated text stays on one side. If all
    documents fall on one side, the one of smallest hash is the validation part; a lone document gives its
    end.
    """

    def __init__(self, path: str | None, *, text_key: str = "text", val_fraction: float = 0.03) -> None:
        if not path:
            raise ConfigError("data.path", path, "a .txt or .jsonl file, or a folder with such files")
        if not 0 < val_fraction < 1:
            raise ConfigError("data.val_fraction", val_fraction, "a number between 0 and 1")
        self.root, self.text_key, self.val_fraction = Path(path), text_key, val_fraction
        if not self.root.exists():
            raise ConfigError(
                "data.path", path, "no such file or folder; it may be a .txt or .jsonl file or a folder"
            )
        if self.root.is_dir():
            self.paths = sorted(p for p in self.root.rglob("*") if p.suffix in SUFFIXES and p.is_file())
            if not self.paths:
                raise ConfigError("data.path", path, "the folder holds no .txt or .jsonl file")
        else:
            self.paths = [self.root]
            if self.root.suffix not in SUFFIXES:
                raise ConfigError(
                    "data.path", path, "a file must end in .txt (one document) or .jsonl (one a line)"
                )
        if all(p.stat().st_size == 0 for p in self.paths):
            raise ConfigError("data.path", path, "empty: there is no text to train on")
        self._val_position: float | None = None

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        for path in self.paths:
            with open(path, "rb") as file:
                digest.update(f"{self._name(path)}\0".encode() + hashlib.file_digest(file, "sha256").digest())
        return {"files": digest.hexdigest(), "text_key": self.text_key, "val_fraction": self.val_fraction}

    def documents(self) -> Iterator[tuple[str, Document]]:
        titles = {"train": 0, "val": 0}
        smallest, text_found = 1.0, False
        for key, _ in self._read():
            text_found = True
            titles[split_of(key, self.val_fraction)] += 1
            smallest = min(smallest, hash_position(key))
        if not text_found:
            raise ConfigError("data.path", str(self.root), "empty: there is no text to train on")
        if all(titles.values()):
            for key, document in self._read():
                yield split_of(key, self.val_fraction), document
        elif sum(titles.values()) > 1:
            for key, document in self._read():
                yield "val" if hash_position(key) == smallest else "train", document
        else:
            _, document = next(self._read())
            cut = _line_end_after(document.text, int(len(document.text) * (1 - self.val_fraction)))
            yield "train", document._replace(text=document.text[:cut])
            yield "val", document._replace(title=document.title + " (end)", text=document.text[cut:])

    def _read(self) -> Iterator[tuple[str, Document]]:
        """(what the split hashes, document) of every document that is not blank."""
        for path in self.paths:
            name = self._name(path)
            source = name.partition("/")[0] if "/" in name else "files"
            if path.suffix == ".txt":
                text = _decode(path.read_bytes(), path, 0)
                if text.strip():
                    yield text, Document(source, name, text)
            else:
                yield from self._rows(path, name, source)

    def _rows(self, path: Path, name: str, source: str) -> Iterator[tuple[str, Document]]:
        offset = 0
        with open(path, "rb") as lines:
            for number, raw in enumerate(lines, start=1):
                line = _decode(raw, path, offset)
                offset += len(raw)
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    text = row[self.text_key]
                    if not isinstance(text, str):
                        raise TypeError
                    text.encode()  # a lone surrogate is valid JSON but no text
                except (ValueError, KeyError, TypeError):
                    allowed = f'a JSON object with a string under "{self.text_key}" (data.text_key)'
                    raise DataError(f"{path}, line {number}: not {allowed}") from None
                if text.strip():
                    title = row.get("title")
                    document = Document(
                        str(row.get("source", source)), str(title or f"{name}:{number}"), text
                    )
                    yield str(title or text), document

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix() if path != self.root else path.name


def _decode(raw: bytes, path: Path, offset: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = offset + error.start
        raise DataError(
            f"{path}: not UTF-8 at byte {at}; convert the file to UTF-8, e.g. with iconv"
        ) from None


def _line_end_after(text: str, start: int) -> int:
    """Position after the next line end, else after the next space; ``start`` if neither leaves a rest."""
    for mark in ("\n", " "):
        cut = text.find(mark, start) + 1
        if 0 < cut < len(text):
            return cut
    return max(1, min(start, len(text) - 1))
