"""Token shards, training batches, validation windows and the reduction of losses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import lightning
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from repro.data.batches import IGNORE, Batches, ValidationWindows, add_document_losses, spread
from repro.data.losses import summarise
from repro.data.module import TokenData
from repro.data.shards import Shards, ShardWriter
from repro.errors import ConfigError, DataError

# Vocabulary of 8: ids 0..6 stand for 1..7 bytes of text, 7 ends a document.
TOKEN_BYTES = [1, 2, 3, 4, 5, 6, 7, 0]


def build(folder: Path, train: list[list[int]], val: list[tuple[str, list[int]]]) -> Shards:
    folder.mkdir()
    writer = ShardWriter(folder, 8, TOKEN_BYTES, "none")
    for i, tokens in enumerate(train):
        writer.add("train", "a", f"train {i}", np.array(tokens), sum(t + 1 for t in tokens))
    for i, (source, tokens) in enumerate(val):
        writer.add("val", source, f"val {i}", np.array(tokens), sum(t + 1 for t in tokens))
    writer.finish("")
    return Shards.open(folder)


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    # Training stream: 7 0123456 7 0123456 7 ... : 25 tokens, 24 targets.
    return build(tmp_path / "s", [[0, 1, 2, 3, 4, 5, 6]] * 3, [("a", [0, 1, 2]), ("b", [3]), ("a", [4, 5])])


def test_stream_and_document_table(shards: Shards) -> None:
    assert shards.tokens["val"].tolist() == [7, 0, 1, 2, 7, 3, 7, 4, 5, 7]
    assert shards.tokens["val"].dtype == np.dtype("<u2")
    table = shards.documents["val"]
    assert table["start"].tolist() == [1, 5, 7]
    assert table["tokens"].tolist() == [4, 2, 3]
    assert table["bytes"].tolist() == [6, 4, 11]
    assert [shards.sources[i] for i in table["source"]] == ["a", "b", "a"]
    # First eight bytes of sha256("val 0"), little-endian.
    assert int(table["id"][0]) == int.from_bytes(bytes.fromhex("5eeb713ddbfbacac"), "little")
    assert not shards.tokens["val"].flags.writeable


def test_more_than_65536_tokens_take_four_bytes(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 65_537, [1] * 65_536 + [0], "none")
    for split in ("train", "val"):
        writer.add(split, "a", "b", np.array([65_535]), 1)
    writer.finish("")
    stream = Shards.open(tmp_path).tokens["train"]
    assert (stream.tolist(), stream.dtype) == ([65_536, 65_535, 65_536], np.dtype("<u4"))


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    val = [("a", [1])]
    same = {build(tmp_path / name, [[0, 1, 2]], val).fingerprint for name in ("one", "two")}
    assert same == {
        "124e1f4b0920a5e08261b181923e0e45ce8db596239bcdbee63959b78cffe6b8"
    }  # recorded; no machine may differ
    assert build(tmp_path / "three", [[0, 1, 3]], val).fingerprint not in same
    assert build(tmp_path / "four", [[0, 1, 2]], [("b", [1])]).fingerprint not in same


def test_damaged_shards_are_named_with_the_remedy(tmp_path: Path, shards: Shards) -> None:
    folder = shards.directory
    tokens = folder / "train.tokens"
    whole = tokens.read_bytes()
    remedy = rf"delete {folder} and run again"

    def refused(pattern: str) -> None:
        with pytest.raises(DataError, match=pattern + ".*" + remedy) as caught:
            Shards.open(folder)
        assert "\n" not in str(caught.value)

    tokens.write_bytes(whole[:-2])
    refused(r"train\.tokens: truncated \(112 bytes instead of 114\)")
    tokens.write_bytes(whole[:40])
    refused(r"train\.tokens: truncated")
    tokens.write_bytes(b"#!/bin/sh\n" + whole[10:])
    refused(r"train\.tokens: not a token shard")
    other = build(tmp_path / "other", [[6, 5, 4, 3, 2, 1, 0]] * 3, [("a", [1])]).directory
    tokens.write_bytes((other / "train.tokens").read_bytes())
    refused(r"train\.tokens: belongs to another corpus or split")
    tokens.unlink()
    refused(r"train\.tokens: missing")
    tokens.write_bytes(whole)
    assert len(Shards.open(folder).tokens["train"]) == 25
    meta = folder / "meta.json"
    content = json.loads(meta.read_text())
    meta.write_text(json.dumps({**content, "version": 99}))
    refused(r"meta\.json: not a sidecar")
    meta.write_text(meta.read_text()[:50])
    refused(r"meta\.json: not a sidecar")
    meta.unlink()
    refused(r"meta\.json: missing")


def test_vocabulary_of_model_and_shards_must_agree(shards: Shards) -> None:
    shards.require_vocab_size(8)
    with pytest.raises(ConfigError, match=r"model\.vocab_size=9: .* has 8 tokens"):
        shards.require_vocab_size(9)


def test_a_side_without_documents_is_an_error(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, 8, TOKEN_BYTES, "none")
    writer.add("train", "a", "b", np.array([1]), 2)
    with pytest.raises(DataError, match="no document on the val side"):
        writer.finish("")
    writer.abandon()


# Batches


def philox(key: tuple[int, int], count: int) -> list[int]:
    """Philox 4x64, 10 rounds (Salmon et al., 2011), counters 1, 2, ...: written here from the paper."""
    mask, out = 2**64 - 1, []
    for counter in range(1, -(-count // 4) + 1):
        c, k = [counter, 0, 0, 0], list(key)
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        out += c
    return out[:count]


def test_batch_k_is_the_order_of_counter_based_bits(shards: Shards) -> None:
    batches = Batches(shards, context=3, batch_size=3, seed=5)  # 24 targets: eight windows
    assert batches.tokens_per_epoch == 24
    stream = ([7, 0, 1, 2, 3, 4, 5, 6] * 3) + [7]
    order: list[int] = []
    for epoch in range(3):
        bits = philox((5, epoch), 8)
        order += sorted(range(8), key=bits.__getitem__)
    for k in range(8):
        inputs, targets = batches.batch(k)
        windows = order[3 * k : 3 * k + 3]
        assert inputs.tolist() == [stream[3 * w : 3 * w + 3] for w in windows]
        assert targets.tolist() == [stream[3 * w + 1 : 3 * w + 4] for w in windows]
        assert inputs.dtype == targets.dtype == torch.int64
    assert [batches.epoch(k) for k in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


def test_batches_do_not_depend_on_what_was_read_before(tmp_path: Path) -> None:
    shards = build(tmp_path / "s", [list(np.arange(500) % 7)], [("a", [1])])
    one, other = Batches(shards, 8, 4, seed=1), Batches(shards, 8, 4, seed=1)
    forwards = {k: one.batch(k)[0] for k in (0, 1, 20, 40)}
    for k in (40, 0, 20, 1):
        assert torch.equal(other.batch(k)[0], forwards[k])
    assert not torch.equal(Batches(shards, 8, 4, seed=2).batch(0)[0], forwards[0])


def test_each_epoch_sees_every_window_once(tmp_path: Path) -> None:
    shards = build(tmp_path / "s", [[i // 36 % 6, i // 6 % 6, i % 6] for i in range(100)], [("a", [1])])
    batches = Batches(shards, context=4, batch_size=10, seed=0)
    assert batches.num_windows == 100
    seen = []
    for first in (0, 10):
        rows = torch.cat([batches.batch(k)[0] for k in range(first, first + 10)])
        seen.append(sorted(map(tuple, rows.tolist())))
        assert len(set(seen[-1])) == 100
    assert seen[0] == seen[1]
    assert not torch.equal(batches.batch(0)[0], batches.batch(10)[0])


def test_a_batch_larger_than_the_corpus_repeats_it(shards: Shards) -> None:
    inputs, _ = Batches(shards, context=24, batch_size=3, seed=0).batch(0)
    assert inputs.shape == (3, 24)
    assert torch.equal(inputs[0], inputs[2])


def test_unusable_batches_name_the_key(shards: Shards) -> None:
    assert Batches(shards, 24, 1, 0).num_windows == 1
    with pytest.raises(ConfigError, match=r"budget\.context=25: longer than .* has 24 targets"):
        Batches(shards, 25, 1, 0)
    for key, arguments in {
        "budget.context": (0, 1, 0),
        "budget.batch_size": (4, 0, 0),
        "data_seed": (4, 1, -1),
    }.items():
        with pytest.raises(ConfigError) as caught:
            Batches(shards, *arguments)
        assert caught.value.key == key


# Validation


def test_windows_cover_every_target_once_with_its_document(shards: Shards) -> None:
    windows = ValidationWindows(shards, context=4, batch_size=2)
    (inputs, targets, documents), (tail_inputs, tail_targets, _) = list(windows)
    assert inputs.tolist() == [[7, 0, 1, 2], [7, 3, 7, 4]]
    assert targets.tolist() == [[0, 1, 2, 7], [3, 7, 4, 5]]
    assert documents.tolist() == [[0, 0, 0, 0], [1, 1, 2, 2]]
    assert tail_inputs.tolist() == [[5, 7, 7, 7]]
    assert tail_targets.tolist() == [[7, IGNORE, IGNORE, IGNORE]]
    assert windows.tokens.tolist() == [4, 2, 3]
    assert windows.num_bytes.tolist() == [6, 4, 11]
    assert windows.source.tolist() == ["a", "b", "a"]
    assert len(windows) == 2


def test_subset_counts_only_its_own_targets(shards: Shards) -> None:
    windows = ValidationWindows(shards, context=4, limit_windows=2)
    # Windows begin in documents a, b, a: one of each source, the later one of a.
    assert windows.windows.tolist() == [1, 2]
    assert windows.tokens.tolist() == [0, 2, 3]
    assert windows.num_bytes.tolist() == [0, 4, 11]
    assert ValidationWindows(shards, context=4, limit_windows=99).windows.tolist() == [0, 1, 2]


def test_ranks_share_the_windows(shards: Shards) -> None:
    ranks = [ValidationWindows(shards, context=4, rank=r, world=2) for r in range(2)]
    targets = [torch.cat([t for _, t, _ in rank]).tolist() for rank in ranks]
    assert [row[0] for row in targets[0]] == [0, 7]
    assert [row[0] for row in targets[1]] == [3]
    assert ranks[0].tokens.tolist() == ranks[1].tokens.tolist() == [4, 2, 3]


def test_spread_gives_every_group_its_share() -> None:
    group = np.array([2] * 60 + [0] * 30 + [1] * 10)
    # 60, 30 and 10 of a hundred, ten chosen: six, three, one, each in the middle of its stretch.
    assert spread(group, 10).tolist() == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
    lopsided = np.array([0] * 97 + [1, 2, 3])
    assert spread(lopsided, 4).tolist() == [48, 97, 98, 99]
    assert len(spread(lopsided, 2)) == 2
    for limit in range(1, 100):
        chosen = spread(lopsided, limit)
        assert len(set(chosen.tolist())) == limit


def test_padding_adds_nothing_to_the_sums() -> None:
    sums = torch.zeros(3, dtype=torch.float64)
    losses = torch.tensor([[1.0, 2.0, 4.0], [8.0, 16.0, float("nan")]])
    targets = torch.tensor([[5, 5, 5], [5, 5, IGNORE]])
    add_document_losses(sums, losses, targets, torch.tensor([[0, 0, 2], [2, 2, 0]]))
    assert sums.tolist() == [3.0, 0.0, 28.0]


def test_summary_of_document_losses() -> None:
    scores = summarise([8.0, 2.0, 0.0, 6.0], [4, 2, 0, 4], [16, 2, 0, 4], ["b", "a", "c", "a"])
    log2 = math.log(2)
    assert scores["loss"] == pytest.approx(1.6)
    assert scores["bpb"] == pytest.approx(16 / 22 / log2)
    assert scores["by_source"] == {
        "a": {"loss": pytest.approx(8 / 6), "bpb": pytest.approx(8 / 6 / log2)},
        "b": {"loss": pytest.approx(2.0), "bpb": pytest.approx(0.5 / log2)},
    }
    assert math.isnan(summarise([], [], [], [])["loss"])
    with pytest.raises(ValueError, match="shapes differ"):
        summarise([1.0], [1, 2], [1], ["a"])


# Lightning


def test_processes_and_accumulation_do_not_change_a_step(shards: Shards) -> None:
    whole, _ = Batches(shards, 4, 8, seed=3).batch(7)
    rows = []
    for rank in range(2):
        data = TokenData(shards, context=4, batch_size=8, data_seed=3, accumulate=2)
        data.trainer = cast(lightning.Trainer, SimpleNamespace(global_step=7, global_rank=rank, world_size=2))
        parts = iter(data.train_dataloader())
        for _ in range(2):
            inputs, targets = next(parts)
            assert inputs.shape == targets.shape == (2, 4)
            rows.append(inputs)
    assert sorted(torch.cat(rows).tolist()) == sorted(whole.tolist())
    data = TokenData(shards, context=4, batch_size=9, data_seed=3, accumulate=2)
    data.trainer = cast(lightning.Trainer, SimpleNamespace(global_step=0, global_rank=0, world_size=1))
    with pytest.raises(ConfigError, match=r"budget\.batch_size=9: a multiple of .* 1 x 2"):
        data.train_dataloader()


class Recorder(lightning.LightningModule):
    """Keeps the batches it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[list[list[int]]] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        self.seen.append(batch[0].tolist())
        return self.layer(torch.ones(1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_resumed_fit_goes_on_with_the_next_batch(shards: Shards, tmp_path: Path) -> None:
    def fit(steps: int, checkpoint: Path | None) -> tuple[Recorder, lightning.Trainer]:
        module = Recorder()
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        )  # fmt: skip
        data = TokenData(shards, context=4, batch_size=2, data_seed=0, accumulate=2)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        return module, trainer

    whole, _ = fit(6, None)
    first, trainer = fit(2, None)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second, _ = fit(6, tmp_path / "last.ckpt")
    assert len(whole.seen) == 12
    assert first.seen + second.seen == whole.seen


def test_a_limit_of_windows_is_the_fixed_subset(shards: Shards) -> None:
    ((inputs, _, documents),) = list(ValidationWindows(shards, 4, 2, batch_size=2))
    assert inputs.tolist() == [[7, 3, 7, 4], [5, 7, 7, 7]]
    assert documents.tolist()[0] == [1, 1, 2, 2]
    assert len(list(ValidationWindows(shards, 4, None, batch_size=2))) == 2
