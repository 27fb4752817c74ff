"""Preparation of shards from every source, Hugging Face datasets among them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from repro.data.hub import HubDataset
from repro.data.prepare import main, prepare
from repro.data.shards import Shards
from repro.data.tokenizer import load_tokenizer
from repro.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[1]
TEXT = "The quick brown fox jumps over the lazy dog; the dog does not mind.\n" * 20


def silent(line: str) -> None:
    pass


def config(name: str, **changes: Any) -> dict[str, Any]:
    """conf/data/<name>.yaml with changes; ``kind`` and ``vocab`` are the tokenizer's."""
    tree = OmegaConf.create(
        {"vocab_size": changes.pop("vocab", 280), "data": OmegaConf.load(ROOT / f"conf/data/{name}.yaml")}
    )
    data: dict[str, Any] = OmegaConf.to_container(tree, resolve=True)["data"]  # type: ignore[index,assignment,call-overload]
    if kind := changes.pop("kind", None):
        data["tokenizer"] = {"kind": kind, "vocab_size": None}
    return {**data, **changes}


# Hugging Face datasets


@pytest.fixture
def rows() -> dict[str, list[str]]:
    return {"body": [f"document {i}, a line of text to be split by its hash" for i in range(300)]}


def test_a_local_dataset_is_streamed_into_shards(tmp_path: Path, rows: dict[str, list[str]]) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in rows["body"]))
    datasets.Dataset.from_dict(rows).to_parquet(str(tmp_path / "rows.parquet"))
    streams = []
    for name in ("saved", "rows.jsonl", "rows.parquet"):
        data = config("hf", dataset=str(tmp_path / name), text_column="body", val_fraction=0.1)
        found = prepare(data, vocab_size=280, cache_dir=tmp_path / "cache", say=silent)
        shards = Shards.open(found.directory)
        tokenizer = load_tokenizer(found.directory)
        texts = [
            tokenizer.decode(shards.tokens[split]).split("<|endoftext|>")[1:-1] for split in ("train", "val")
        ]
        assert sorted(texts[0] + texts[1]) == sorted(rows["body"])
        assert 10 < len(texts[1]) < 60
        streams.append(shards.fingerprint)
    assert len(set(streams)) == 1
    capped = HubDataset(str(tmp_path / "saved"), text_column="body", max_bytes=120)
    assert len(list(capped.documents())) == 3
    own_split = HubDataset(str(tmp_path / "saved"), text_column="body", val_split="train", max_bytes=60)
    assert [split for split, _ in own_split.documents()] == ["val"] * 300 + ["train"] * 2


def test_unusable_datasets_name_the_key(
    tmp_path: Path, rows: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"data\.dataset=None: the name of a Hugging Face"):
        HubDataset(None)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"data\.dataset='x': needs the package `datasets`: pip install"):
        list(HubDataset("x").documents())
    monkeypatch.undo()
    datasets = pytest.importorskip("datasets", reason="the extra `data` is not installed")
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(ConfigError, match=r"data\.text_column='text': one of body"):
        list(HubDataset(str(tmp_path / "saved")).documents())
    (tmp_path / "x.xyz").write_text("x")
    with pytest.raises(ConfigError, match=r"data\.dataset=.*cannot be loaded .*\.jsonl"):
        list(HubDataset(str(tmp_path / "x.xyz")).documents())


# Preparation


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(30):
        (folder / f"{i}.txt").write_text(f"{i}: {TEXT}")
    return folder


def test_shards_hold_the_text_and_are_built_once(tmp_path: Path, texts: Path) -> None:
    lines: list[str] = []
    data = config("files", path=str(texts), val_fraction=0.2)
    first = prepare(data, vocab_size=280, cache_dir=tmp_path / "cache", say=lines.append)
    assert (first.vocab_size, len(first.fingerprint)) == (280, 64)
    assert any("encoded" in line for line in lines)
    shards, tokenizer = Shards.open(first.directory), load_tokenizer(first.directory)
    for split in ("train", "val"):
        stored = tokenizer.decode(shards.tokens[split]).split("<|endoftext|>")
        assert stored[0] == stored[-1] == ""
        assert len(stored) - 2 == len(shards.documents[split]) > 0
        assert all(text.endswith(TEXT) for text in stored[1:-1])
        assert shards.documents[split]["bytes"].tolist() == [len(t.encode()) for t in stored[1:-1]]
    lines.clear()
    assert prepare(data, vocab_size=None, cache_dir=tmp_path / "cache", say=lines.append) == first
    assert len(lines) == 1
    (texts / "0.txt").write_text("changed")
    changed = prepare(data, vocab_size=280, cache_dir=tmp_path / "cache", say=silent)
    assert changed.directory != first.directory
    assert changed.fingerprint != first.fingerprint


def test_the_fingerprint_is_the_same_in_another_process_and_place(tmp_path: Path, texts: Path) -> None:
    here = prepare(config("files", path=str(texts)), vocab_size=280, cache_dir=tmp_path / "cache", say=silent)
    moved = tmp_path / "elsewhere"
    texts.rename(moved)
    script = (
        "import sys, json; from repro.data.prepare import prepare\n"
        "print(prepare(json.loads(sys.argv[1]), vocab_size=280, cache_dir=sys.argv[2], say=len).fingerprint)"
    )
    arguments = [json.dumps(config("files", path=str(moved))), str(tmp_path / "other")]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    outcome = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert outcome.stdout.strip() == here.fingerprint


def test_only_the_training_part_shapes_the_tokenizer(tmp_path: Path) -> None:
    rows = [{"text": TEXT + str(i), "title": f"t{i}"} for i in range(20)]
    found = {}
    for name, extra in (("one", "zyzzyva " * 50), ("two", "qoph qoph " * 50)):
        path = tmp_path / f"{name}.jsonl"
        held_out = {"text": extra, "title": "held out 134"}
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, held_out]))
        prepared = prepare(
            config("files", path=str(path), val_fraction=0.03), vocab_size=280, cache_dir=tmp_path, say=silent
        )
        shards = Shards.open(prepared.directory)
        text = load_tokenizer(prepared.directory).decode(shards.tokens["val"])
        assert extra in text
        found[name] = (prepared.directory / "tokenizer.json").read_bytes()
    assert found["one"] == found["two"]


def test_two_processes_build_once(tmp_path: Path, texts: Path) -> None:
    lines: list[str] = []
    data = config("files", path=str(texts), kind="byte")
    done = prepare(data, vocab_size=None, cache_dir=tmp_path / "other", say=silent)
    directory = tmp_path / "cache" / "shards" / done.directory.name
    directory.parent.mkdir(parents=True)
    waiting = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        waiting.set()

    with FileLock(directory.with_name(directory.name + ".lock")):
        thread = threading.Thread(
            target=prepare,
            args=(data,),
            kwargs={"vocab_size": None, "cache_dir": tmp_path / "cache", "say": say},
        )
        thread.start()
        assert waiting.wait(20)
        assert "another process is building" in lines[0]
        done.directory.rename(directory)  # the other process finishes
    thread.join(20)
    assert not thread.is_alive()
    assert not any("encoded" in line for line in lines)
    # The lock is free again.
    with FileLock(directory.with_name(directory.name + ".lock"), timeout=0):
        pass


def test_a_full_disk_leaves_nothing_half_built(tmp_path: Path, texts: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    data = config("files", path=str(texts), kind="byte")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # 30 documents of 1.4 kB do not fit
    try:
        with pytest.raises(DataError, match=r"cannot be written .* set paths\.data elsewhere") as caught:
            prepare(data, vocab_size=None, cache_dir=tmp_path / "cache", say=silent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "cache" / "shards").iterdir() if p.suffix != ".lock"] == []
    prepare(data, vocab_size=None, cache_dir=tmp_path / "cache", say=silent)


def test_the_rest_of_a_killed_build_is_cleared(tmp_path: Path, texts: Path) -> None:
    data = config("files", path=str(texts), kind="byte")
    first = prepare(data, vocab_size=None, cache_dir=tmp_path, say=silent)
    partial = first.directory.rename(first.directory.with_name(first.directory.name + ".partial"))
    (partial / "train.tokens").write_bytes(b"half")
    assert prepare(data, vocab_size=None, cache_dir=tmp_path, say=silent) == first
    assert not partial.exists()


def test_settings_that_cannot_be_used_name_the_key(tmp_path: Path, texts: Path) -> None:
    def refused(key: str, message: str, vocab_size: int | None, **changes: Any) -> None:
        with pytest.raises(ConfigError) as caught:
            prepare(
                config("files", path=str(texts), **changes),
                vocab_size=vocab_size,
                cache_dir=tmp_path,
                say=silent,
            )
        assert caught.value.key == key
        assert message in str(caught.value)

    refused("data.tokenizer.kind", "one of bpe, byte", 280, kind="words")
    refused("data.source", "one of prose, tech, files, hf, synthetic", 280, source="web")
    refused("model.vocab_size", "must equal data.tokenizer.vocab_size=280", 301)
    refused("model.vocab_size", "must equal data.tokenizer.vocab_size=257", 2048, kind="byte")
    refused("data.tokenizer.vocab_size", "e.g. 2048", None, kind="bpe")
    refused("data.tokenizer.vocab_size", "257 for bytes", None, tokenizer={"kind": "byte", "vocab_size": 300})
    refused("data.tokenizer.vocab_size", "an integer", None, vocab="many")
    refused("data.val_fraction", "between 0 and 1", 280, val_fraction=1.5)
    with pytest.raises(ConfigError, match=r"data\.tokenizer\.vocab_size=4: an integer of at least 8"):
        prepare(
            config("synthetic", tokenizer={"kind": "none", "vocab_size": 4}),
            vocab_size=None,
            cache_dir=tmp_path,
        )


@pytest.mark.parametrize("name", ["prose", "tech", "bytes", "files", "hf", "synthetic"])
def test_every_data_config_states_its_keys(name: str) -> None:
    data = config(name)
    assert data["name"] == name
    assert data["fingerprint"] is None
    assert {"kind", "vocab_size"} <= set(data["tokenizer"])
    for line in (ROOT / f"conf/data/{name}.yaml").read_text().splitlines():
        assert "#" in line or line == "tokenizer:", line


def test_command_line(tmp_path: Path, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["arm=prenorm", "data=files", f"paths.data={tmp_path / 'cache'}", "vocab_size=280"]
    assert main([*common, f"data.path={texts}"]) == 0
    assert Path(capsys.readouterr().out.splitlines()[-1]).is_dir()
    assert main([*common, f"data.path={tmp_path / 'nothing'}"]) == 2
    assert capsys.readouterr().err.startswith("data.path=")
    assert main(["data=nonsense"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
