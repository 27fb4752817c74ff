"""Fig. 7: which shape PreNorm and AttnRes prefer at fixed parameters and compute."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.arch_sweep import Cell
from analysis.arch_sweep_figure import arch_sweep_figure
from analysis.arch_sweep_results import PRENORM, Sweep, read_published, sweep
from analysis.arch_sweep_table import records, tables
from analysis.stats import MIN_SEEDS
from experiments.fig7_grids import GRIDS, plans
from experiments.item import PUBLISHED, PUBLISHED_FILES, Check, PaperItem, Rendered, Source
from repro.errors import DataError

TITLE = "Fig. 7. Architecture sweep"
ATTNRES = "full"  # the paper does not say which; Full leaves no block size to choose as depth changes
Outcome = tuple[bool | None, str]


@dataclass(frozen=True)
class SweepData:
    """The paper's grid and, at a trained scale, ours."""

    paper: Sweep
    ours: Sweep | None

    @property
    def shown(self) -> Sweep:
        """What the item is about at this scale."""
        return self.ours or self.paper


def render(source: Source) -> Rendered:
    """The paper's heatmaps; at a trained scale ours below them, cells without a run hatched."""
    paper = read_published(PUBLISHED_FILES / "fig7_grid.csv", ATTNRES)
    ours = None
    if not source.is_published:
        runs, problems = source.load("fig7", (PRENORM, ATTNRES))
        ours = sweep(source.scale, ATTNRES, plans(source.scale), runs, problems)
        if not ours.runs:
            scale = source.scale
            raise DataError(f"no runs of fig7 at scale {scale}: make fig7 SCALE={scale} trains them")
    text = tables(paper, ours, TITLE)
    return Rendered(
        records=records(paper, ours),
        text=text,
        terminal=text,
        figure=arch_sweep_figure(paper, ours),
        runs=ours.runs if ours else (),
        data=SweepData(paper, ours),
    )


def _stars(data: SweepData) -> Outcome:
    expected = {PRENORM: (Cell(60, 0.3), 1.847), ATTNRES: (Cell(45, 0.3), 1.802)}
    found = {arm: data.paper.optimum(arm) for arm in expected}
    holds = all(
        found[arm] == cell and data.paper.loss(arm, cell) == loss for arm, (cell, loss) in expected.items()
    )
    told = [
        f"({cell.width_per_block:g}, {cell.heads_per_block:g}) {data.paper.loss(arm, cell):.3f}"
        for arm, cell in found.items()
        if cell
    ]
    return holds, ", ".join(told)


def _range(data: SweepData) -> Outcome:
    gains = [gain.estimate for cell in data.paper.cells if (gain := data.paper.gain(cell))]
    low, high = min(gains), max(gains)
    return abs(low - 0.019) < 5e-4 and abs(high - 0.063) < 5e-4, f"{low:.3f} to {high:.3f}"


def _fixed(_: SweepData) -> Outcome:
    worst = {
        scale: max(max(abs(p.parameters_error), abs(p.flops_error)) for p in plans(scale)) for scale in GRIDS
    }
    told = ", ".join(f"{scale} {100 * error:.1f} %" for scale, error in worst.items())
    return max(worst.values()) < 0.02, f"at most {told} off"


def _better_everywhere(data: SweepData) -> Outcome:
    shown = data.shown
    gains = [shown.gain(cell) for cell in shown.cells]
    found = [gain for gain in gains if gain]
    positive = sum(gain.estimate > 0 for gain in found)
    told = f"in {positive} of {len(shown.cells)} cells"
    if data.ours is None:
        return positive == len(shown.cells), told
    if len(found) < len(gains) or any(gain.kind != "seeds" or gain.n < MIN_SEEDS for gain in found):
        return None, f"{told}, no verdict under {MIN_SEEDS} seeds of every cell"
    if any(gain.high < 0 for gain in found):
        return False, told
    return (True if all(gain.low > 0 for gain in found) else None), told


def _deeper(data: SweepData) -> Outcome:
    """AttnRes's optimum has the smaller d / L_b: in the paper's grid, or with every one of three seeds."""
    base, own = (data.shown.optima_by_seed(arm) for arm in (PRENORM, ATTNRES))
    shared = [key for key in base if key in own]
    pairs = [(own[key].width_per_block, base[key].width_per_block) for key in shared]
    told = "; ".join(f"{attnres:g} against {prenorm:g}" for attnres, prenorm in pairs)
    deeper = [attnres < prenorm for attnres, prenorm in pairs]
    if data.ours is not None and len(shared) < MIN_SEEDS:
        return None, f"{told or 'grid not finished'}, no verdict under {MIN_SEEDS} seeds"
    return (True if all(deeper) else None if any(deeper) else False), told


ITEM = PaperItem(
    name="fig7",
    title=TITLE,
    claim=(
        "At fixed parameters and compute AttnRes is better than PreNorm at every shape, by 0.019 to 0.063, "
        "and prefers a deeper, narrower one."
    ),
    experiment="fig7",
    arms=(PRENORM, ATTNRES),
    render=render,
    checks=(
        Check("Printed: stars at (60, 0.3) 1.847 for PreNorm and (45, 0.3) 1.802 for AttnRes.", _stars),
        Check("Printed: gains from 0.019 to 0.063.", _range),
        Check("Planned shapes keep parameters and compute within 2 %.", _fixed),
        Check("AttnRes is better in every cell.", _better_everywhere),
        Check("AttnRes prefers a deeper, narrower model (smaller d / L_b).", _deeper),
    ),
    scales=(PUBLISHED, *GRIDS),
    order=7,
)
