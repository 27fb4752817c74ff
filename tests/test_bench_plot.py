"""Tables and figure of the step bench from a file of known numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis import bench, bench_figure
from analysis.tables import to_markdown
from repro.errors import DataError

MACHINE = {"quiet": True, "rounds": 9, "threads": 2, "device": "cpu", "cpu": "a processor", "torch": "2.13.0"}
MACHINE |= {
    "precision": "32-true",
    "batch": 16,
    "context": 128,
    "code": "c0de",
    "git_sha": "0123456789abcdef",
}
MACHINE |= {"git_dirty": False}
LABELS = {"prenorm": "Baseline (PreNorm)", "block_s4": "Block (S=4)", "full": "AttnRes Full"}


def entrant(sweep: str, blocks: int, width: int, arm: str, ratio: float, **other: object) -> list[dict]:
    """Rows of one entrant: all quantities at this ratio, PreNorm at 100 ms and 100 MiB."""
    row = {
        "sweep": sweep,
        "blocks": blocks,
        "width": width,
        "mode": "eager",
        "arm": arm,
        "label": LABELS[arm],
    }
    row |= {"execution": "auto", "backend": "auto", "median": 100 * ratio, "ratio_median": ratio}
    row |= {"ratio_lower_quartile": ratio - 0.01, "ratio_upper_quartile": ratio + 0.02}
    row |= {"extra_median": 100 * (ratio - 1), "sources_mean": {"full": blocks + 1.0}.get(arm, 4.0)}
    quantities = ("forward", "forward_backward", "step", "memory", "memory_beyond_state")
    return [{**row, "quantity": name, **MACHINE, **other} for name in quantities]


def measured() -> pd.DataFrame:
    """Full at 1 + blocks / 200: its extra grows a little faster than its blocks + 1 sources."""
    rows = []
    for blocks in (8, 16, 32, 64):
        for arm, ratio in (("prenorm", 1.0), ("block_s4", 1.05), ("full", 1 + blocks / 200)):
            rows += entrant("depth", blocks, 128, arm, ratio)
    for width, block, full in ((64, 1.08, 1.2), (128, 1.05, 1.1), (256, 1.03, 1.06)):
        for arm, ratio in (("prenorm", 1.0), ("block_s4", block), ("full", full)):
            rows += entrant("width", 16, width, arm, ratio)
    rows += entrant("standard", 16, 128, "prenorm", 1.0)
    rows += entrant("standard", 16, 128, "full", 9.28, execution="per_read", backend="reference")
    rows += entrant("standard", 16, 128, "full", 1.1)
    return pd.DataFrame(rows)


def test_tables_state_every_ratio_with_its_quartiles_and_the_machine() -> None:
    text = to_markdown(bench.report(measured()))
    lines = [line for line in text.splitlines() if line.startswith("| AttnRes Full")]
    assert [line.split(" | ")[1] for line in lines] == ["per_read, reference", "default"]
    assert "9.280 [9.270, 9.300] | 928 | 828 | 9.28 | 928 | 9.28 |" in lines[0]
    deepest = next(line for line in text.splitlines() if line.startswith("| 64 | 128"))
    # 32 % over 65 sources
    assert deepest == "| 64 | 128 | 65.0 | 100 | 1.050 [1.040, 1.070] | 1.320 [1.310, 1.340] | 0.49 |"
    assert "a processor, 2 threads, torch 2.13.0; source tree 0123456." in text
    assert "with local changes" not in text
    assert "torch.compile" not in text, "a sweep that was not measured has no table"


def test_what_was_not_quiet_or_of_mixed_code_is_said() -> None:
    table = measured()
    table.loc[(table["sweep"] == "depth") & (table["blocks"] == 64), "quiet"] = False
    table.loc[table["sweep"] == "width", "code"] = "another"
    text = to_markdown(bench.report(table))
    assert "Not quiet, so not to be relied on: depth 64 x 128." in text
    assert "different versions of the code" in text


def test_figure_draws_medians_quartiles_and_growth_with_the_sources() -> None:
    table = measured()
    figure = bench_figure.overhead_figure(bench.steps_of(table, "depth"), bench.steps_of(table, "width"))
    depth, width = figure.axes
    for axes, ticks in ((depth, [8, 16, 32, 64]), (width, [64, 128, 256])):
        assert axes.get_xscale() == axes.get_yscale() == "linear"
        assert [int(tick) for tick in axes.get_xticks()] == ticks
        bound = next(line for line in axes.lines if "< 4 %" in str(line.get_label()))
        assert list(bound.get_ydata()) == [1.04, 1.04]
    full = next(c for c in depth.containers if c.get_label() == "AttnRes Full")
    assert list(full[0].get_ydata()) == pytest.approx([1.04, 1.08, 1.16, 1.32])
    bars = full[2][0].get_segments()
    assert bars[0][:, 1] == pytest.approx([1.03, 1.06])
    growth = next(line for line in depth.lines if "sources" in str(line.get_label()))
    assert list(growth.get_ydata()) == pytest.approx(
        [1.04, 1 + 0.04 * 17 / 9, 1 + 0.04 * 33 / 9, 1 + 0.04 * 65 / 9]
    )


def test_command_writes_the_same_files_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "bench"
    results.mkdir()
    assert bench.main(["--results", str(tmp_path)]) == 2
    assert "not measured yet (make bench)" in capsys.readouterr().err
    measured()[lambda t: t["sweep"] != "width"].to_csv(results / "steps.csv", index=False)
    written = []
    for _ in range(2):
        assert bench.main(["--results", str(tmp_path)]) == 0
        written.append([(results / f"steps.{suffix}").read_bytes() for suffix in ("md", "svg", "png")])
    assert written[0] == written[1]
    (results / "steps.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a table of the step bench"):
        bench.read(results / "steps.csv")
