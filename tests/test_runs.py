"""One run directory: opening it and where it stands."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from repro.errors import DataError
from repro.runs import Run, Status, load_runs, run_id
from tests.run_cases import names, opened_run
from tests.test_identity import CONFIG, changed

run = opened_run


def test_opening_makes_the_directory_once(tmp_path: Path) -> None:
    run = Run.open(CONFIG, tmp_path)
    assert run.directory == tmp_path / "quick" / "block_s4" / run_id(CONFIG)
    assert names(run.directory) == {"config.yaml"}
    assert run.config == yaml.safe_load(run.config_path.read_text())
    assert run.config["optim"] == {"lr": 0.001, "betas": [0.9, 0.95]}
    before = run.config_path.read_bytes()
    again = Run.open(changed("runtime.threads", 7), tmp_path)
    assert again.directory == run.directory
    assert run.config_path.read_bytes() == before


@pytest.mark.parametrize("dataset", ["/somewhere/books", "~/books", "/somewhere/books/", "/", "~"])
def test_a_run_of_a_local_dataset_is_found_again(tmp_path: Path, dataset: str) -> None:
    """config.yaml keeps the last component of the place; the id must be that of what is kept."""
    config = changed("data.dataset", dataset)
    run = Run.open(config, tmp_path)
    assert run_id(run.config) == run_id(config) == run.run_id
    assert Run.open(config, tmp_path).directory == run.directory
    assert load_runs(tmp_path)["problem"].tolist() == [None]


def test_small_floats_survive_the_config_file(run: Run) -> None:
    assert run.config["model"]["norm_eps"] == 1e-8
    assert run_id(run.config) == run.run_id


def test_a_foreign_directory_is_refused(run: Run, tmp_path: Path) -> None:
    other = Run.open(changed("seed", 9), tmp_path / "other")
    shutil.copy(other.config_path, run.config_path)
    with pytest.raises(DataError, match=f"another config \\({other.run_id}\\)"):
        Run.open(CONFIG, tmp_path)
    assert run.config["seed"] == 9


@pytest.mark.parametrize(
    "damage",
    [
        b"arm: [",
        b"",
        b"- 1\n",
        b"\xff\xfe",
        b"arm: {name: block_s4}\n",
        b"a: !!python/object/apply:os.system ['touch executed']\n",
        b"a: &a [1]\nb: *a\n",
    ],
)
def test_a_corrupt_config_is_kept_aside_and_written_again(
    run: Run, tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good = run.config_path.read_bytes()
    for number in (1, 2):
        run.config_path.write_bytes(damage)
        caplog.clear()
        Run.open(CONFIG, tmp_path)
        assert run.config_path.read_bytes() == good
        assert (run.directory / f"config.yaml.corrupt-{number}").read_bytes() == damage
        assert len(caplog.records) == 1
        assert f"kept aside as config.yaml.corrupt-{number}" in caplog.text
    assert not (tmp_path / "executed").exists()


def test_a_root_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        Run.open(CONFIG, tmp_path / "file")


def test_status_moves_and_remembers_the_step(run: Run) -> None:
    assert run.status == Status("new", 0, 0.0, "")
    run.set_status("running", step=7)
    first = run.status
    assert (first.state, first.step, first.finished) == ("running", 7, False)
    run.set_status("failed", message="out of memory")
    assert (run.status.state, run.status.step, run.status.message) == ("failed", 7, "out of memory")
    assert run.set_status("diverged", step=9).finished
    assert run.set_status("done").finished
    assert run.status.message == ""
    assert run.status.heartbeat >= first.heartbeat > 1e9
    assert set(json.loads(run.status_path.read_text())) == {"state", "step", "heartbeat", "message"}
    with pytest.raises(ValueError, match="paused"):
        run.set_status("paused")
    assert run.status.state == "done"


@pytest.mark.parametrize(
    "damage",
    [
        b'{"state": "running", "st',
        b"",
        b"[]",
        b'"done"',
        b'{"state": "finished", "step": 1}',
        b'{"state": "done", "step": "1"}',
        b'{"state": "done", "heartbeat": "NaN"}',
        b"\x00\x00\x00",
        b"[" * 100_000,
    ],
)
def test_a_damaged_status_counts_as_failed(run: Run, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    run.status_path.write_bytes(damage)
    assert run.status.state == "failed"
    assert (run.directory / "status.json.corrupt-1").read_bytes() == damage
    assert len(caplog.records) == 1
    assert run.status.state == "failed"
    assert len(caplog.records) == 1
