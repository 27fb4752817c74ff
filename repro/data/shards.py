"""Token shards: one directory per corpus and tokenizer, written once, read by memory map.

    meta.json                      format, fingerprint, counts, tokenizer, sources, bytes per token
    {train,val}.tokens             header, then uint16 (uint32 from 65,537 tokens on), little-endian
    {train,val}.documents          header, then one DOCUMENT record per document
    tokenizer.json                 where the tokens come from text

A token stream is ``<eot> document <eot> document <eot> ...``: every token but the first is the target of the
one before it, and a document's targets are its own tokens and the end-of-text token that closes it.

The fingerprint is a sha256 over the tokens, the document tables and the vocabulary: the same on every
machine, and repeated in each file's header, so that a file from elsewhere is noticed without reading it all.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from repro.data.documents import SPLITS
from repro.errors import ConfigError, DataError

FORMAT, VERSION = "attnres-shards", 1
META_NAME = "meta.json"
MAGIC = b"ATTNRES\0"
HEADER = struct.Struct("<8sIIQ32s8s")  # magic, version, item size, items, fingerprint, role
DOCUMENT = np.dtype([("start", "<u8"), ("tokens", "<u4"), ("bytes", "<u4"), ("id", "<u8"), ("source", "<u4")])
# start: position of the first token in the stream.  tokens: the closing end-of-text token included.
# bytes: of the text.  id: first 8 bytes of sha256(title).  source: index into meta's "sources".
FLUSH_DOCUMENTS = 4096


@dataclass(frozen=True)
class Shards:
    """An opened shard directory; arrays are memory-mapped and read-only.

    tokens: {split: [tokens of the stream]}.  documents: {split: [documents] of DOCUMENT}.
    token_bytes: [vocab_size], bytes of text per token.
    """

    directory: Path
    fingerprint: str
    vocab_size: int
    end_of_text: int
    tokenizer_kind: str
    sources: tuple[str, ...]
    tokens: dict[str, npt.NDArray[Any]]
    documents: dict[str, npt.NDArray[Any]]
    token_bytes: npt.NDArray[np.int64]

    @classmethod
    def open(cls, directory: Path) -> Shards:
        """Check and map a directory (DataError: a file is missing, truncated, damaged or foreign)."""
        directory = Path(directory)
        path = directory / META_NAME
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
            if (meta["format"], meta["version"]) != (FORMAT, VERSION):
                raise ValueError
            fingerprint = str(meta["fingerprint"])
            item_types = {"tokens": np.dtype(meta["dtype"]), "documents": DOCUMENT}
            counts = {(split, what): int(meta[split][what]) for split in SPLITS for what in item_types}
            token_bytes = np.array(meta["token_bytes"], dtype=np.int64)
            sources = tuple(meta["sources"])
            vocab_size, end_of_text = int(meta["vocab_size"]), int(meta["end_of_text"])
            kind = str(meta["tokenizer"])
        except FileNotFoundError:
            raise DataError(f"{path}: missing, so this is no shard directory; {_remedy(directory)}") from None
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}: not a sidecar of {FORMAT} {VERSION}; {_remedy(directory)}") from None
        arrays: dict[str, dict[str, npt.NDArray[Any]]] = {"tokens": {}, "documents": {}}
        for (split, what), count in counts.items():
            file = directory / f"{split}.{what}"
            arrays[what][split] = _map(file, item_types[what], count, fingerprint)
        return cls(
            directory,
            fingerprint,
            vocab_size,
            end_of_text,
            kind,
            sources,
            arrays["tokens"],
            arrays["documents"],
            token_bytes,
        )

    def require_vocab_size(self, vocab_size: int) -> None:
        """ConfigError unless the model's vocabulary is the shards'."""
        if vocab_size != self.vocab_size:
            allowed = (
                f"the data ({self.directory.name}) has {self.vocab_size} tokens; "
                "set data.tokenizer.vocab_size and model.vocab_size alike"
            )
            raise ConfigError("model.vocab_size", vocab_size, allowed)


class ShardWriter:
    """Fills an empty directory with the shards of one corpus; memory does not grow with it."""

    def __init__(self, directory: Path, vocab_size: int, token_bytes: list[int], tokenizer: str) -> None:
        if len(token_bytes) != vocab_size:
            raise ValueError(f"{len(token_bytes)} token lengths for a vocabulary of {vocab_size}")
        self._directory, self._vocab_size, self._token_bytes = directory, vocab_size, token_bytes
        self._tokenizer, self._end_of_text = tokenizer, vocab_size - 1
        self._dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self._sources: dict[str, int] = {}
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._pending: dict[str, list[tuple[int, int, int, int, int]]] = {split: [] for split in SPLITS}
        self._files: dict[str, _Payload] = {}
        for split in SPLITS:
            for what in ("tokens", "documents"):
                self._files[f"{split}.{what}"] = _Payload(directory / f"{split}.{what}")
            self._files[f"{split}.tokens"].append(np.array([self._end_of_text], dtype=self._dtype))

    def add(self, split: str, source: str, title: str, tokens: npt.NDArray[Any], num_bytes: int) -> None:
        """Append a document; the end-of-text token is added here."""
        stream = self._files[f"{split}.tokens"]
        row = np.empty(len(tokens) + 1, dtype=self._dtype)
        row[:-1], row[-1] = tokens, self._end_of_text
        identity = int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "little")
        index = self._sources.setdefault(source, len(self._sources))
        self._pending[split].append((stream.items, len(row), num_bytes, identity, index))
        self._bytes[split] += int(num_bytes)
        stream.append(row)
        if len(self._pending[split]) >= FLUSH_DOCUMENTS:
            self._flush(split)

    def finish(self, vocabulary_digest: str) -> str:
        """Write headers and sidecar; the fingerprint.  DataError: a side has no document."""
        for split in SPLITS:
            self._flush(split)
            if self._files[f"{split}.documents"].items == 0:
                raise DataError(
                    f"{self._directory.name}: no document on the {split} side; give more documents"
                )
        meta: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "dtype": self._dtype.str,
            "tokenizer": self._tokenizer,
            "vocab_size": self._vocab_size,
            "end_of_text": self._end_of_text,
            "sources": list(self._sources),
            "token_bytes": self._token_bytes,
        }
        for split in SPLITS:
            counts = {what: self._files[f"{split}.{what}"].items for what in ("tokens", "documents")}
            meta[split] = {**counts, "bytes": self._bytes[split]}
        content = {name: payload.digest.hexdigest() for name, payload in self._files.items()}
        identity = json.dumps([meta, content, vocabulary_digest], sort_keys=True)
        meta["fingerprint"] = hashlib.sha256(identity.encode()).hexdigest()
        for name, payload in self._files.items():
            payload.close(meta["fingerprint"], name)
        text = json.dumps(meta, ensure_ascii=False)
        (self._directory / META_NAME).write_text(text + "\n", encoding="utf-8")
        return meta["fingerprint"]

    def abandon(self) -> None:
        """Close the files without completing them."""
        for payload in self._files.values():
            payload.abandon()

    def _flush(self, split: str) -> None:
        self._files[f"{split}.documents"].append(np.array(self._pending[split], dtype=DOCUMENT))
        self._pending[split].clear()


class _Payload:
    """A file that begins with a header, known only at the end, and its content's digest."""

    def __init__(self, path: Path) -> None:
        self.items, self.item_size = 0, 0
        self.digest = hashlib.sha256()
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115  closed by close() or abandon()
        self._file.write(bytes(HEADER.size))

    def append(self, items: npt.NDArray[Any]) -> None:
        raw = items.tobytes()
        self._file.write(raw)
        self.digest.update(raw)
        self.items += len(items)
        self.item_size = items.itemsize

    def close(self, fingerprint: str, name: str) -> None:
        self._file.seek(0)
        fields = (self.item_size, self.items, bytes.fromhex(fingerprint), _role(name))
        self._file.write(HEADER.pack(MAGIC, VERSION, *fields))
        self._file.close()

    def abandon(self) -> None:
        try:
            self._file.close()
        except OSError:
            self._file.close()  # the first wrote what was buffered, and failed; the second lets go


def _map(path: Path, dtype: np.dtype[Any], count: int, fingerprint: str) -> npt.NDArray[Any]:
    """Read-only map of a payload after its size and header were compared with the sidecar."""
    remedy = _remedy(path.parent)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            raw = file.read(HEADER.size)
    except FileNotFoundError:
        raise DataError(f"{path}: missing; {remedy}") from None
    if not raw.startswith(MAGIC):
        raise DataError(f"{path}: not a token shard; {remedy}")
    expected = HEADER.size + count * dtype.itemsize
    if size != expected:
        state = "truncated" if size < expected else "too long"
        raise DataError(f"{path}: {state} ({size:,} bytes instead of {expected:,}); {remedy}")
    if raw != HEADER.pack(
        MAGIC, VERSION, dtype.itemsize, count, bytes.fromhex(fingerprint), _role(path.name)
    ):
        raise DataError(f"{path}: belongs to another corpus or split; {remedy}")
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", offset=HEADER.size, shape=(count,)))


def _role(name: str) -> bytes:
    split, _, what = name.partition(".")
    return f"{split[:2]}.{what[:5]}".encode()


def _remedy(directory: Path) -> str:
    return f"delete {directory} and run again: it is rebuilt"
