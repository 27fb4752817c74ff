"""The command that counts a step's memory: two arms at smoke, and nothing measured twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.step_memory import read_step_memory
from repro.bench import step_memory


def test_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["arm=full", "scale=smoke", f"paths.results={tmp_path}"]
    assert step_memory.main(command) == 0
    path = tmp_path / "smoke/step_memory.csv"
    found = read_step_memory(path)
    assert list(found) == ["prenorm", "full"]
    assert found["prenorm"] == 1.0
    # Full keeps every sublayer's output and every mixture: more than PreNorm, far from twice as much.
    assert 1.05 < found["full"] < 2.0
    first = path.read_bytes()

    def again(_: object) -> tuple[int, int]:
        raise AssertionError("measured again")

    monkeypatch.setattr(step_memory, "measure", again)
    assert step_memory.main(command) == 0
    assert path.read_bytes() == first


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert step_memory.main(["arm=nothing", "scale=smoke", f"paths.results={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "smoke").exists()
