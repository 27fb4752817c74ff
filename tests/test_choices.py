"""The sweeps behind a scale's settings: grouping, order, gaps, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import choices
from analysis.selection import load
from experiments.item import Source
from experiments.items import find
from repro.errors import DataError
from tests.synthetic_runs import write_run

ARMS = ("prenorm", "block_s4")


def _runs(root: Path) -> None:
    for lr, prenorm, block in ((0.001, 5.0, 4.9), (0.003, 4.5, 4.45), (0.009, 4.75, None)):
        write_run(root, "prenorm", 1, [prenorm] * 3, optim={"lr": lr})
        if block is not None:
            write_run(root, "block_s4", 1, [block] * 3, optim={"lr": lr})


def _choices(root: Path) -> choices.Choices:
    return choices.choices("quick", load(root / "quick", "quick", ARMS)[0], ("optim.lr",), ARMS)


def test_best_under_prenorm_comes_first(tmp_path: Path) -> None:
    _runs(tmp_path)
    data = _choices(tmp_path)
    assert data.values == ((0.003,), (0.009,), (0.001,))
    assert data.best == (0.003,)
    assert data.gap((0.003,), "block_s4") == pytest.approx(-0.05, abs=1e-12)
    assert data.gap((0.001,), "block_s4") == pytest.approx(-0.1, abs=1e-12)
    assert data.gap((0.009,), "block_s4") is None


def test_seeds_are_averaged(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [5.0] * 3)
    write_run(tmp_path, "prenorm", 2, [5.5] * 3)
    data = _choices(tmp_path)
    assert data.losses == {((0.003,), "prenorm"): pytest.approx(5.25)}


def test_values_are_compared_over_the_seeds_they_share(tmp_path: Path) -> None:
    _runs(tmp_path)  # seed 1 throughout
    write_run(tmp_path, "prenorm", 2, [9.0] * 3, optim={"lr": 0.003})
    data = _choices(tmp_path)
    assert data.losses[(0.003,), "prenorm"] == pytest.approx(4.5)
    assert {run.seed for run in data.runs} == {1}


def test_diverged_value_is_last_and_said(tmp_path: Path) -> None:
    _runs(tmp_path)
    write_run(tmp_path, "prenorm", 1, None, optim={"lr": 0.1}, status="diverged", diverged_at_step=7)
    data = _choices(tmp_path)
    assert data.values[-1] == (0.1,)
    assert choices.table(data, "t").rows[-1]["prenorm"] == "diverged"
    assert choices.records(data)[-1]["prenorm_loss"] is None


def test_other_settings_are_left_out_and_counted(tmp_path: Path) -> None:
    _runs(tmp_path)
    write_run(tmp_path, "prenorm", 1, [1.0] * 3, optim={"lr": 0.003}, model={"width": 32})
    data = _choices(tmp_path)
    assert data.left_out == 1
    assert data.losses[(0.003,), "prenorm"] == pytest.approx(4.5)
    assert "1 runs that differ" in choices.table(data, "t").notes[-1]


def test_item_renders_and_has_no_published_form(tmp_path: Path) -> None:
    _runs(tmp_path / "runs")
    source = Source("quick", tmp_path / "runs", tmp_path / "results")
    rendered = find("lr").render(source)
    assert [row["optim.lr"] for row in rendered.records] == [0.003, 0.009, 0.001]
    assert rendered.records[0]["chosen_under_prenorm"] is True
    assert "quick" in find("lr").scales
    assert "published" not in find("lr").scales
    with pytest.raises(DataError, match="make lr SCALE=cpu trains them"):
        find("lr").render(Source("cpu", tmp_path / "runs", tmp_path / "results"))
