"""Any Hugging Face text dataset, streamed (``data=hf data.dataset=NAME``); needs the extra `data`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from repro.data.documents import Document, split_of
from repro.errors import ConfigError

READERS = {".json": "json", ".jsonl": "json", ".txt": "text", ".parquet": "parquet", ".csv": "csv"}


class HubDataset:
    """Rows of a dataset as documents, one at a time.

    dataset: a name on the hub, a folder written by ``save_to_disk``, a folder of data files, or one data
    file.
    subset, revision, split: as in ``datasets.load_dataset``.  max_bytes: stop after this much text (None:
    all of it).
    val_split: the dataset's own validation split; None: a row is validation by the hash of its text, so that
    a repeated text stays on one side.
    """

    def __init__(
        self,
        dataset: str | None,
        *,
        subset: str | None = None,
        revision: str | None = None,
        split: str = "train",
        val_split: str | None = None,
        val_fraction: float = 0.001,
        text_column: str = "text",
        max_bytes: int | None = None,
    ) -> None:
        if not dataset:
            raise ConfigError(
                "data.dataset", dataset, "the name of a Hugging Face text dataset, or a local path"
            )
        if not 0 < val_fraction < 1:
            raise ConfigError("data.val_fraction", val_fraction, "a number between 0 and 1")
        self.dataset, self.subset, self.revision = str(dataset), subset, revision
        self.split, self.val_split, self.val_fraction = split, val_split, val_fraction
        self.text_column, self.max_bytes = text_column, max_bytes

    def identity(self) -> dict[str, Any]:
        settings = dict(vars(self))
        if Path(self.dataset).exists():
            settings["dataset"] = _content_digest(Path(self.dataset))
        return settings

    def documents(self) -> Iterator[tuple[str, Document]]:
        if self.val_split is not None:
            for number, text in enumerate(self._texts(self.val_split)):
                yield "val", Document("hf", f"{self.val_split}:{number}", text)
        read = 0
        for number, text in enumerate(self._texts(self.split)):
            side = "train" if self.val_split is not None else split_of(text, self.val_fraction)
            yield side, Document("hf", f"{self.split}:{number}", text)
            read += len(text.encode())
            if self.max_bytes is not None and read >= self.max_bytes:
                return

    def _texts(self, split: str) -> Iterator[str]:
        for row in self._rows(split):
            if self.text_column not in row:
                raise ConfigError("data.text_column", self.text_column, f"one of {', '.join(row)}")
            text = row[self.text_column]
            if not isinstance(text, str):
                raise ConfigError("data.text_column", self.text_column, "a column of strings")
            if text.strip():
                yield text

    def _rows(self, split: str) -> Iterable[dict[str, Any]]:
        try:
            import datasets
        except ImportError:
            remedy = "needs the package `datasets`: pip install 'attnres-repro[data]'"
            raise ConfigError("data.dataset", self.dataset, remedy) from None
        path = Path(self.dataset)
        try:
            if any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
                stored = datasets.load_from_disk(str(path))
                return stored[split] if isinstance(stored, datasets.DatasetDict) else stored
            if path.is_file():
                reader = READERS.get(path.suffix)
                if reader is None:
                    raise ValueError(f"a data file ends in {', '.join(READERS)}")
                return datasets.load_dataset(
                    reader, data_files={split: str(path)}, split=split, streaming=True
                )
            return datasets.load_dataset(
                self.dataset, self.subset, split=split, revision=self.revision, streaming=True
            )
        except (
            Exception
        ) as error:  # the library raises its own, HTTP and file errors alike: all mean "not loadable"
            reason = (str(error).strip().splitlines() or [""])[0]
            remedy = f"cannot be loaded with split {split!r} ({type(error).__name__}: {reason})"
            raise ConfigError("data.dataset", self.dataset, remedy) from None


def _content_digest(path: Path) -> str:
    """sha256 over names and bytes of a file or of all files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        with open(file, "rb") as stream:
            name = file.relative_to(path).as_posix() if path.is_dir() else file.name
            digest.update(f"{name}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
