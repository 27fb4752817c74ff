"""Tokenizers, the user's own text, and generated tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data.files import TextFiles
from repro.data.synthetic import SyntheticTokens
from repro.data.tokenizer import BPETokenizer, ByteTokenizer, load_tokenizer, pieces
from repro.errors import ConfigError, DataError

TEXT = "The quick brown fox jumps over the lazy dog; the dog does not mind.\n" * 20


# Tokenizers

BPE = BPETokenizer.train([TEXT], 280)


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_round_trip(text: str) -> None:
    for tokenizer in (BPE, ByteTokenizer()):
        (ids,) = tokenizer.encode([text])
        assert tokenizer.decode(ids) == text
        sizes = np.array(tokenizer.token_bytes())
        assert sizes[ids.astype(int)].sum() == len(text.encode())
        assert tokenizer.end_of_text not in ids


def test_byte_tokens_are_the_bytes() -> None:
    (ids,) = ByteTokenizer().encode(["hé\n"])
    assert ids.tolist() == [104, 195, 169, 10]
    assert ByteTokenizer().decode([104, 105, 256]) == "hi<|endoftext|>"


def test_bpe_merges_and_reserves_the_last_id() -> None:
    assert (BPE.vocab_size, BPE.end_of_text) == (280, 279)
    (ids,) = BPE.encode([" the"])
    assert len(ids) == 1
    assert BPE.decode([*ids, 279]) == " the<|endoftext|>"
    (spelled,) = BPE.encode(["<|endoftext|>"])
    assert 279 not in spelled
    assert len(spelled) > 5


def test_a_text_cut_into_pieces_has_the_same_tokens() -> None:
    text = "  It's  a dog's\tlife,  \n\n isn't it ?  12 3 \n" * 9 + "x" * 40 + " end  "
    (whole,) = BPE.encode([text])
    for size in range(1, 40):
        parts = list(pieces(text, size))
        assert "".join(parts) == text
        assert len(parts) > 3
        assert np.concatenate(BPE.encode(parts)).tolist() == whole.tolist()


def test_training_text_must_yield_the_vocabulary() -> None:
    with pytest.raises(
        ConfigError, match=r"data\.tokenizer\.vocab_size=5000: the training text yields only \d+ tokens"
    ):
        BPETokenizer.train([TEXT], 5000)
    for bad in (256, True, 300.0):
        with pytest.raises(ConfigError, match="at least 257"):
            BPETokenizer.train([TEXT], bad)  # type: ignore[arg-type]


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    BPE.save(tmp_path)
    assert load_tokenizer(tmp_path).encode([TEXT])[0].tolist() == BPE.encode([TEXT])[0].tolist()
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(DataError, match=r"tokenizer\.json: not a readable tokenizer; delete"):
        load_tokenizer(tmp_path)


# The user's own files


def read(path: Path, **options: Any) -> list[tuple[str, str, str, str]]:
    return [(split, *document) for split, document in TextFiles(str(path), **options).documents()]


def test_a_folder_of_txt_and_jsonl(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes("one\r\ntwo é".encode())
    (tmp_path / "b" / "c.jsonl").write_text(
        '{"text": "three"}\n\n{"text": "four", "title": "T", "source": "s", "other": 1}\n{"text": "  "}\n'
    )
    (tmp_path / "ignored.md").write_text("no")
    rows = read(tmp_path, val_fraction=0.5)
    assert [row[1:] for row in rows] == [
        ("files", "a.txt", "one\r\ntwo é"),
        ("b", "b/c.jsonl:1", "three"),
        ("s", "T", "four"),
    ]
    # sha256 begins with 7e (first text), 8b (second text) and e6 (title T): below 80 is validation.
    assert [row[0] for row in rows] == ["val", "train", "train"]


def test_repeated_texts_stay_on_one_side(tmp_path: Path) -> None:
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"text {i % 10}")
    sides: dict[str, set[str]] = {}
    for split, _, _, text in read(tmp_path, val_fraction=0.3):
        sides.setdefault(text, set()).add(split)
    assert [len(found) for found in sides.values()] == [1] * 10
    assert {split for found in sides.values() for split in found} == {"train", "val"}


def test_few_documents_still_have_two_sides(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    # sha256 begins with ca (a), 3e (b), 2e (c): the smallest is c, and none is below 0.03.
    assert [row[0] for row in read(tmp_path)] == ["train", "train", "val"]
    (tmp_path / "a.txt").write_text("first line\nsecond line\nthird line\n")
    rows = read(tmp_path / "a.txt", val_fraction=0.4)
    assert rows == [
        ("train", "files", "a.txt", "first line\nsecond line\n"),
        ("val", "files", "a.txt (end)", "third line\n"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (None, None, "a .txt or .jsonl file, or a folder"),
        ("missing", None, "no such file or folder"),
        ("folder", {}, "the folder holds no .txt or .jsonl file"),
        ("folder", {"a.md": b"x"}, "the folder holds no .txt or .jsonl file"),
        ("folder", {"a.txt": b"", "b.jsonl": b""}, "empty"),
        ("folder", {"a.txt": b" \n"}, "empty"),
        ("a.txt", b"", "empty"),
        ("a.md", b"x", "must end in .txt"),
    ],
)
def test_an_unusable_path_names_the_key(tmp_path: Path, name: str | None, content: Any, message: str) -> None:
    path = tmp_path / name if name else None
    if isinstance(content, dict):
        tmp_path.joinpath("folder").mkdir()
        for file, raw in content.items():
            (tmp_path / "folder" / file).write_bytes(raw)
    elif content is not None:
        (tmp_path / str(name)).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        list(TextFiles(str(path) if path else None).documents())
    assert caught.value.key == "data.path"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_text_names_file_and_place(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xe9d")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 at byte 3; convert"):
        read(tmp_path / "a.txt")
    rows = tmp_path / "a.jsonl"
    first = b'{"text": "good"}\n'
    rows.write_bytes(first + b'{"text": "b\xff"}\n')
    with pytest.raises(DataError, match=rf"a\.jsonl: not UTF-8 at byte {len(first) + 11};"):
        read(rows)
    for bad in (b"{", b"[1]", b'{"body": "x"}', b'{"text": 3}', b'"text"', b'{"text": "\\ud800"}'):
        rows.write_bytes(first + bad + b"\n")
        with pytest.raises(
            DataError, match=r'a\.jsonl, line 2: not a JSON object with a string under "text"'
        ):
            read(rows)
    rows.write_bytes(b'{"body": "x y"}\n')
    assert "".join(row[3] for row in read(rows, text_key="body")) == "x y"


# Generated tokens


def test_synthetic_tokens_have_the_stated_structure(tmp_path: Path) -> None:
    documents = list(SyntheticTokens(64, train_tokens=40_000, val_tokens=500, seed=1).documents())
    markov = np.stack([t for split, source, _, t, _ in documents if (split, source) == ("train", "markov")])
    copy = np.stack([t for _, source, _, t, _ in documents if source == "copy"])
    assert (copy[:, :32] == copy[:, 32:]).all()
    assert copy.min() == 0
    assert copy.max() == 62
    successors: dict[int, set[int]] = {a: set() for a in range(63)}
    for a, b in zip(markov[:, :-1].ravel(), markov[:, 1:].ravel(), strict=True):
        successors[int(a)].add(int(b))
    assert max(len(found) for found in successors.values()) <= 4
    counts = np.zeros((63, 63))
    np.add.at(counts, (markov[:, :-1].ravel(), markov[:, 1:].ravel()), 1)
    share = counts / counts.sum(1, keepdims=True).clip(1)
    entropy = -(counts * np.log(np.where(share > 0, share, 1))).sum() / counts.sum()
    assert entropy == pytest.approx(1.213, abs=0.06)  # 1.75 bits, less where successors coincide
    again = list(SyntheticTokens(64, train_tokens=40_000, val_tokens=500, seed=1).documents())
    assert all((a[3] == b[3]).all() for a, b in zip(documents, again, strict=True))
    other = list(SyntheticTokens(64, train_tokens=40_000, val_tokens=500, seed=2).documents())
    assert not (documents[1][3] == other[1][3]).all()
