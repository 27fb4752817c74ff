"""What a run records of its machine, code and command, and what it does not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from repro.runs import command_line, git_state, host_description, project_root, remember_command
from repro.runs.meta import COMMAND
from repro.runs.places import shown

ROOT = Path(__file__).resolve().parents[1]


def test_the_host_is_described_without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "tok-123456")
    monkeypatch.setattr("platform.node", lambda: "the-host-name")
    host = host_description()
    assert set(host) == {"cpu", "cores", "usable_cores", "memory_bytes", "os", "python", "versions"}
    assert host["memory_bytes"] > 10**8
    assert 1 <= host["usable_cores"] <= host["cores"]
    assert host["python"] == ".".join(map(str, sys.version_info[:3]))
    assert host["versions"]["numpy"] == np.__version__
    text = json.dumps(host)
    assert "tok-123456" not in text
    assert "the-host-name" not in text


def test_the_commit_is_that_of_this_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # as inside a hook of another repository
    state = git_state()
    assert set(state) == {"sha", "dirty"}
    if (ROOT / ".git").exists():
        assert len(state["sha"]) == 40
        assert isinstance(state["dirty"], bool)
    monkeypatch.setattr("repro.runs.meta._REPOSITORY", tmp_path)
    assert git_state() == {"sha": None, "dirty": None}


@pytest.mark.parametrize(
    ("words", "recorded"),
    [
        (["/home/me/venv/bin/python", "-m", "repro.train", "arm=full"], "python -m repro.train arm=full"),
        (["data.path=/home/me/books/", "data.files=[/a/b,~/c/d]"], "data.path=books data.files=[b,d]"),
        (["logger.entity=me", "+logger.mode=online", "seed=1"], "seed=1"),
        (["data.token=hf_abc", "wandb.api_key=abc", "budget.tokens=5"], "budget.tokens=5"),
        (["scale=paper/48b", "data.dataset=org/name"], "scale=paper/48b data.dataset=org/name"),
    ],
)
def test_a_command_is_recorded_without_places_and_secrets(words: list[str], recorded: str) -> None:
    assert command_line(words) == recorded


def test_a_worker_records_the_command_of_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND, "")  # restores whatever was there
    monkeypatch.setattr(
        "sys.orig_argv", ["/a/venv/bin/python", "-m", "repro.train", "-m", "seed=1,2", "data.path=/a/b"]
    )
    assert command_line() == "python -m repro.train -m seed=1,2 data.path=b"
    remember_command()
    worker = "from repro.runs import command_line; print(command_line())"
    done = subprocess.run(
        [sys.executable, "-c", worker], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "python -m repro.train -m seed=1,2 data.path=b\n", done.stderr
    monkeypatch.setattr("sys.orig_argv", ["python", "-m", "repro.train", "seed=3"])
    remember_command()  # the next command of this process
    assert command_line() == "python -m repro.train seed=3"
    monkeypatch.setenv(COMMAND, "python data.path=/a/b data.token=abc")  # set by someone else
    assert command_line() == "python data.path=b"


def test_the_project_is_this_checkout_and_a_place_is_shown_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert project_root() == ROOT
    assert shown(tmp_path / "results" / "a.csv") == "results/a.csv"
    assert shown("/etc") == "/etc"
    monkeypatch.setattr("repro.runs.places.__file__", str(tmp_path / "site-packages/repro/runs/places.py"))
    assert project_root() == tmp_path
