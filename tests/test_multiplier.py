"""The direct test of the compute multiplier: the crossing, its interval, and where it is undefined."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.multiplier import contest, multiplier
from analysis.selection import load
from experiments.item import Source
from experiments.items import ITEMS
from tests.synthetic_runs import write_run

MULTIPLES = (1.0, 1.25, 1.5, 2.0)
TOKENS = {"x1": 655360, "x1p25": 819200, "x1p5": 983040, "x2": 1310720}  # of quick: 320, 400, 480, 640 steps


def line(cross: float, slope: float = 0.4) -> np.ndarray:
    return slope * (math.log(cross) - np.log(MULTIPLES))


def test_the_crossing_of_a_line() -> None:
    root = multiplier([line(1.25)] * 3, MULTIPLES)
    assert (root.ratio, root.low, root.high) == pytest.approx((1.25, 1.25, 1.25))
    assert root.side == "inside"
    assert not root.local
    assert multiplier([line(1.4)], MULTIPLES).ratio == pytest.approx(1.4)
    assert math.isnan(multiplier([line(1.4)], MULTIPLES).low)  # one seed: no interval


@pytest.mark.parametrize(("cross", "side"), [(2.2, "above"), (0.9, "below")])
def test_outside_what_was_trained_it_is_undefined(cross: float, side: str) -> None:
    root = multiplier([line(cross)] * 2, MULTIPLES)
    assert math.isnan(root.ratio)
    assert root.side == side


def test_where_compute_does_not_help_there_is_none() -> None:
    root = multiplier([-line(1.25), -line(1.3), -line(1.2)], MULTIPLES)
    assert math.isnan(root.ratio)
    assert root.side == "none"


def test_a_slope_that_is_not_told_from_zero_bounds_nothing() -> None:
    root = multiplier([line(1.3), line(1.3) * -0.8], MULTIPLES)
    assert (root.low, root.high) == (0.0, math.inf)


def test_a_curved_difference_is_read_between_its_neighbours() -> None:
    """d falls ever faster: the line over all multiples would cross at 1.07, the data at 1.01."""
    d = np.array([0.002, -0.043, -0.084, -0.169])
    root = multiplier(d + 1e-4 * np.array([[1], [0], [-1]]), MULTIPLES)
    assert root.local
    assert root.ratio == pytest.approx(1.25 ** (0.002 / 0.045), rel=1e-6)


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_covers(seeds: int) -> None:
    """3000 tests, noise of a seed and of a run: 95 % but for three standard errors and the pretest."""
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(3000):
        noise = rng.normal(0, 0.02, (seeds, 1)) + rng.normal(0, 0.01, (seeds, 4))
        root = multiplier(line(1.25) + noise, MULTIPLES)
        held += root.low <= 1.25 <= root.high
    assert 0.93 < held / 3000 < 0.975


def write(root: Path, seeds: tuple[int, ...], block: float, prenorm: dict[str, float]) -> None:
    def one(arm: str, seed: int, loss: float, tokens: int, flops: float) -> None:
        directory = write_run(
            root, arm, seed, [loss] * 3, budget={"tokens": tokens}, model={"width": 64, "vocab_size": 9}
        )
        meta = json.loads((directory / "meta.json").read_text())
        meta |= {"parameters": 10**6, "flops_per_token": flops}
        (directory / "meta.json").write_text(json.dumps(meta))

    for seed in seeds:
        one("block_n8", seed, block + seed / 100, TOKENS["x1"], 1.1e6)
        for name, loss in prenorm.items():
            one("prenorm", seed, loss + seed / 100, TOKENS[name], 1.0e6)


def losses(cross: float) -> dict[str, float]:
    return dict(zip(TOKENS, 4.5 + line(cross), strict=True))


def test_runs_are_paired_by_seed(tmp_path: Path) -> None:
    write(tmp_path, (1, 2, 3), 4.5, losses(1.25))
    write_run(
        tmp_path,
        "prenorm",
        4,
        [9.0] * 3,
        budget={"tokens": TOKENS["x1"]},
        model={"width": 64, "vocab_size": 9},
    )
    runs, problems = load(tmp_path / "quick", "quick", ("prenorm", "block_n8"))
    found = contest("quick", TOKENS, "prenorm", "block_n8", runs, problems)
    assert found.multiples == MULTIPLES
    assert found.seeds == ("1", "2", "3")
    assert found.root("6nd").ratio == pytest.approx(1.25)
    assert found.root("account").ratio == pytest.approx(1.25 / 1.1)  # Block's own mixing is compute too
    assert found.at(1.25).estimate == pytest.approx(0.0, abs=1e-12)
    assert [found.verdict(m) for m in MULTIPLES] == ["more", "equal", "less", "less"]
    assert any("1 runs with seeds" in note for note in found.notes)


@pytest.mark.parametrize(
    ("seeds", "cross", "outcome"),
    [
        ((1, 2, 3), 1.25, [True, True, True]),
        ((1, 2, 3), 1.6, [True, False, False]),
        ((1,), 1.25, [True, None, None]),
    ],
)
def test_checks(tmp_path: Path, seeds: tuple[int, ...], cross: float, outcome: list[bool | None]) -> None:
    write(tmp_path, seeds, 4.5, losses(cross))
    rendered = ITEMS["multiplier"].render(Source("quick", tmp_path, tmp_path / "results"))
    assert [check.test(rendered.data)[0] for check in ITEMS["multiplier"].checks] == outcome
    ratio = next(
        row["value"] for row in rendered.records if row["source"] == "measured here, tokens at one shape"
    )
    assert ratio == pytest.approx(cross)


@pytest.mark.parametrize(
    ("names", "said"),
    [(("x1",), "undefined: one multiple trained"), ((), "No seed has finished runs of both")],
)
def test_too_few_runs_are_no_multiplier(tmp_path: Path, names: tuple[str, ...], said: str) -> None:
    write(tmp_path, (1, 2), 4.5, {name: loss for name, loss in losses(1.8).items() if name in names})
    rendered = ITEMS["multiplier"].render(Source("quick", tmp_path, tmp_path / "results"))
    assert said in str(rendered.text)
    assert [check.test(rendered.data)[0] for check in ITEMS["multiplier"].checks] == [True, None, None]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    write(tmp_path, (1, 2), 4.5, {name: loss for name, loss in losses(1.8).items() if name in ("x1", "x1p5")})
    rendered = ITEMS["multiplier"].render(Source("quick", tmp_path, tmp_path / "results"))
    notes = " ".join(note for table in rendered.text for note in table.notes)
    assert "no finished run at 1.25x, 2x" in notes
    assert "undefined: above 1.5x tokens" in str(rendered.text[0].rows[0]["ratio"])
