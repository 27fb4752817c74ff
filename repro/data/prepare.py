"""From a data config to shards on disk: text source, tokenizer, tokens; built once and found again.

    python -m repro.data.prepare data=prose                      # builds what a run of that config would need
    python -m repro.data.prepare data=files data.path=my/texts

The directory ``<cache>/shards/<name>-<tokenizer><vocabulary>-<digest>`` is named by what decides its
content. It is built beside its place and renamed when complete; a lock lets one process build while others
wait.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from repro.data.corpora import WheelCorpus
from repro.data.documents import Document, TextSource
from repro.data.files import TextFiles
from repro.data.hub import HubDataset
from repro.data.shards import FORMAT, VERSION, Shards, ShardWriter
from repro.data.synthetic import SyntheticTokens
from repro.data.tokenizer import KINDS, BPETokenizer, ByteTokenizer, Tokenizer, vocabulary_digest
from repro.errors import ConfigError, DataError

SOURCES = ("prose", "tech", "files", "hf", "synthetic")
ENCODE_BYTES = 2_000_000  # text encoded at once
REPORT_SECONDS = 5.0

Say = Callable[[str], None]


def _print(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True)
class Prepared:
    """Where the shards are, what identifies them, and how many tokens their vocabulary has."""

    directory: Path
    fingerprint: str
    vocab_size: int


def prepare(
    data: Mapping[str, Any], *, vocab_size: int | None, cache_dir: str | os.PathLike[str], say: Say = _print
) -> Prepared:
    """Shards for a data config (conf/data), built if they are not in ``cache_dir`` yet.

    vocab_size: the model's; None to take the data's.
    Errors: ConfigError naming the key (source, path, tokenizer, a vocabulary that is not the model's);
    DataError for a file that cannot be read, is damaged, or cannot be written (then nothing half-built is
    left).
    """
    kind, requested = _tokenizer_settings(data, vocab_size)
    cache = Path(cache_dir).absolute()
    source = _source(data, requested, cache, say)
    key = {
        "format": [FORMAT, VERSION],
        "source": [str(data["source"]), source.identity()],
        "tokenizer": [kind, requested, data["tokenizer"].get("train_bytes") if kind == "bpe" else None],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    directory = cache / "shards" / f"{data['name']}-{kind}{requested}-{digest}"
    if not directory.exists():
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with _lock(directory, say):
                if not directory.exists():
                    _build(directory, source, kind, requested, data["tokenizer"].get("train_bytes"), say)
        except OSError as error:
            remedy = (
                "free some space" if error.errno == errno.ENOSPC else "free some space or mend the rights"
            )
            where = f"{error.strerror or error}; {remedy} or set paths.data elsewhere, then run again"
            raise DataError(f"{directory}: cannot be written ({where})") from None
    shards = Shards.open(directory)
    if vocab_size is not None:
        shards.require_vocab_size(vocab_size)
    train = shards.tokens["train"]
    say(f"data: {directory.name}: {len(train):,} training tokens, fingerprint {shards.fingerprint[:12]}")
    return Prepared(directory, shards.fingerprint, shards.vocab_size)


def _tokenizer_settings(data: Mapping[str, Any], vocab_size: int | None) -> tuple[str, int]:
    """(kind, vocabulary size), the size from the data config, else the model's."""
    kind = data["tokenizer"]["kind"]
    generated = data["source"] == "synthetic"
    allowed = ("none",) if generated else KINDS
    if kind not in allowed:
        raise ConfigError("data.tokenizer.kind", kind, f"one of {', '.join(allowed)}")
    requested = data["tokenizer"].get("vocab_size")
    if requested is None:
        requested = ByteTokenizer.vocab_size if kind == "byte" else vocab_size
    if requested is None:
        raise ConfigError("data.tokenizer.vocab_size", None, "the number of tokens, e.g. 2048")
    if isinstance(requested, bool) or not isinstance(requested, int):
        raise ConfigError("data.tokenizer.vocab_size", requested, "an integer")
    if kind == "byte" and requested != ByteTokenizer.vocab_size:
        raise ConfigError(
            "data.tokenizer.vocab_size", requested, "257 for bytes (256 and the end-of-text token)"
        )
    if vocab_size is not None and vocab_size != requested:
        raise ConfigError("model.vocab_size", vocab_size, f"must equal data.tokenizer.vocab_size={requested}")
    return kind, requested


def _source(data: Mapping[str, Any], vocab_size: int, cache: Path, say: Say) -> TextSource | SyntheticTokens:
    """The source that ``data.source`` names, with the keys of its YAML."""

    def options(*names: str) -> dict[str, Any]:
        return {name: data[name] for name in names if name in data}

    match data["source"]:
        case "prose" | "tech":
            return WheelCorpus(data["source"], cache, say)
        case "files":
            return TextFiles(data.get("path"), **options("text_key", "val_fraction"))
        case "hf":
            names = ("subset", "revision", "split", "val_split", "val_fraction", "text_column", "max_bytes")
            return HubDataset(data.get("dataset"), **options(*names))
        case "synthetic":
            return SyntheticTokens(vocab_size, **options("train_tokens", "val_tokens", "seed"))
    raise ConfigError("data.source", data["source"], f"one of {', '.join(SOURCES)}")


@contextmanager
def _lock(directory: Path, say: Say) -> Iterator[None]:
    """Hold the build lock of a directory."""
    lock = FileLock(directory.with_name(directory.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"data: another process is building {directory.name}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _build(
    directory: Path,
    source: TextSource | SyntheticTokens,
    kind: str,
    vocab_size: int,
    train_bytes: int | None,
    say: Say,
) -> None:
    """Fill a directory beside its final place and rename it; called with the lock held."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
    partial.mkdir()
    writer = None
    try:
        if isinstance(source, SyntheticTokens):
            writer = ShardWriter(partial, vocab_size, source.token_bytes(), kind)
            for split, label, title, tokens, num_bytes in source.documents():
                writer.add(split, label, title, tokens, num_bytes)
            writer.finish("")
        else:
            tokenizer = _tokenizer(source, kind, vocab_size, train_bytes, say)
            tokenizer.save(partial)
            writer = ShardWriter(partial, tokenizer.vocab_size, tokenizer.token_bytes(), kind)
            _encode(source.documents(), tokenizer, writer, say)
            writer.finish(vocabulary_digest(partial))
        partial.rename(directory)
    except BaseException:
        if writer is not None:
            writer.abandon()
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _tokenizer(
    source: TextSource, kind: str, vocab_size: int, train_bytes: int | None, say: Say
) -> Tokenizer:
    if kind == "byte":
        return ByteTokenizer()
    started = time.monotonic()
    say(f"data: training a byte-level BPE of {vocab_size:,} tokens on the training part")
    tokenizer = BPETokenizer.train(_training_texts(source, train_bytes), vocab_size)
    say(f"data: tokenizer trained in {time.monotonic() - started:.1f} s")
    return tokenizer


def _training_texts(source: TextSource, train_bytes: int | None) -> Iterator[str]:
    read = 0
    for split, document in source.documents():
        if split == "train":
            yield document.text
            read += len(document.text.encode())
            if train_bytes is not None and read >= train_bytes:
                return


def _encode(
    documents: Iterator[tuple[str, Document]], tokenizer: Tokenizer, writer: ShardWriter, say: Say
) -> None:
    """Tokens of every document into the writer, a few megabytes of text at a time."""
    started = reported = time.monotonic()
    pending: list[tuple[str, Document]] = []
    size = num_bytes = num_tokens = 0

    def write() -> None:
        nonlocal num_tokens
        encoded = tokenizer.encode([document.text for _, document in pending])
        for (split, document), tokens in zip(pending, encoded, strict=True):
            writer.add(split, document.source, document.title, tokens, len(document.text.encode()))
            num_tokens += len(tokens) + 1
        pending.clear()

    for item in documents:
        pending.append(item)
        size += len(item[1].text)
        num_bytes += len(item[1].text.encode())
        if size >= ENCODE_BYTES:
            write()
            size = 0
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                say(f"data: encoded {num_bytes / 1e6:.1f} MB, {num_tokens:,} tokens")
    write()
    seconds = time.monotonic() - started
    say(f"data: encoded {num_bytes / 1e6:.1f} MB as {num_tokens:,} tokens in {seconds:.1f} s")


def main(overrides: list[str]) -> int:
    """Prepare the data of the training config with these overrides; the exit code."""
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    conf = Path(__file__).resolve().parents[2] / "conf"
    try:
        with initialize_config_dir(str(conf), version_base="1.3"):
            config = compose("train", overrides=overrides)
        cache_dir = Path(config.paths.root or conf.parent) / config.paths.data
        prepared = prepare(config.data, vocab_size=config.model.vocab_size, cache_dir=cache_dir)
    except (ConfigError, DataError, HydraException, OmegaConfBaseException) as error:
        print(str(error).partition("\n")[0], file=sys.stderr)
        return 2
    print(prepared.directory)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
