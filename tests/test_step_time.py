"""Step times: one race for the arms that are missing, rows of earlier races kept while nothing changed."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from omegaconf import DictConfig

from repro.train import step_time
from tests.tiny import TINY

RACES = []


def race(configs: dict[str, DictConfig]) -> pd.DataFrame:
    """Stands in for the clock: the n-th race gives every arm the ratio n, PreNorm one."""
    RACES.append(list(configs))
    rows = [(arm, 1.0 if arm == "prenorm" else float(len(RACES)), 1, 1, 1) for arm in configs]
    return pd.DataFrame(rows, columns=step_time.COLUMNS)


def measured(root: Path, arms: str, *more: str) -> dict[str, float]:
    assert step_time.main([*TINY, f"paths.root={root}", f"arm={arms}", *more]) == 0
    table = pd.read_csv(root / "results" / "smoke" / "step_time.csv")
    return dict(zip(table["arm"], table["ratio_median"], strict=True))


def test_only_what_is_missing_races_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RACES.clear()
    monkeypatch.setattr(step_time, "measure", race)
    monkeypatch.setattr(step_time, "swept_arms", lambda overrides: overrides[-1].split("=")[1].split("+"))
    before = torch.get_num_threads()
    try:
        assert measured(tmp_path, "full+mhc") == {"prenorm": 1, "full": 1, "mhc": 1}
        assert measured(tmp_path, "mhc") == {"prenorm": 1, "full": 1, "mhc": 1}
        assert measured(tmp_path, "mhc+block_s2") == {"prenorm": 1, "full": 1, "mhc": 1, "block_s2": 2}
        # Another model: nothing of it is known.
        step_time.main([*TINY, "model.mlp_width=40", f"paths.root={tmp_path}", "arm=mhc"])
    finally:
        torch.set_num_threads(before)
    assert RACES == [["prenorm", "full", "mhc"], ["prenorm", "block_s2"], ["prenorm", "mhc"]]
    table = pd.read_csv(tmp_path / "results" / "smoke" / "step_time.csv")
    assert table["arm"].tolist() == ["prenorm", "mhc"]
    assert table["ratio_median"].tolist() == [1, 3]


def test_a_race_takes_the_threads_of_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At `smoke` one: a step is bound by operators, and waiting threads would spin."""
    RACES.clear()
    monkeypatch.setattr(step_time, "measure", race)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        arguments = [*TINY, f"paths.root={tmp_path}", "arm=full", "runtime.threads=2"]
        assert step_time.main(arguments) == 0
        assert torch.get_num_threads() == 2
        table = pd.read_csv(tmp_path / "results" / "smoke" / "step_time.csv")
        assert set(table["threads"]) == {2}
    finally:
        torch.set_num_threads(before)
