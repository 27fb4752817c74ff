"""Loss against cost: fronts, labels and the paper's costs by hand; the item from runs with given numbers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import yaml

from analysis import style
from analysis.labels import label_points
from analysis.selection import CONF
from analysis.step_memory import read_step_memory
from analysis.tables import to_text
from analysis.tradeoff import pareto
from experiments import fig6, table4, tradeoff
from experiments.item import Source
from repro.errors import DataError
from tests.synthetic_runs import write_run


def test_front_by_hand() -> None:
    points = [(1.0, 0.0), (1.1, -0.05), (1.2, -0.04), (1.2, -0.10), (1.3, -0.10), None]
    assert pareto(points) == [True, True, False, True, False, False]
    assert pareto([(1.0, 0.0), (1.0, 0.0)]) == [True, True]  # neither beats its equal
    assert pareto([]) == []


def test_the_papers_io_is_table_1_at_its_typical_sizes_and_at_table_4s() -> None:
    """Total accesses: 3d, (8m + 2)d + 2m^2 + 4m, (S + N)d, (N/S + 5)d."""
    assert tradeoff.IO["prenorm"] == 3
    assert tradeoff.IO["mhc"] == pytest.approx(34 + 48 / 1168)  # m = 4; Table 1 rounds to 34d
    assert tradeoff.IO["full"] == 12  # S = 4, N = 8
    assert tradeoff.IO["block_s4"] == 7  # N / S = 2
    assert tradeoff.IO["block_s32"] == pytest.approx(5 + 1 / 32)
    assert tradeoff.IO["block_s2"] == 13  # N / S = 8


def test_the_papers_extra_parameters() -> None:
    # L = 32, d = 1168: 37,376 per vector and sublayer; d^2 L = 43,655,168.
    found = tradeoff.EXTRA_PARAMETERS
    assert found["prenorm"] == 0
    assert found["full"] == found["block_s4"] == 74_752
    assert found["full_no_key_norm"] == 37_376
    assert found["full_input_query"] == 43_655_168 + 37_376
    assert found["full_static"] == 528  # 1 + 2 + ... + 32
    assert not {"mhc", "denseformer", "block_s4_h16"} & set(found)


def test_arms_are_those_of_table_4_and_fig_6() -> None:
    assert set(tradeoff.ITEM.arms) == set(table4.ITEM.arms) | set(fig6.ITEM.arms)
    sweep = yaml.safe_load((CONF / "experiment/tradeoff.yaml").read_text())
    assert set(sweep["hydra"]["sweeper"]["params"]["arm"].split(",")) == set(tradeoff.ITEM.arms)


def test_published_front_and_missing_costs() -> None:
    rendered = tradeoff.ITEM.render(Source("published"))
    by_arm = {record["arm"]: record for record in rendered.records}
    assert [arm for arm, record in by_arm.items() if record["io_front"]] == [
        "prenorm", "full", "block_s32", "block_s16", "block_s8", "block_s4",
    ]  # fmt: skip
    assert by_arm["block_s2"]["io_front"] is False  # 13d at the loss of S = 4, and Full is better at 12d
    assert by_arm["denseformer"]["io"] is None
    assert by_arm["denseformer"]["extra_parameters"] is None
    assert [check.test(rendered.data)[0] for check in tradeoff.ITEM.checks] == [True, True, True]
    drawn = " ".join(text.get_text() for axes in rendered.figure.axes for text in axes.texts)
    assert "DenseFormer" not in drawn
    notes = [text.get_text() for text in rendered.figure.texts]
    assert sum("not stated by the paper, not drawn: DenseFormer" in note for note in notes) == 2
    assert max(map(len, to_text(rendered.terminal[0]).splitlines())) <= 120


def runs_with_costs(root: Path) -> Source:
    """PreNorm, Full and Block with three seeds, mHC with one and the best difference of all."""
    for seed in (1, 2, 3):
        write_run(root / "runs/quick", "prenorm", seed, [4.0] * 3)
        write_run(root / "runs/quick", "full", seed, [3.9 + seed / 1000] * 3)
        write_run(root / "runs/quick", "block_s4", seed, [3.95 + seed / 1000] * 3)
    write_run(root / "runs/quick", "mhc", 1, [3.5, 3.5, 3.6])
    folder = root / "results/quick"
    folder.mkdir(parents=True)
    (folder / "step_time.csv").write_text(
        "arm,ratio_median,ratio_lower_quartile,ratio_upper_quartile\n"
        "prenorm,1,1,1\nfull,1.5,1.4,1.6\nblock_s4,1.3,1.25,1.45\nmhc,1.2,1.1,1.3\n"
    )
    return Source("quick", root / "runs", root / "results")


def test_one_seed_takes_no_part_in_the_front(tmp_path: Path) -> None:
    rendered = tradeoff.ITEM.render(runs_with_costs(tmp_path))
    by_arm = {record["arm"]: record for record in rendered.records}
    assert by_arm["mhc"]["minus_prenorm"] == pytest.approx(-0.48)  # (100, 300, 100) tokens
    assert by_arm["mhc"]["step_time_front"] is False
    assert [arm for arm, record in by_arm.items() if record["step_time_front"]] == [
        "prenorm",
        "full",
        "block_s4",
    ]
    assert by_arm["full"]["minus_prenorm_low"] == pytest.approx(-0.098 - 0.00248414, abs=1e-6)
    assert by_arm["full"]["step_memory"] is None
    assert by_arm["denseformer"]["status"] == "missing"
    time_panel, memory_panel = rendered.figure.axes
    (absent,) = [text.get_text() for text in memory_panel.texts]
    assert absent == "not measured:\npython -m repro.bench.step_memory experiment=tradeoff scale=quick"
    assert {text.get_text() for text in time_panel.texts} == {
        "Baseline (PreNorm)", "AttnRes Full", "Block (S=4)", "mHC",
    }  # fmt: skip
    outcomes = [check.test(rendered.data) for check in tradeoff.ITEM.checks]
    assert outcomes[0] == (
        None,
        "step × 1.30 against 1.50",
    )  # quartiles 1.25 to 1.45 and 1.40 to 1.60 overlap
    assert outcomes[2][0] is False  # Full's 1.4 to 1.6 against mHC's 1.1 to 1.3


def test_step_memory_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "step_memory.csv"
    assert read_step_memory(path) == {}
    path.write_text("arm,ratio\nprenorm,1.0\nfull,1.25\n")
    assert read_step_memory(path) == {"prenorm": 1.0, "full": 1.25}
    path.write_text("arm,ratio\nfull,much\n")
    with pytest.raises(DataError, match=r"step_memory\.csv"):
        read_step_memory(path)


@pytest.mark.parametrize("scale", ["published", "quick"])
def test_no_label_covers_another_or_leaves_its_panel(scale: str) -> None:
    """On the committed results: boxes as drawn."""
    figure = tradeoff.ITEM.render(Source(scale)).figure
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    for axes in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        assert len(boxes) >= 7
        inside = axes.get_window_extent(renderer)
        assert all(inside.x0 <= b.x0 and b.x1 <= inside.x1 for b in boxes)
        assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    width, height = figure.canvas.get_width_height()
    outside = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        outside += [axes.xaxis.label, axes.yaxis.label]
    boxes = [text.get_window_extent(renderer) for text in (*figure.texts, *outside)]
    assert all(0 <= box.x0 < box.x1 <= width for box in boxes)
    assert all(0 <= box.y0 < box.y1 <= height for box in boxes)
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]


def test_labels_of_a_crowd_do_not_overlap() -> None:
    with style.styled():
        figure, (axes,) = style.new_figure(8, 6)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        points = [(0.5 + 0.02 * (k % 4), 0.5 + 0.03 * (k // 4), f"a long label {k}") for k in range(12)]
        label_points(axes, points)
        renderer = figure.canvas.get_renderer()
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == [text for _, _, text in points]
    assert not [(a, b) for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
    spots = [axes.transData.transform((x, y)) for x, y, _ in points]
    assert not [box for box in boxes for x, y in spots if box.contains(x, y)]
