"""Table 4 and Fig. 6 from run directories whose numbers are known by hand."""

import csv
import io
import math
from pathlib import Path

import pytest
import yaml

from analysis.ablation import published_table
from analysis.ablation_view import interval_text, num_blocks, records, tables
from analysis.selection import CONF
from analysis.stats import Interval
from analysis.step_time import StepTime, how_measured, read_step_times
from analysis.tables import Column, Table, tex_escape, to_csv, to_markdown, to_tex, to_text
from experiments import fig6, table4
from experiments.item import Source
from repro.errors import DataError
from tests.synthetic_runs import ARMS, table_of, three_seeds, write_run


def test_three_seeds_by_hand(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    table = table_of(tmp_path, {"full": StepTime(1.2, 1.1, 1.3, 50.0)})
    prenorm, full, sigmoid = table.rows
    assert prenorm.loss == pytest.approx(4.5)
    assert prenorm.sd == pytest.approx(0.1)
    assert prenorm.bits_per_byte == pytest.approx(4.5 / math.log(2) / 4)
    assert prenorm.to_prenorm is None
    assert full.loss == pytest.approx(4.48)
    contrast = full.to_prenorm
    assert contrast.ours.estimate == pytest.approx(-0.02)
    assert contrast.ours.low == pytest.approx(-0.02 - 0.0248414, abs=1e-6)
    assert contrast.ours.high == pytest.approx(-0.02 + 0.0248414, abs=1e-6)
    assert contrast.paper == -0.029
    assert contrast.verdict == "underpowered"
    assert full.to_parent is None  # the parent is PreNorm: one contrast, not two
    assert sigmoid.to_parent.reference == "full"
    assert sigmoid.to_parent.ours.estimate == pytest.approx(0.02)
    assert sigmoid.to_parent.paper == 0.004
    assert sigmoid.to_prenorm.verdict == "no difference"
    assert full.step_time.ratio == 1.2
    assert full.parameters == 1_000_000
    assert len(table.run_ids) == 9


def test_one_seed_has_an_interval_over_documents_and_no_verdict(tmp_path: Path) -> None:
    # Tokens 100, 300, 100; differences 0.0, -0.1, 0.1: (0 - 30 + 10) / 500.
    write_run(tmp_path, "prenorm", 1, [4.0, 5.0, 4.0])
    write_run(tmp_path, "full", 1, [4.0, 4.9, 4.1])
    table = table_of(tmp_path)
    contrast = table.row("full").to_prenorm
    assert contrast.ours.kind == "documents"
    assert contrast.ours.n == 3
    assert contrast.ours.estimate == pytest.approx(-0.04)
    assert contrast.ours.low == pytest.approx(-0.1)  # the resample of the second document alone
    assert contrast.ours.high == pytest.approx(0.1)
    assert contrast.verdict is None
    notes = " ".join(tables(table, "t", experiment="table4", wide=True)[-1].notes)
    assert "one seed only" in notes
    assert "3 documents" in notes


def test_unfinished_arms_are_shown_as_such(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, None, status="diverged", diverged_at_step=120)
    table = table_of(tmp_path)
    assert [row.status for row in table.rows] == ["done", "diverged at step 120", "missing"]
    assert table.row("full").to_prenorm.ours is None
    text = to_text(tables(table, "t", experiment="table4", wide=False)[0])
    assert "diverged at step 120" in text
    assert "missing" in text
    write_run(tmp_path, "full_sigmoid", 1, None, status="failed")
    assert table_of(tmp_path).row("full_sigmoid").status == "failed"


def test_a_diverged_seed_is_named_and_not_averaged(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_run(tmp_path, "prenorm", seed, [4.0 + seed] * 3)
    write_run(tmp_path, "full", 1, [4.9] * 3)
    write_run(tmp_path, "full", 2, None, status="diverged", diverged_at_step=7)
    table = table_of(tmp_path)
    assert table.row("full").loss == pytest.approx(4.9)
    assert table.row("full").to_prenorm.ours.estimate == pytest.approx(-0.1)  # seed 1 against seed 1
    assert any("seed 2 diverged at step 7" in note for note in table.notes)
    assert any("Arms have different seeds" in note for note in table.notes)


def test_both_kinds_of_interval_in_one_table_are_told_apart(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    for path in (tmp_path / "quick/full_sigmoid").iterdir():
        if "seed: 1" not in (path / "config.yaml").read_text():
            (path / "status.json").write_text('{"state": "failed"}')
    first, *_ = tables(table_of(tmp_path), "t", experiment="table4", wide=False)
    by_label = {row["label"]: row["difference"] for row in first.rows if "difference" in row}
    assert by_label["Sigmoid"].endswith("†")
    assert not by_label["Full"].endswith("†")


def test_runs_of_other_data_seeds_are_no_pair(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, [4.0] * 3, data_seed=9)
    table = table_of(tmp_path)
    assert table.row("full").status == "done"
    assert table.row("full").seeds == ("1(data_seed=9)",)
    assert table.row("full").to_prenorm.ours is None
    assert any("Arms have different seeds" in note for note in table.notes)


def test_seeds_set_apart_are_pairs_of_their_own(tmp_path: Path) -> None:
    """seed=1 init_seed=1,2,3: differences -0.01, -0.02, -0.03, as over three seeds, of one data order."""
    for init_seed in (1, 2, 3):
        write_run(tmp_path, "prenorm", 1, [4.0 + init_seed] * 3, init_seed=init_seed)
        write_run(tmp_path, "full", 1, [4.0 + init_seed * 0.99] * 3, init_seed=init_seed)
    table = table_of(tmp_path)
    assert table.row("full").seeds == ("1", "1(init_seed=2)", "1(init_seed=3)")
    ours = table.row("full").to_prenorm.ours
    assert (ours.kind, ours.n) == ("seeds", 3)
    assert ours.estimate == pytest.approx(-0.02)
    assert ours.high == pytest.approx(-0.02 + 0.0248414, abs=1e-6)
    assert "data_seed takes 1 value in 3 seeds: intervals over seeds leave out its spread." in table.notes
    assert not any("init_seed takes" in note for note in table.notes)
    notes = tables(table, "t", experiment="table4", wide=True)[-1].notes
    assert "seeds 1, 1(init_seed=2), 1(init_seed=3) (n:" in notes[0]
    assert records(table)[1]["seeds"] == "1 1(init_seed=2) 1(init_seed=3)"


def test_other_documents_are_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, [4.0] * 3, tokens=(100, 100, 300))
    with pytest.raises(DataError, match="validated on different documents"):
        table_of(tmp_path)


def test_records_of_two_runs_in_one_directory_are_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    directory = write_run(tmp_path, "full", 1, [4.0] * 3)
    other = write_run(tmp_path / "other", "full", 1, [3.5] * 3)
    (directory / "val_losses.npz").write_bytes((other / "val_losses.npz").read_bytes())
    with pytest.raises(DataError, match="retrain"):
        table_of(tmp_path)


def test_mixed_devices_are_said_below_the_table(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    assert not any("mix" in note for note in table_of(tmp_path).notes)
    write_run(tmp_path, "full", 1, [4.0] * 3, device="cuda")
    assert any("mix device: cpu, cuda" in note for note in table_of(tmp_path).notes)


def test_without_losses_per_document_there_is_a_difference_but_no_interval(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, [3.9] * 3, documents=False)
    table = table_of(tmp_path)
    assert table.row("full").to_prenorm.ours.kind == "none"
    assert records(table)[1]["minus_prenorm"] == pytest.approx(-0.1)
    assert records(table)[1]["minus_prenorm_low"] is None


def test_a_damaged_run_is_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    directory = write_run(tmp_path, "full", 1, [4.0] * 3)
    (directory / "final.json").write_text('{"val_loss": 4.')
    table = table_of(tmp_path)
    assert table.row("full").status == "missing"
    assert any(directory.name in note and "left out" in note for note in table.notes)


# The paper's rows


def test_published_numbers_are_those_of_the_paper() -> None:
    table = published_table(table4.specs())
    rows = {row.spec.name: row for row in table.rows}
    assert [row.spec.paper_loss for row in table.rows] == [
        1.766, 1.767, 1.747, 1.737, 1.731, 1.749, 1.741, 1.743, 1.764, 1.746, 1.752, 1.750,
    ]  # fmt: skip
    assert rows["full"].to_prenorm.paper == -0.029
    assert rows["full_static"].to_parent.paper == 0.012
    assert rows["block_s4_h16"].to_parent.paper == 0.006
    assert rows["block_s4_h16"].to_parent.verdict is None
    curve = published_table(fig6.specs())
    assert {row.spec.name: row.spec.paper_loss for row in curve.rows[1:]} == {
        "block_s32": 1.757, "block_s16": 1.753, "block_s8": 1.748,
        "block_s4": 1.746, "block_s2": 1.746, "full": 1.737,
    }  # fmt: skip


@pytest.mark.parametrize("item", [table4.ITEM, fig6.ITEM])
def test_items_agree_with_the_configuration(item) -> None:
    sweep = yaml.safe_load((CONF / f"experiment/{item.experiment}.yaml").read_text())
    assert set(sweep["hydra"]["sweeper"]["params"]["arm"].split(",")) == set(item.arms)
    specs = {spec.name: spec for spec in (*table4.specs(), *fig6.specs()[1:])}
    for arm in item.arms:
        config = yaml.safe_load((CONF / f"arm/{arm}.yaml").read_text())
        assert config["name"] == arm
        assert config["parent"] == specs[arm].parent
        if arm in table4.PARENTS:
            label = next(spec.label for spec in table4.specs() if spec.name == arm)
            assert config["label"] == label
        if arm in fig6.SIZES:
            assert config["mixer"]["block_size"] == fig6.SIZES[arm]
        if arm in table4.BLOCK_SIZES:
            assert config["mixer"]["block_size"] == table4.BLOCK_SIZES[arm]


def test_blocks_are_given_in_both_units_and_by_number(tmp_path: Path) -> None:
    assert [num_blocks(size, 48) for size in (32, 16, 4, 2, 1)] == [2, 3, 12, 24, 48]
    assert num_blocks(32, 6) == 1
    for arm in ("prenorm", "block_s32", "block_s4"):
        write_run(tmp_path, arm, 1, [4.0] * 3, scale="cpu", model={"num_transformer_blocks": 24})
    curve, table = (item.render(Source("cpu", tmp_path, tmp_path)) for item in (fig6.ITEM, table4.ITEM))
    assert curve.data.num_sublayers == 48
    by_arm = {record["arm"]: record for record in curve.records}
    assert by_arm["block_s32"]["row"] == "S=32 (16 transformer blocks)"
    assert [by_arm[f"block_s{s}"]["num_blocks"] for s in (32, 16, 8, 4, 2)] == [2, 3, 6, 12, 24]
    assert any(
        "at L=48 sublayers (the paper: L=32): S=32 is 16 transformer blocks, N=2 (the last of 16 sublayers); "
        "S=16 is 8 transformer blocks, N=3; " in note
        for note in curve.text[-1].notes
    )
    assert table.text[-1].notes[-1] == (
        "Block size S and number of blocks N at L=48 sublayers (the paper: L=32): "
        "S=4 is 2 transformer blocks, N=12."
    )
    published = table4.ITEM.render(Source("published")).text[-1].notes
    assert (
        "Block size S and number of blocks N at L=32 sublayers: S=4 is 2 transformer blocks, N=8."
        in published
    )
    ours = [label.get_text() for label in curve.figure.axes[1].get_xticklabels()]
    assert ours == [
        "1 (Full)\n0.5\nN = 48",
        "2\n1\nN = 24",
        "4\n2\nN = 12",
        "8\n4\nN = 6",
        "16\n8\nN = 3",
        "32\n16\nN = 2",
    ]
    assert [label.get_text() for label in curve.figure.axes[0].get_xticklabels()][-1] == "32\n16\nN = 1"
    for rendered in (curve, fig6.ITEM.render(Source("published"))):
        rendered.figure.canvas.draw()
        width = rendered.figure.canvas.get_width_height()[0]
        boxes = [axes.xaxis.label.get_window_extent() for axes in rendered.figure.axes]
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 for box in boxes)


def test_the_papers_statements_hold_on_its_own_numbers() -> None:
    for item in (table4.ITEM, fig6.ITEM):
        data = item.render(Source("published")).data
        assert [check.test(data)[0] for check in item.checks] == [True] * len(item.checks)


def test_a_statement_fails_where_the_interval_is_on_the_other_side(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path, "prenorm", seed, [4.0] * 3)
        write_run(tmp_path, "full", seed, [4.1 + seed / 1000] * 3)
    item = table4.ITEM
    data = item.render(Source("quick", tmp_path, tmp_path)).data
    outcomes = {check.statement: check.test(data) for check in item.checks}
    holds, evidence = outcomes["Full AttnRes is better than PreNorm."]
    assert holds is False
    assert evidence == "+0.102 [+0.100, +0.104], paper -0.029, differs"
    assert outcomes["mHC is better than PreNorm."] == (None, "no finished pair of runs")


def test_denseformer_does_not_improve(tmp_path: Path) -> None:
    """Holds where it is worse and where it makes no difference, fails where it is better."""

    def outcome(root: Path, differences: tuple[float, ...]) -> tuple[bool | None, str]:
        for seed, difference in enumerate(differences, start=1):
            write_run(root, "prenorm", seed, [4.0] * 3)
            write_run(root, "denseformer", seed, [4.0 + difference] * 3)
        (check,) = (c for c in table4.ITEM.checks if "DenseFormer" in c.statement)
        return check.test(table4.ITEM.render(Source("quick", root, root)).data)

    assert outcome(tmp_path / "worse", (0.020, 0.021, 0.022))[0] is True
    assert outcome(tmp_path / "same", (0.001, 0.002, 0.001))[0] is True
    assert outcome(tmp_path / "better", (-0.020, -0.021, -0.022))[0] is False
    assert outcome(tmp_path / "wide", (-0.02, 0.02, 0.0))[0] is None
    holds, evidence = outcome(tmp_path / "few", (0.020, 0.021))
    assert holds is None
    assert "no verdict under 3 seeds" in evidence


def test_small_blocks_are_nearly_equal(tmp_path: Path) -> None:
    """Decided by the intervals of all three pairs against 0.005 nats."""

    def outcome(
        root: Path, s8: tuple[float, ...], seeds: tuple[int, ...] = (1, 2, 3)
    ) -> tuple[bool | None, str]:
        for seed, loss in zip(seeds, s8, strict=True):
            write_run(root, "block_s2", seed, [4.0] * 3)
            write_run(root, "block_s4", seed, [4.0] * 3)
            write_run(root, "block_s8", seed, [4.0 + loss] * 3)
        (check,) = (c for c in fig6.ITEM.checks if "S=2, 4 and 8" in c.statement)
        return check.test(fig6.ITEM.render(Source("quick", root, root)).data)

    # Mean 0.002, s = 0.0002, half width 4.302653 * 0.0002 / sqrt(3) = 0.0005.
    holds, evidence = outcome(tmp_path / "close", (0.0018, 0.0020, 0.0022))
    assert (holds, evidence) == (True, "block_s8 minus block_s4 +0.002 [+0.002, +0.002]")
    assert outcome(tmp_path / "far", (0.0118, 0.0120, 0.0122))[0] is False
    assert outcome(tmp_path / "edge", (0.0048, 0.0050, 0.0052))[0] is None
    assert outcome(tmp_path / "few", (0.002, 0.002), seeds=(1, 2))[0] is None


# Forms of a table


def test_step_times_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "step_time.csv"
    assert read_step_times(path) == {}
    path.write_text("arm,ratio_median,ratio_low,ratio_high,ms_median\nfull,1.25,1.2,1.3,80\n")
    assert read_step_times(path) == {"full": StepTime(1.25, 1.2, 1.3, 80.0)}
    path.write_text("note,arm,ratio_median\nx,full,1.25\n")
    assert read_step_times(path) == {"full": StepTime(1.25)}
    path.write_text(
        "arm,ratio_median,ratio_lower_quartile,ratio_upper_quartile,rounds,threads,cpu,torch,setting\n"
        "prenorm,1,1,1,9,2,A CPU,2.13,abc\nfull,1.25,1.2,1.3,9,2,A CPU,2.13,abc\n"
    )
    times = read_step_times(path)
    assert times["full"] == StepTime(1.25, 1.2, 1.3, rounds="9", threads="2", cpu="A CPU", torch="2.13")
    assert how_measured(list(times.values())) == (
        "step ×: time of a training step relative to PreNorm's, median of 9 interleaved rounds in one "
        "uncompiled process with 2 threads (A CPU, torch 2.13); the csv has the lower and upper quartiles. "
        "Training runs may use other threads or compile."
    )
    assert "median of interleaved rounds in one uncompiled process; the csv" in how_measured([StepTime(1.25)])
    path.write_text("arm,ratio_median\nfull,fast\n")
    with pytest.raises(DataError, match=r"step_time\.csv"):
        read_step_times(path)


def test_csv_keeps_every_digit_and_the_run_ids(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    table = table_of(tmp_path)
    rows = list(csv.DictReader(io.StringIO(to_csv(records(table)))))
    assert [row["arm"] for row in rows] == ARMS
    assert float(rows[1]["minus_prenorm"]) == table.row("full").to_prenorm.ours.estimate
    assert rows[1]["seeds"] == "1 2 3"
    assert rows[1]["run_ids"].split() == [run.run_id for run in table.row("full").runs]
    assert rows[2]["minus_parent_paper"] == "0.004"


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((-0.013, -0.017, -0.009), "-0.013 [-0.017, -0.009]"),
        ((-0.0087, -0.017, -0.0004), "-0.0087 [-0.0170, -0.0004]"),  # excludes zero, and shows it
        ((0.0002, -0.00003, 0.00043), "+0.00020 [-0.00003, +0.00043]"),
        ((0.0001, -0.002, 0.0022), "0.000 [-0.002, +0.002]"),  # only the ends ask for digits
        ((0.0, 0.0, 0.0), "0.000 [0.000, 0.000]"),
        ((0.01, 4e-12, 0.02), "+0.010000000 [+4e-12, +0.020000000]"),
        ((-0.01, math.nan, math.nan), "-0.010"),
    ],
)
def test_an_end_that_is_not_zero_never_reads_as_zero(interval: tuple[float, float, float], text: str) -> None:
    assert interval_text(Interval(*interval, "seeds", 3)) == text


def test_the_hint_names_the_experiment_of_the_item(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    for item in (table4.ITEM, fig6.ITEM):
        notes = " ".join(item.render(Source("quick", tmp_path, tmp_path)).text[-1].notes)
        assert f"python -m repro.train.step_time experiment={item.name} scale=quick" in notes


def test_quartiles_are_named_as_such(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    record = records(table_of(tmp_path, {"prenorm": StepTime(1.0, 0.98, 1.02)}))[0]
    assert record["step_time_ratio_lower_quartile"] == 0.98
    assert record["step_time_ratio_upper_quartile"] == 1.02


def test_text_forms() -> None:
    table = Table(
        "Title",
        [Column("arm", "Arm", numeric=False), Column("loss", "loss")],
        [{"arm": "a|b_1 & 5 %", "loss": "1.5"}, {"arm": "c"}],
        ["A note."],
    )
    assert to_text(table).splitlines() == [
        "Title",
        "-----------------",
        "Arm          loss",
        "-----------------",
        "a|b_1 & 5 %   1.5",
        "c               –",
        "-----------------",
        "A note.",
    ]
    assert "| a\\|b_1 & 5 % | 1.5 |" in to_markdown([table])
    assert r"a|b\_1 \& 5 \% & 1.5 \\" in to_tex([table])
    assert tex_escape("±0.005 − ×") == r"$\pm$0.005 $-$ $\times$"


def test_every_terminal_table_fits_120_columns(tmp_path: Path) -> None:
    for seed in (1, 2, 3, 4):
        for index, spec in enumerate((*table4.specs(), *fig6.specs()[1:])):
            if index < 12 or spec.name not in table4.PARENTS:
                write_run(tmp_path, spec.name, seed, [10.0 + seed + (index % 5) * seed / 3] * 3)
    for item in (table4.ITEM, fig6.ITEM):
        for scale in ("published", "quick"):
            for table in item.render(Source(scale, runs=tmp_path, results=tmp_path)).terminal:
                assert max(map(len, to_text(table).splitlines())) <= 120
