"""The eps confound: what is computed at initialisation, and what is shown with and without trained losses."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from analysis.selection import departures, load
from experiments.eps import ITEM
from experiments.item import Source
from repro.errors import DataError
from repro.train.eps_deviation import deviation, logits
from tests.synthetic_runs import write_run
from tests.test_configs import composed

HEADER = "arm,num_transformer_blocks,init_scheme,embedding_std,norm_eps,init_seed,deviation\n"
ROWS = [
    f"{arm},{depth},{init},{eps},{seed},{value}\n"
    for init in ("depth_scaled,1.0", "gpt2,0.02")
    for arm in ("full", "block_s4")
    for depth in (4, 16)
    for eps in ("1e-08", "1e-05")
    for seed, value in ((1, depth * float(eps)), (2, 4 * depth * float(eps)))
]


def _file(folder: Path, text: str) -> None:
    path = folder / "results/quick/eps_deviation.csv"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def _sweep(folder: Path, seeds: int) -> None:
    for seed in range(1, seeds + 1):
        for eps, shift in ((1e-8, 0.0), (1e-5, 0.1)):
            for arm in ("prenorm", "full", "block_s4"):
                loss = 4.5 + 0.01 * seed + (shift + 0.001 * seed * (shift > 0) if arm == "full" else 0.0)
                write_run(folder / "runs", arm, seed, [loss] * 3, model={"width": 64, "norm_eps": eps})


def _source(folder: Path) -> Source:
    return Source("quick", folder / "runs", folder / "results")


def test_deviation_is_in_standard_deviations_of_the_reference() -> None:
    reference = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0], dtype=torch.float64)  # variance 1 with n - 1
    assert deviation(reference + 0.5, reference) == pytest.approx(0.5)


def test_prenorm_returns_as_eps_vanishes_and_deviation_is_linear_in_it() -> None:
    overrides = ("scale=smoke", "model.num_transformer_blocks=4")
    eps = (1e-30, 1e-8, 1e-7)
    reference = logits(composed(*overrides, "arm=prenorm"), eps)
    for arm in ("full", "block_s4"):
        found = logits(composed(*overrides, f"arm={arm}"), eps)
        values = [deviation(a, b) for a, b in zip(found, reference, strict=True)]
        assert values[0] < 1e-12
        assert values[2] / values[1] == pytest.approx(10, rel=0.01)


def test_deviations_render_without_runs(tmp_path: Path) -> None:
    _file(tmp_path, HEADER + "".join(ROWS))
    rendered = ITEM.render(_source(tmp_path))
    assert rendered.runs == ()
    (row,) = [
        row
        for row in rendered.records
        if (row["model"], row["init_scheme"], row["num_transformer_blocks"], row["norm_eps"])
        == ("full", "gpt2", 16, 1e-5)
    ]
    assert row["value"] == pytest.approx(2 * 16e-5)  # geometric mean of 1 and 4 times 16e-5
    assert row["seeds"] == 2
    assert [check.test(rendered.data)[0] for check in ITEM.checks] == [True, True, False, True, None, None]


@pytest.mark.parametrize(("seeds", "verdict"), [(1, None), (3, True)])
def test_losses_render_without_deviations(tmp_path: Path, seeds: int, verdict: bool | None) -> None:
    _sweep(tmp_path, seeds)
    data = ITEM.render(_source(tmp_path)).data
    assert data.eps == [1e-8, 1e-5]
    gap = data.gap("full", 1e-5)
    assert gap is not None
    mean = 0.1 + 0.001 * sum(range(1, seeds + 1)) / seeds
    assert gap.estimate == pytest.approx(mean)
    assert math.isfinite(gap.low) == (seeds > 1)
    outcomes = {check.statement: check.test(data)[0] for check in ITEM.checks}
    assert outcomes["Eps 1e-5 instead of 1e-8 changes Full's final loss."] is verdict
    assert outcomes["Eps 1e-5 instead of 1e-8 changes Block's final loss."] is None


def test_neither_is_one_line_and_so_is_a_damaged_file(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "prenorm", 1, [4.0] * 3, model={"norm_eps": 1e-8})  # one value is no sweep
    with pytest.raises(DataError, match=r"repro\.train\.eps_deviation scale=quick"):
        ITEM.render(_source(tmp_path))
    _file(tmp_path, "arm,value\nfull,1\n")
    with pytest.raises(DataError, match="not the columns arm"):
        ITEM.render(_source(tmp_path))


def test_a_sweep_over_eps_leaves_the_other_items_their_runs(tmp_path: Path) -> None:
    """The eps of a run counts as a departure from its scale, so tables choose the default's runs."""
    _sweep(tmp_path, 1)
    runs, _ = load(tmp_path / "runs/quick", "quick", ("full",))
    told = {run.setting["model.norm_eps"]: departures(run, "quick") for run in runs}
    assert "model.norm_eps" not in told[1e-8]
    assert told[1e-5]["model.norm_eps"] == 1e-5
    chosen, _ = _source(tmp_path).select("fig5", ("prenorm", "full", "block_s4"))
    assert {run.setting["model.norm_eps"] for run in chosen} == {1e-8}
