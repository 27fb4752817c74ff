"""The zoo: which arms are in it, their groups, and the item from runs with given numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from analysis import style
from analysis.tables import to_text
from analysis.zoo import RELATED, RELATIVES, UNKNOWN, Member, group_of, ordered
from experiments import zoo
from experiments.item import Source
from repro.train.step_time import swept_arms
from tests.synthetic_runs import write_run

ROOT = Path(__file__).resolve().parents[1]
PRINTED = {"Residual": "single state", "HC/mHC": "multi state", "AttnRes Full": "cross-layer"}


def members(*rows: tuple[str, str | None, str]) -> dict[str, Member]:
    return {arm: Member(arm, arm.title(), parent, system) for arm, parent, system in rows}


def test_the_item_has_the_arms_of_the_sweep() -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert tuple(swept_arms(["experiment=zoo", "scale=smoke"])) == zoo.ITEM.arms
        listed = compose("train", ["experiment=zoo"], return_hydra_config=True).hydra.sweeper.params.arm
    assert {"prenorm", "full", "block_s4", "denseformer", "mhc"} <= set(zoo.ITEM.arms)
    assert not [arm for arm in zoo.ITEM.arms if arm.startswith("control_")]
    # Each excluded name is one that exists: an arm that is renamed does not slip in.
    names = {path.stem for path in (ROOT / "conf/arm").glob("*.yaml")}
    excluded = listed.partition("[")[2].partition("]")[0].split(",")
    assert {name for name in excluded if "*" not in name} <= names


def test_groups_by_hand() -> None:
    found = members(
        ("prenorm", None, "Residual"),
        ("mhc", "prenorm", "HC/mHC"),
        ("full", "prenorm", "AttnRes Full"),
        ("full_topk", "full", "AttnRes Full"),  # varies the printed system
        ("lr", "prenorm", "LR-AttnRes"),  # an AttnRes that is not printed
        ("gated", "lr", "Gated reads"),  # varies an AttnRes
        ("mudd", "prenorm", "MUDDFormer"),
        ("new", "prenorm", ""),
    )
    found["mhc"] = replace(found["mhc"], scheme="depth.hc.MHC")
    found["hc_static"] = Member("hc_static", "", "prenorm", "HC (static)", "depth.hc.HC")  # not printed
    expected = {
        "prenorm": "single state", "mhc": "multi state", "hc_static": "multi state", "full": "cross-layer",
        "full_topk": RELATIVES, "lr": RELATIVES, "gated": RELATIVES, "mudd": RELATED, "new": UNKNOWN,
    }  # fmt: skip
    assert {arm: group_of(arm, found, PRINTED) for arm in found} == expected
    order = [member.arm for _, member in ordered(list(found.values())[::-1], PRINTED)]
    assert order == ["prenorm", "mhc", "hc_static", "full", "full_topk", "gated", "lr", "mudd", "new"]


def runs_with_costs(root: Path) -> Source:
    """Three seeds of PreNorm and Full (0.098 better), one of mHC, a diverged Block; costs of some."""
    for seed in (1, 2, 3):
        write_run(root / "runs/quick", "prenorm", seed, [4.0] * 3, parameters=1000)
        write_run(root / "runs/quick", "full", seed, [3.9 + seed / 1000] * 3, parameters=1200)
    write_run(root / "runs/quick", "mhc", 1, [3.5, 3.5, 3.6], parameters=990)
    write_run(
        root / "runs/quick", "block_s4", 1, None, status="diverged", diverged_at_step=7, parameters=1100
    )
    folder = root / "results/quick"
    folder.mkdir(parents=True)
    (folder / "step_time.csv").write_text(
        "arm,ratio_median,ratio_lower_quartile,ratio_upper_quartile\nprenorm,1,1,1\nfull,1.5,1.4,1.6\nmhc,2.6,2,3\n"
    )
    (folder / "step_memory.csv").write_text("arm,ratio\nprenorm,1.0\nfull,1.25\n")
    return Source("quick", root / "runs", root / "results")


def test_rows_by_hand(tmp_path: Path) -> None:
    rendered = zoo.ITEM.render(runs_with_costs(tmp_path))
    by_arm = {record["arm"]: record for record in rendered.records}
    assert tuple(sorted(by_arm)) == zoo.ITEM.arms
    full, mhc, block = by_arm["full"], by_arm["mhc"], by_arm["block_s4"]
    # Differences -0.099, -0.098, -0.097: t interval 4.302653 * 0.001 / sqrt(3), t = -0.098 sqrt(3) / 0.001.
    assert full["minus_prenorm"] == pytest.approx(-0.098)
    assert full["minus_prenorm_low"] == pytest.approx(-0.098 - 0.00248414, abs=1e-6)
    assert full["outcome"] == "better"
    assert full["minus_prenorm_p_holm"] == pytest.approx(3.47e-5, rel=0.01)
    assert full["minus_prenorm_paper"] == pytest.approx(-0.029)
    assert (full["step_time_ratio"], full["step_memory_ratio"], full["extra_parameters"]) == (1.5, 1.25, 200)
    assert mhc["minus_prenorm_interval"] == "documents"
    assert mhc["outcome"] is None  # one seed
    assert (mhc["step_memory_ratio"], mhc["extra_parameters"]) == (None, -10)
    assert block["status"] == "diverged at step 7"
    assert (block["minus_prenorm"], block["extra_parameters"]) == (None, 100)
    assert by_arm["denseformer"]["status"] == "missing"
    assert by_arm["denseformer"]["extra_parameters"] is None
    assert by_arm["full_input_query"]["group"] == RELATIVES
    assert by_arm["mhc_lite"]["group"] == "multi state"
    outcomes = {check.statement: check.test(rendered.data) for check in zoo.ITEM.checks}
    assert outcomes["Every system trains without tuning."] == (False, "diverged: block_s4")
    assert outcomes["Every system has a result."][0] is None
    assert outcomes["No step takes more than 2.5 times PreNorm's."] == (False, "mhc 2.60")


def test_text_and_picture(tmp_path: Path) -> None:
    rendered = zoo.ITEM.render(runs_with_costs(tmp_path))
    text = to_text(rendered.terminal[0])
    assert max(map(len, text.splitlines())) <= 120
    assert "[single state]" in text
    assert "diverged at step 7" in text
    loss = rendered.figure.axes[0]
    drawn = [text.get_text() for text in loss.texts]
    assert {"diverged at step 7", "cross-layer"} <= set(drawn)
    hatched = [sum(bool(patch.get_hatch()) for patch in axes.patches) for axes in rendered.figure.axes]
    n = len(zoo.ITEM.arms)
    # No loss but for Full, mHC and PreNorm; time of three, memory of two; parameters of four.
    assert hatched == [n - 3, n - 3, n - 2, n - 4]
    ours = [line for line in loss.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    fills = {round(float(line.get_xdata()[0]), 3): line.get_markerfacecolor() for line in ours}
    assert fills == {-0.098: style.OURS, -0.48: "white"}


def test_an_arm_that_is_far_off_does_not_flatten_the_rest(tmp_path: Path) -> None:
    source = runs_with_costs(tmp_path)
    write_run(tmp_path / "runs/quick", "denseformer", 1, [9.0] * 3)
    loss = zoo.ITEM.render(source).figure.axes[0]
    assert loss.get_xscale() == "symlog"
    assert math.isclose(max(loss.get_xticks()), 3)
