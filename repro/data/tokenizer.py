"""Byte-level BPE trained on the training part, or plain bytes; both turn any text into tokens and back
exactly.

The end-of-text token is the last of the vocabulary. It is never produced from text: a document that happens
to contain ``<|endoftext|>`` is encoded letter by letter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from repro.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryTokenizer

END_OF_TEXT = "<|endoftext|>"
KINDS = ("bpe", "byte")
FILE_NAME = "tokenizer.json"
PIECE_CHARACTERS = 1_000_000

Tokens = npt.NDArray[np.integer[Any]]


class Tokenizer(Protocol):
    """Text to token ids and back; ``end_of_text`` is the last id."""

    kind: str
    vocab_size: int
    end_of_text: int

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Ids of each text, without an end-of-text token."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 become replacement characters."""
        ...

    def token_bytes(self) -> list[int]:
        """Bytes of text that each id stands for [vocab_size]; the end-of-text token stands for none."""
        ...

    def save(self, folder: Path) -> None: ...


class ByteTokenizer:
    """The 256 byte values and the end-of-text token: a vocabulary of 257."""

    kind = "byte"
    vocab_size = 257
    end_of_text = 256

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        parts = (END_OF_TEXT.encode() if i == self.end_of_text else bytes((i,)) for i in ids)
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_bytes(self) -> list[int]:
        return [1] * 256 + [0]

    def save(self, folder: Path) -> None:
        (folder / FILE_NAME).write_text(json.dumps({"kind": self.kind}), encoding="utf-8")


class BPETokenizer:
    """Byte-level byte-pair encoding (pre-split as GPT-2 does), through the `tokenizers` library."""

    kind = "bpe"

    def __init__(self, library: LibraryTokenizer) -> None:
        library.encode_special_tokens = True  # text that spells the end-of-text token stays text
        self._library = library
        self.vocab_size = library.get_vocab_size()
        self.end_of_text = self.vocab_size - 1

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> BPETokenizer:
        """Tokenizer of exactly ``vocab_size`` tokens, end-of-text included; a function of the texts alone."""
        from tokenizers import Tokenizer as LibraryTokenizer
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 257:
            allowed = "an integer of at least 257 (256 bytes and the end-of-text token)"
            raise ConfigError("data.tokenizer.vocab_size", vocab_size, allowed)
        library = LibraryTokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator((piece for text in texts for piece in pieces(text)), trainer)
        if (found := library.get_vocab_size() + 1) != vocab_size:
            allowed = f"the training text yields only {found} tokens; set that or less, or use bytes"
            raise ConfigError("data.tokenizer.vocab_size", vocab_size, allowed)
        library.add_special_tokens([END_OF_TEXT])
        return cls(library)

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        parts = [list(pieces(text)) for text in texts]
        encoded = iter(
            self._library.encode_batch_fast([p for part in parts for p in part], add_special_tokens=False)
        )
        return [
            np.concatenate(
                [np.array(next(encoded).ids, dtype=np.uint32) for _ in part] or [np.empty(0, np.uint32)]
            )
            for part in parts
        ]

    def decode(self, ids: Iterable[int]) -> str:
        return self._library.decode([int(i) for i in ids], skip_special_tokens=False)

    def token_bytes(self) -> list[int]:
        # In the byte-level alphabet each character of a token stands for one byte.
        lengths = [len(self._library.id_to_token(i)) for i in range(self.vocab_size)]
        return [*lengths[:-1], 0]

    def save(self, folder: Path) -> None:
        self._library.save(str(folder / FILE_NAME), pretty=False)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that a shard directory was built with (DataError if its file is missing or damaged)."""
    path = folder / FILE_NAME
    try:
        content = path.read_text(encoding="utf-8")
        if json.loads(content).get("kind") == "byte":
            return ByteTokenizer()
        from tokenizers import Tokenizer as LibraryTokenizer

        return BPETokenizer(LibraryTokenizer.from_str(content))
    except Exception:  # the library raises a bare Exception for a file that is not a tokenizer
        raise DataError(
            f"{path}: not a readable tokenizer; delete {folder} and run again: it is rebuilt"
        ) from None


def vocabulary_digest(folder: Path) -> str:
    """sha256 of the tokenizer file's content, whatever its layout."""
    content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def pieces(text: str, size: int = PIECE_CHARACTERS) -> Iterator[str]:
    """Cut a long text where the pre-tokenizer cuts anyway, so that memory is bounded and the tokens are the
    same.

    Such a place is before a single space between two other characters: only a word's start can match there.
    """
    start = 0
    while len(text) - start > size:
        cut = text.find(" ", start + size)
        while cut != -1 and not (
            cut + 1 < len(text) and not text[cut - 1].isspace() and not text[cut + 1].isspace()
        ):
            cut = text.find(" ", cut + 1)
        if cut == -1:
            break
        yield text[start:cut]
        start = cut
    if start < len(text):
        yield text[start:]
