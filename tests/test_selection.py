"""Which runs stand behind a table, where a scale holds more than one set."""

from pathlib import Path

import pytest
import yaml

from analysis.selection import CONF, load, select
from repro.errors import DataError
from tests.synthetic_runs import ARMS, table_of, three_seeds, write_run


def test_the_setting_with_most_arms_is_used_and_the_rest_named(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    write_run(tmp_path, "prenorm", 1, [1.0] * 3, optim={"lr": 0.1})
    table = table_of(tmp_path)
    assert table.row("prenorm").loss == pytest.approx(4.5)
    assert any("1 runs of other settings left out (they differ in optim.lr)" in note for note in table.notes)


def test_among_equals_the_setting_of_the_scale_file_is_used(tmp_path: Path) -> None:
    """The learning rate of conf/scale/quick.yaml wins over others, as after the sweep per arm."""
    wanted = float(yaml.safe_load((CONF / "scale/quick.yaml").read_text())["optim"]["lr"])
    for lr, loss in ((wanted * 2, 3.0), (wanted, 4.0), (wanted / 2, 5.0)):
        for arm in ARMS:
            write_run(tmp_path, arm, 1, [loss] * 3, optim={"lr": lr})
    assert table_of(tmp_path).row("full").loss == pytest.approx(4.0)


def test_settings_that_cannot_be_ranked_must_be_chosen(tmp_path: Path) -> None:
    for name, loss in (("prose", 4.0), ("tech", 3.0)):
        for arm in ARMS:
            write_run(tmp_path, arm, 1, [loss] * 3, data={"name": name, "fingerprint": name})
    with pytest.raises(
        DataError, match=r"differ in data\.fingerprint, data\.name\); choose one with --setting"
    ):
        table_of(tmp_path)
    runs, _ = load(tmp_path / "quick", "quick", ARMS)
    tech = next(run.setting_id for run in runs if run.val_loss < 3.5)
    chosen, _ = select(runs, "quick", setting=tech[:6])
    assert {run.val_loss for run in chosen} == {3.0}
    with pytest.raises(DataError, match="must begin one of"):
        select(runs, "quick", setting="zz")


def test_seeds_set_apart_are_runs_of_their_own(tmp_path: Path) -> None:
    for init_seed, data_seed in ((1, 1), (2, 1), (1, 2)):
        write_run(tmp_path, "full", 1, [4.0] * 3, init_seed=init_seed, data_seed=data_seed)
    runs, _ = load(tmp_path / "quick", "quick", ARMS)
    chosen, notes = select(runs, "quick")
    assert {run.seeds for run in chosen} == {(1, 1, 1), (1, 2, 1), (1, 1, 2)}
    assert {run.seed_label for run in chosen} == {"1", "1(init_seed=2)", "1(data_seed=2)"}
    assert notes == []


def test_newer_semantics_win(tmp_path: Path) -> None:
    three_seeds(tmp_path)
    write_run(tmp_path, "prenorm", 1, [3.0] * 3, semantics=2)
    assert table_of(tmp_path).row("prenorm").loss == pytest.approx(3.0)


def test_an_arm_with_other_options_gives_way_to_the_arm_of_the_file(tmp_path: Path) -> None:
    arm = yaml.safe_load((CONF / "arm/full.yaml").read_text())
    changed = {**arm, "mixer": {**arm["mixer"], "key_gain": False}}
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)
    write_run(tmp_path, "full", 1, [3.9] * 3, arm_node=arm)
    write_run(tmp_path, "full", 1, [3.0] * 3, arm_node=changed)
    table = table_of(tmp_path)
    assert table.row("full").loss == pytest.approx(3.9)
    assert any("other options of the arm left out" in note for note in table.notes)
