"""Damaged records of a run: kept aside, told in one line, and made again with the same bits."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import STEPS, Zygote, json_of, only_run, records, stop_before, train


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("elsewhere")) as started:
        yield started


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of block_s2 that failed before step 6, with a checkpoint of step 6."""
    root = tmp_path_factory.mktemp("halfway")
    with pytest.MonkeyPatch.context() as patch:
        stop_before(patch, 6)
        assert train(root, "arm=block_s2", "runtime.checkpoint_seconds=0") == 1
    return root


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("finished")
    assert train(root, "arm=block_s2", "runtime.checkpoint_seconds=0") == 0
    return root


class Exploit:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00garbage" * 100)


def middle_line(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[len(lines) // 2] = b'{"step": '
    path.write_bytes(b"\n".join(lines))


def lost_lines(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def exploit(path: Path) -> None:
    torch.save({"global_step": 6, "records": {}, "x": Exploit(path.parent / "executed")}, path)


def foreign(path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, path)


@pytest.mark.parametrize(
    ("name", "damage", "goes_on"),
    [
        ("checkpoints/last.ckpt", half, False),
        ("checkpoints/last.ckpt", garbage, False),
        ("checkpoints/last.ckpt", foreign, False),
        ("checkpoints/last.ckpt", exploit, False),
        ("status.json", half, True),
        ("status.json", garbage, True),
        ("metrics.jsonl", middle_line, False),
        ("metrics.jsonl", lost_lines, False),
        ("depth_weights.npz", half, False),
        ("depth_norms.npz", garbage, False),
        ("timings.jsonl", middle_line, True),
        ("config.yaml", garbage, True),
        ("meta.json", half, True),
    ],
)
def test_damage_to_an_unfinished_run(
    halfway: Path,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Callable[[Path], None],
    goes_on: bool,
) -> None:
    """Kept aside and reported; what can still be used is, and the end is the same."""
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path)
    damaged = run.directory / name
    damage(damaged)
    wrong = damaged.read_bytes()
    assert train(tmp_path, "arm=block_s2", "runtime.checkpoint_seconds=0") == 0
    assert ("going on from step 6" in capsys.readouterr().out) == goes_on
    if name != "meta.json":  # written anew at every start, never read by training
        aside = damaged.with_name(f"{damaged.name}.corrupt-1")
        assert aside.read_bytes() == wrong
        assert f"kept aside as {aside.name}" in caplog.text
    assert records(run) == records(only_run(finished))
    assert not list(run.directory.rglob("executed"))


@pytest.mark.parametrize(
    ("name", "damage", "retrained"),
    [
        ("final.json", half, False),
        ("val_losses.npz", garbage, False),
        ("status.json", half, False),
        ("metrics.jsonl", middle_line, True),
        ("depth_weights.npz", half, True),
    ],
)
def test_damage_to_a_finished_run(
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Callable[[Path], None],
    retrained: bool,
) -> None:
    """Results are made again from the last checkpoint, records of training by training."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path)
    damage(run.directory / name)
    assert train(tmp_path, "arm=block_s2", "runtime.checkpoint_seconds=0") == 0
    assert f"kept aside as {name}.corrupt-1" in caplog.text
    assert (f"going on from step {STEPS}" in capsys.readouterr().out) != retrained
    assert records(run) == records(only_run(finished))
    assert json_of(run, "status")["state"] == "done"


def test_damage_is_told_on_stderr(zygote: Zygote, halfway: Path, tmp_path: Path) -> None:
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    garbage(only_run(tmp_path).checkpoint)
    process = zygote.start(tmp_path, "arm=block_s2")
    assert process.wait() == 0
    (line,) = process.err.splitlines()
    assert line.startswith(str(only_run(tmp_path).checkpoint))
    assert line.endswith("kept aside as last.ckpt.corrupt-1")


def test_a_half_written_last_line_is_dropped(halfway: Path, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path)
    with run.metrics_path.open("a") as file:
        file.write('{"step": 7, "kind": "tr')
    assert train(tmp_path, "arm=block_s2") == 0
    assert records(run) == records(only_run(finished))
    assert not list(run.directory.glob("*.corrupt-*"))


def test_without_a_checkpoint_training_starts_from_nothing(
    halfway: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(halfway, tmp_path, dirs_exist_ok=True)
    run = only_run(tmp_path)
    run.checkpoint.unlink()
    assert train(tmp_path, "arm=block_s2") == 0
    assert records(run) == records(only_run(finished))
