"""Fig. 5: validation loss over training, and how evenly magnitudes and gradients are spread over depth."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from analysis import dynamics_table as view
from analysis.dynamics import MEASURES, ArmDynamics, gap, period, read_published, read_runs, resets
from analysis.dynamics_figure import dynamics_figure
from analysis.dynamics_table import DynamicsData, final_difference
from analysis.stats import MIN_SEEDS, seed_interval
from experiments.item import PUBLISHED_FILES, Check, PaperItem, Rendered, Source
from repro.errors import DataError

TITLE = "Fig. 5. Training dynamics"
ARMS = {"prenorm": "PreNorm", "block_s4": "Block (S=4)", "full": "Full"}
PUBLISHED_ARMS = {"prenorm": "PreNorm", "block": "Block (S=6)"}

Outcome = tuple[bool | None, str]


def render(source: Source) -> Rendered:
    """The paper's curves, or ours at a scale with the paper's as panels of their own."""
    files = PUBLISHED_FILES / "fig5a_val_loss.csv", PUBLISHED_FILES / "fig5bc_depth.csv"
    paper = tuple(read_published(arm, label, *files) for arm, label in PUBLISHED_ARMS.items())
    ours: tuple[ArmDynamics, ...] = ()
    notes: list[str] = []
    if not source.is_published:
        runs, notes = source.select("fig5", tuple(ARMS))
        found = [read_runs(arm, label, [r for r in runs if r.arm == arm]) for arm, label in ARMS.items()]
        ours = tuple(arm for arm in found if arm.runs)
        if not ours:
            scale = source.scale
            raise DataError(f"no finished runs of fig5 at scale {scale}: make fig5 SCALE={scale} trains them")
    data = DynamicsData(source.scale, paper, ours)
    seeds = max((len(arm.runs) for arm in ours), default=0)
    tables = view.tables(data, TITLE, notes)
    return Rendered(
        records=view.records(data),
        text=tables,
        terminal=tables,
        figure=dynamics_figure(paper, ours, f"scale {source.scale}, {seeds} seed{'s' * (seeds != 1)}"),
        runs=[run for arm in ours for run in arm.runs],
        data=data,
    )


def _paper(arm: str, series: str, measure: str, low: float, high: float) -> Callable[[DynamicsData], Outcome]:
    """A measure of the paper's digitised curve lies between two values."""

    def test(data: DynamicsData) -> Outcome:
        found = data.arm(arm, True)
        assert found is not None
        value = MEASURES[measure](found.blocks(series)[0])
        return low <= value <= high, f"{value:.4g}"

    return test


def _paper_period(data: DynamicsData) -> Outcome:
    found = data.arm("block", True)
    assert found is not None
    values = found.blocks("stream_paper")[0]
    result = period(values)
    where = ", ".join(map(str, resets(values)))
    return result is not None and result == (3, 1.0), f"falls at transformer blocks {where}"


def _paper_gap(data: DynamicsData) -> Outcome:
    block, prenorm = data.arm("block", True), data.arm("prenorm", True)
    assert block is not None
    assert prenorm is not None
    first, last = gap(block, prenorm)
    return abs(first + 0.0091) < 5e-4 and abs(
        last + 0.0183
    ) < 5e-4, f"{first:+.4f} at 10k, {last:+.4f} at the end"


def _more(series: str, measure: str, larger: str, smaller: str) -> Callable[[DynamicsData], Outcome]:
    """The logarithm of a measure is larger in one arm than in another, over paired seeds."""

    def test(data: DynamicsData) -> Outcome:
        paper = not data.ours
        a, b = data.arm(larger, paper), data.arm(smaller, paper)
        name = f"{series}_paper" if paper else f"{series}_rms"
        if a is None or b is None or any(name not in s for arm in (a, b) for s in arm.series):
            return None, "no finished pair of runs"
        values = [
            dict(zip(_keys(arm), map(MEASURES[measure], arm.blocks(name)), strict=True)) for arm in (a, b)
        ]
        logs = [math.log(values[0][key] / values[1][key]) for key in values[0] if key in values[1]]
        if not logs:
            return None, "no finished pair of runs"
        ratio = math.exp(float(np.mean(logs)))
        if paper:
            return ratio > 1, f"ratio {ratio:.3g}"
        if len(logs) < MIN_SEEDS:
            return None, f"ratio {ratio:.3g}, no verdict under {MIN_SEEDS} seeds"
        interval = seed_interval(logs)
        text = f"ratio {ratio:.3g} [{math.exp(interval.low):.3g}, {math.exp(interval.high):.3g}]"
        return (True if interval.low > 0 else False if interval.high < 0 else None), text

    return test


def _keys(arm: ArmDynamics) -> list[object]:
    return [run.seeds for run in arm.runs] or [None]


def _own_period(data: DynamicsData) -> Outcome:
    """Each of our partial sums falls where its blocks begin: every S / 2 transformer blocks."""
    block = data.arm("block", False)
    if block is None or "stream_rms" not in block.series[0]:
        return None, "no finished runs of Block"
    expected = int(block.runs[0].config["arm"]["mixer"]["block_size"]) // 2
    found = [period(row) for row in block.blocks("stream_rms")]
    told = ", ".join("none" if result is None else f"{result[0]}" for result in found)
    return all(
        result is not None and result[0] == expected for result in found
    ), f"{told}; S / 2 = {expected}"


def _lower_loss(data: DynamicsData) -> Outcome:
    paper = not data.ours
    block, prenorm = data.arm("block", paper), data.arm("prenorm", paper)
    difference = final_difference(block, prenorm) if block and prenorm else None
    if difference is None:
        return None, "no finished pair of runs"
    if paper:
        return difference.estimate < 0, f"{difference.estimate:+.4f} at the end"
    text = f"{difference.estimate:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] at the end"
    if difference.kind != "seeds" or difference.n < MIN_SEEDS:
        return None, f"{difference.estimate:+.3f} at the end, no verdict under {MIN_SEEDS} seeds"
    return (True if difference.high < 0 else False if difference.low > 0 else None), text


ITEM = PaperItem(
    name="fig5",
    title=TITLE,
    claim=(
        "Block stays below PreNorm's validation loss throughout; PreNorm's output grows with depth and its "
        "gradient is largest in the first blocks, while AttnRes keeps both bounded and evener."
    ),
    experiment="fig5",
    arms=tuple(ARMS),
    render=render,
    checks=(
        Check(
            "Digitised: PreNorm's output grows 300-fold over depth.",
            _paper("prenorm", "stream_paper", "growth", 290, 320),
        ),
        Check(
            "Digitised: Block's output is at most 1.91.",
            _paper("block", "stream_paper", "largest", 1.89, 1.93),
        ),
        Check(
            "Digitised: PreNorm's gradient falls 36-fold.",
            _paper("prenorm", "stream_grad_paper", "spread", 34, 38),
        ),
        Check(
            "Digitised: Block's gradient spreads 8-fold.",
            _paper("block", "stream_grad_paper", "spread", 7.5, 9),
        ),
        Check("Digitised: Block's output has a period of 3 transformer blocks (S = 6).", _paper_period),
        Check("Digitised: Block is 0.0091 below PreNorm at 10,000 steps, 0.0183 at the end.", _paper_gap),
        Check("Ours: Block's running sum has a period of S / 2 transformer blocks.", _own_period),
        Check("Block's validation loss ends below PreNorm's.", _lower_loss),
        Check(
            "PreNorm's magnitude grows more over depth than Block's.",
            _more("stream", "growth", "prenorm", "block"),
        ),
        Check(
            "PreNorm's gradient spreads more over depth than Block's.",
            _more("stream_grad", "spread", "prenorm", "block"),
        ),
        Check(
            "Block's gradient is more even than PreNorm's.",
            _more("stream_grad", "evenness", "block", "prenorm"),
        ),
    ),
    order=5,
)
