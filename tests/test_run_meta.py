"""What a run records of its machine, code and command, and what it does not."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from repro.runs import (
    command_line,
    git_state,
    host_description,
)

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
