"""The item of conversions, from runs with given numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.tables import to_text
from experiments import convert
from experiments.item import Source
from repro.errors import DataError
from repro.reproduce import main
from repro.runs.plain import encode
from tests.synthetic_runs import write_run

BUDGET = {"tokens": 8 * 64, "batch_size": 4, "context": 16}
BEFORE = 4.2


def write_converted(
    root: Path, arm: str, seed: int, final: float, *, method: str = "exact", after: float = BEFORE,
    budget: dict[str, int] = BUDGET,
) -> Path:  # fmt: skip
    """A converted run of a parent that ended at 4.2; validated on the way at steps 0, 4 and 8."""
    start = {"run": f"{seed:012d}", "method": method, "step": 32}
    directory = write_run(
        root / "runs", arm, seed, [final] * 3, scale="quick/convert", start=start, budget=budget
    )
    record = {"val_loss_before": BEFORE, "val_loss_after": after, "logit_deviation": 1e-15}
    (directory / "convert.json").write_text(encode(record))
    rows = [{"step": k, "kind": "val", "loss": after + (final - after) * k / 8} for k in (0, 4, 8)]
    (directory / "metrics.jsonl").write_text("".join(encode(row) + "\n" for row in rows))
    return directory


def three_seeds(root: Path) -> Source:
    """Full ends 0.01, 0.02, 0.03 below the continued runs; with eps kept it starts 0.5 higher, one seed."""
    for seed in (1, 2, 3):
        write_converted(root, "prenorm", seed, 4.0)
        write_converted(root, "full", seed, 4.0 - seed / 100)
    write_converted(root, "full", 1, 4.05, method="keep_eps", after=BEFORE + 0.5)
    return Source("quick", root / "runs", root / "results")


def test_rows_by_hand(tmp_path: Path) -> None:
    rendered = convert.ITEM.render(three_seeds(tmp_path))
    by_row = {(record["arm"], record["method"]): record for record in rendered.records}
    assert list(by_row) == [("prenorm", "exact"), ("full", "exact"), ("full", "keep_eps")]
    full = by_row["full", "exact"]
    # -0.01, -0.02, -0.03: mean -0.02, half width 4.302653 * 0.01 / sqrt(3) = 0.0248414.
    assert full["minus_continued"] == pytest.approx(-0.02)
    assert full["minus_continued_low"] == pytest.approx(-0.0448414, abs=1e-6)
    assert (full["jump"], full["steps"], full["parent_steps"]) == (0.0, 8, 32)
    kept = by_row["full", "keep_eps"]
    assert kept["jump"] == pytest.approx(0.5)
    assert (kept["minus_continued_interval"], kept["seeds"]) == ("documents", "1")
    assert by_row["prenorm", "exact"]["minus_continued"] is None
    text = to_text(rendered.terminal[0])
    assert text.count("(one seed)") == 1
    assert max(map(len, text.splitlines())) <= 120
    outcomes = [check.test(rendered.data) for check in convert.ITEM.checks]
    assert outcomes[0] == (True, "at most 1e-15, 2 arms")
    assert outcomes[1] == (None, "no finished pair of runs")
    assert outcomes[2][0] is None  # the interval holds zero


def test_curves_of_the_picture(tmp_path: Path) -> None:
    rendered = convert.ITEM.render(three_seeds(tmp_path))
    loss, gain = rendered.figure.axes
    lines = {str(line.get_label()): line for line in loss.lines}
    full = lines["AttnRes Full, eps / n² (3 seeds)"]
    assert list(full.get_xdata()) == [0, 4, 8]
    assert list(full.get_ydata()) == pytest.approx([4.2, 4.09, 3.98])
    kept = next(line for line in gain.lines if str(line.get_label()).startswith("AttnRes Full, eps kept"))
    assert list(kept.get_ydata()) == pytest.approx([0.5, 0.275, 0.05])


def test_one_comparison_at_a_time(tmp_path: Path) -> None:
    source = three_seeds(tmp_path)
    longer = {**BUDGET, "tokens": 80 * 64}
    for arm in ("prenorm", "full"):
        write_converted(tmp_path, arm, 1, 3.0, budget=longer)
    data = convert.ITEM.render(source).data
    assert data.steps == 8
    assert "2 converted runs of other steps, rates or corpora left out." in data.notes


def test_converted_runs_stay_out_of_other_items(tmp_path: Path) -> None:
    source = three_seeds(tmp_path)
    with pytest.raises(DataError, match="no runs of table4"):
        source.load("table4", ("prenorm", "full"))
    with pytest.raises(DataError, match="no converted runs at scale smoke"):
        convert.ITEM.render(Source("smoke", source.runs, source.results))


def test_runs_are_traced_to_their_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three_seeds(tmp_path)
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    assert main(["why", "convert", "--scale", "quick", *places]) == 0
    out = capsys.readouterr().out
    assert "python -m repro.convert run=runs/quick/prenorm/000000000002 arm=full method=exact steps=8" in out
    assert main(["archive", "convert", "--scale", "quick", *places]) == 0
    assert len(list(tmp_path.glob("results/quick/runs/*/*/convert.json"))) == 7
    again = Source("quick", tmp_path / "none", tmp_path / "results")
    assert len(convert.ITEM.render(again).runs) == 7
