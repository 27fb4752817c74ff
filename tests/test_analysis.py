"""Table 4 and Fig. 6 from run directories whose numbers are known by hand."""

import csv
import io
import math
from pathlib import Path

import pytest
import yaml

from analysis.ablation import StepTime, published_table, read_step_times
from analysis.ablation_view import records, tables
from analysis.selection import CONF
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
    notes = " ".join(tables(table, "t", wide=True)[-1].notes)
    assert "one seed only" in notes
    assert "3 documents" in notes


def test_unfinished_arms_are_shown_as_such(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, None, status="diverged", diverged_at_step=120)
    table = table_of(tmp_path)
    assert [row.status for row in table.rows] == ["done", "diverged at step 120", "missing"]
    assert table.row("full").to_prenorm.ours is None
    text = to_text(tables(table, "t", wide=False)[0])
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
    first, *_ = tables(table_of(tmp_path), "t", wide=False)
    by_label = {row["label"]: row["difference"] for row in first.rows if "difference" in row}
    assert by_label["Sigmoid"].endswith("†")
    assert not by_label["Full"].endswith("†")


def test_runs_that_are_no_pair_are_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, [4.0] * 3, data_seed=9)
    with pytest.raises(DataError, match="are no pair: data_seed is 9 and 1"):
        table_of(tmp_path)


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


def test_the_papers_statements_hold_on_its_own_numbers() -> None:
    for item in (table4.ITEM, fig6.ITEM):
        data = item.render(Source("published")).data
        assert [check.test(data)[0] for check in item.checks] == [True] * len(item.checks)


def test_a_statement_fails_where_the_interval_is_on_the_other_side(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path, "prenorm", seed, [4.0] * 3)
        write_run(tmp_path, "full", seed, [4.1 + seed / 1000] * 3)
    item = table4.ITEM
    data = item.render(Source("quick", runs=tmp_path)).data
    outcomes = {check.statement: check.test(data) for check in item.checks}
    holds, evidence = outcomes["Full AttnRes is better than PreNorm."]
    assert holds is False
    assert evidence == "+0.102 [+0.100, +0.104], paper -0.029, differs"
    assert outcomes["mHC is better than PreNorm."] == (None, "no finished pair of runs")


# Forms of a table


def test_step_times_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "step_time.csv"
    assert read_step_times(path) == {}
    path.write_text("arm,ratio_median,ratio_low,ratio_high,ms_median\nfull,1.25,1.2,1.3,80\n")
    assert read_step_times(path) == {"full": StepTime(1.25, 1.2, 1.3, 80.0)}
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
