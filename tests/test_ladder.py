"""The ladder: what its configs are, how runs become points, and the items rendered from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.figure import Figure

from analysis.ladder import ladder_of_runs
from analysis.ladder_figure import ladder_figure
from analysis.ladder_table import contrasts
from analysis.scaling_figure import scaling_figure
from analysis.scaling_study import study
from analysis.selection import load
from experiments.item import Source
from experiments.items import ITEMS
from experiments.ladder_items import ARMS, LABELS, paper_ladder, paper_study, printed_curves
from repro.errors import ConfigError, DataError
from repro.runs import run_id
from repro.train.by_scale import by_scale
from repro.train.schedule import build_schedule
from tests.synthetic_runs import write_run
from tests.test_configs import SCALES, composed, plain

ROOT = Path(__file__).resolve().parents[1]
SIZES = yaml.safe_load((ROOT / "conf/ladder/sizes/quick.yaml").read_text())
# alpha and A of each arm, in TFLOP; the FLOPs per token below are chosen as 6 N.
TRUTH = {"prenorm": (5.0, 0.06), "block_n8": (4.9, 0.06), "full": (4.85, 0.06), "mhc_lite": (4.9, 0.06)}


def non_embedding(row: dict[str, Any]) -> int:
    """Weights of the matrices: 4 D^2 of attention and 3 D F of the MLP per transformer block."""
    width = row["width"]
    return int(row["num_transformer_blocks"] * (4 * width**2 + 3 * width * row["mlp_width"]))


def write_ladder(root: Path, seeds: tuple[int, ...] = (1,), noise: float = 0.0, **options: Any) -> None:
    """Runs on exact power laws; noise: nats, alternating in sign by seed, alike for all arms."""
    for seed in seeds:
        for name, row in SIZES.items():
            for arm, (a, alpha) in TRUTH.items():
                if (name, arm) in options.get("without", ()):
                    continue
                n = non_embedding(row)
                tflop = 6.0 * n * row["tokens"] / 1e12
                loss = a * tflop**-alpha + noise * (-1) ** seed
                model = {"vocab_size": 2048} | {k: row[k] for k in ("width", "num_transformer_blocks")}
                model |= {k: row[k] for k in ("num_heads", "mlp_width")}
                directory = write_run(
                    root, arm, seed, [loss] * 3, model=model, optim={"lr": row["lr"]},
                    budget={"tokens": row["tokens"], "batch_size": row["batch_size"]},
                )  # fmt: skip
                meta = json.loads((directory / "meta.json").read_text())
                meta |= {"parameters": n + 2 * 2048 * row["width"], "flops_per_token": 6.0 * n}
                (directory / "meta.json").write_text(json.dumps(meta))


# Configs


@pytest.mark.parametrize("scale", SCALES)
def test_sizes_of_a_scale(scale: str) -> None:
    """One ratio of width to depth, one number of tokens per parameter, whole steps, models that can be."""
    overrides = ["data.dataset=x"] if scale == "gpu" else []
    base = composed(f"scale={scale}", *overrides)
    sizes = [composed(f"scale={scale}", f"ladder={name}", *overrides) for name in "abcde"]
    rows = [plain(config) for config in sizes]
    counts = np.array([non_embedding(row["model"]) for row in rows])
    assert (np.diff(counts) > 0).all()
    ratios = np.array([row["model"]["width"] / row["model"]["num_transformer_blocks"] for row in rows])
    assert np.ptp(ratios) <= 0.01 * ratios.mean()
    per_parameter = np.array([row["budget"]["tokens"] for row in rows]) / counts
    assert np.ptp(per_parameter) <= (0.06 if scale == "smoke" else 0.003) * per_parameter.mean()
    for row in rows:
        assert row["budget"]["tokens"] % (row["budget"]["batch_size"] * row["budget"]["context"]) == 0
        assert row["model"]["width"] // row["model"]["num_heads"] % 2 == 0
        assert row["model"]["num_transformer_blocks"] >= 4  # eight blocks of at least one sublayer
        build_schedule(row["schedule"])
    rates = np.array([row["optim"]["lr"] for row in rows])
    assert rates / rates[-1] == pytest.approx((counts / counts[-1]) ** -0.393, rel=0.03)
    if scale != "smoke":  # one of the five is the scale's own model, so that its runs are shared
        assert run_id(base) in [run_id(config) for config in sizes]


def test_the_model_of_the_committed_runs_is_a_size_of_the_ladder() -> None:
    """Full with seed 2 at quick: the id of its committed run."""
    committed = ROOT / "results/quick/runs/full"
    config = composed("ladder=c", "arm=full", "seed=2")
    config.data.fingerprint = "e13a11d5925d79efd22a97ca01d37a9c5f91a15a407200e8480adbe7ed234d71"
    assert run_id(config) == "1312d7229665"
    assert (committed / "1312d7229665").is_dir()


@pytest.mark.parametrize("scale", SCALES)
def test_multiples_of_a_scales_compute(scale: str) -> None:
    overrides = ["data.dataset=x"] if scale == "gpu" else []
    base = composed(f"scale={scale}", *overrides)
    unit = base.budget.tokens
    expected = {"block_x1": 1, "prenorm_x1": 1, "prenorm_x1p25": 1.25, "prenorm_x1p5": 1.5, "prenorm_x2": 2}
    for name, multiple in expected.items():
        config = composed(f"scale={scale}", f"compute={name}", *overrides)
        assert config.arm.name == ("block_n8" if name == "block_x1" else "prenorm")
        assert config.budget.tokens / unit == pytest.approx(multiple, rel=2e-4)
        assert config.budget.tokens % (config.budget.batch_size * config.budget.context) == 0


def test_a_scale_without_a_ladder_is_named() -> None:
    config = composed()
    config.scale = "paper/48b"
    with pytest.raises(ConfigError, match="cpu, cpu_wide"):
        by_scale("ladder/sizes", "a.width", _root_=config)
    config.scale = "quick"
    with pytest.raises(ConfigError, match=r"a\.depth"):
        by_scale("ladder/sizes", "a.depth", _root_=config)


# Runs to points


def read(root: Path) -> Any:
    runs, problems = load(root / "quick", "quick", ARMS)
    return ladder_of_runs("quick", LABELS, runs, problems)


def test_runs_become_points_and_the_curves_are_found(tmp_path: Path) -> None:
    write_ladder(tmp_path)
    ladder = read(tmp_path)
    assert [size.name for size in ladder.sizes] == list("abcde")
    assert ladder.compute["account"] == pytest.approx(ladder.compute["6nd"])
    assert ladder.sizes[2].parameters == 802816
    assert ladder.compute["6nd"][0, 2] == pytest.approx(6 * 802816 * 655360 / 1e12)
    found = study(ladder)
    for arm, (a, alpha) in TRUTH.items():
        assert float(found.curve(arm).a) == pytest.approx(a, rel=1e-6)
        assert float(found.curve(arm).alpha) == pytest.approx(alpha, rel=1e-5)
    expected = (5.0 / 4.9) ** (1 / 0.06)
    assert found.advantage("block_n8", "method").ratio == pytest.approx(expected, rel=1e-5)


def test_paired_seeds_leave_the_difference_alone(tmp_path: Path) -> None:
    """Noise that is alike for both arms of a seed moves every loss and no difference."""
    write_ladder(tmp_path, seeds=(1, 2, 3), noise=0.05)
    ladder = read(tmp_path)
    assert ladder.seeds == ("1", "2", "3")
    assert np.ptp(ladder.by_seed, axis=0).min() == pytest.approx(0.1)
    paper = paper_ladder()
    for contrast in contrasts(ladder, paper):
        assert contrast.ours is not None
        assert contrast.ours.kind == "seeds"
        assert contrast.ours.high - contrast.ours.low < 1e-9
        assert contrast.verdict == "agrees"
    row = study(ladder).advantage("block_n8", "method")
    assert row.seeds is not None
    assert row.seeds.low < row.ratio < row.seeds.high
    assert row.documents is not None


def test_a_size_without_every_arm_is_shown_and_in_no_fit(tmp_path: Path) -> None:
    write_ladder(tmp_path, without={("b", "full")})
    ladder = read(tmp_path)
    assert ladder.status[2][1] == "missing"
    assert math.isnan(ladder.losses[2, 1])
    found = study(ladder)
    assert found.fitted is not None
    assert [size.name for size in found.fitted.sizes] == ["a", "c", "d", "e"]
    assert float(found.curve("full").a) == pytest.approx(4.85, rel=1e-6)


def test_seeds_that_not_all_cells_have_are_left_out(tmp_path: Path) -> None:
    write_ladder(tmp_path, seeds=(1, 2), without={("e", "prenorm")})
    write_ladder(tmp_path / "more", seeds=(1,))
    one = next(
        p for p in (tmp_path / "more/quick/prenorm").iterdir() if "1281280" in (p / "config.yaml").read_text()
    )
    one.rename(tmp_path / "quick/prenorm" / one.name)
    ladder = read(tmp_path)
    assert ladder.seeds == ("1",)
    assert ladder.complete.all()
    assert any("left out" in note for note in ladder.notes)


def test_two_sizes_fit_nothing_and_say_so(tmp_path: Path) -> None:
    write_ladder(tmp_path, without={(name, "full") for name in "abc"})
    found = study(read(tmp_path))
    assert found.fitted is None
    assert "needs three" in found.why_not
    for item in ("table2", "fig4"):
        rendered = ITEMS[item].render(Source("quick", tmp_path, tmp_path / "results"))
        assert rendered.records
        assert all(check.test(rendered.data)[0] is None for check in ITEMS[item].checks)


def test_runs_of_another_study_are_left_out(tmp_path: Path) -> None:
    write_ladder(tmp_path)
    write_run(tmp_path, "prenorm", 1, [4.0] * 3)  # no size of the ladder
    assert len(read(tmp_path).runs) == 20
    with pytest.raises(DataError, match="make table2 SCALE=quick"):
        ladder_of_runs("quick", LABELS, [])
    with pytest.raises(DataError, match="cpu, cpu_wide"):
        ladder_of_runs("published", LABELS, [])


# Items


@pytest.mark.parametrize("scale", ["published", "quick"])
def test_pictures_hold_their_text(tmp_path: Path, scale: str) -> None:
    if scale == "quick":
        write_ladder(tmp_path, seeds=(1, 2), noise=0.05)
        data = study(read(tmp_path))
    else:
        data = paper_study()
    for figure in (
        ladder_figure(data.ladder, paper_ladder()),
        scaling_figure(data, printed_curves(), "block_n8"),
    ):
        check_texts(figure)


def check_texts(figure: Figure) -> None:
    figure.canvas.draw()
    width, height = figure.canvas.get_width_height()
    labels = [(axes.xaxis.label, axes.yaxis.label, axes.title) for axes in figure.axes]
    texts = [text for found in labels for text in found if text.get_text()]
    assert texts
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height


def test_checks_on_the_published_numbers() -> None:
    outcomes = {
        name: [check.test(ITEMS[name].render(Source("published")).data)[0] for check in ITEMS[name].checks]
        for name in ("table2", "fig4", "multiplier")
    }
    assert outcomes["table2"] == [True, True, False, True, True]  # Full loses to mHC-lite at 241M
    assert outcomes["fig4"] == [True] * 6
    assert outcomes["multiplier"] == [True, None, None]


def test_a_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="--setting"):
        ITEMS["table2"].render(Source("quick", setting="abc"))
