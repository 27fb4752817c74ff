"""AttnRes started from trained PreNorm checkpoints (not in the paper): what a conversion costs and gains."""

from __future__ import annotations

from collections.abc import Callable

import yaml

from analysis import convert_view
from analysis.convert import ConvertData, convert_data
from analysis.convert_figure import convert_figure
from analysis.number_text import interval_text
from analysis.selection import CONF, load
from analysis.stats import MIN_SEEDS
from experiments.item import Check, PaperItem, Rendered, Source
from repro.errors import DataError

NAME = "convert"
TITLE = "AttnRes from a trained PreNorm checkpoint"
SAME = 1e-9  # deviation of float64 logits that counts as none
Outcome = tuple[bool | None, str]


def labels() -> dict[str, str]:
    """Text of every arm that there is, since any may have been converted to."""
    found = {}
    for path in sorted((CONF / "arm").glob("*.yaml")):
        arm = yaml.safe_load(path.read_text(encoding="utf-8"))
        found[arm["name"]] = arm["label"]
    return found


def render(source: Source) -> Rendered:
    """The converted runs of one scale."""
    scale, names = source.scale, labels()
    own = f"{scale}/convert"
    runs, notes = load(source.runs / own, own, tuple(names), committed=source.results / scale / "runs")
    if not runs:
        raise DataError(
            f"no converted runs at scale {scale}: make convert SCALE={scale}, or "
            f"python -m repro.convert scale={scale} where PreNorm is trained"
        )
    data = convert_data(scale, runs, names, notes, source.setting)
    seeds = data.num_seeds
    title = f"{TITLE} (scale {scale}, {seeds} seed{'s' * (seeds != 1)})"
    text = convert_view.tables(data, title)
    figure = convert_figure(data, title)
    return Rendered(convert_view.records(data), text, text, figure, data.runs, data)


def _exact_is_exact(data: ConvertData) -> Outcome:
    rows = [row for row in data.rows if row.method == "exact"]
    worst = max((row.deviation for row in rows), default=0.0)
    return (worst <= SAME, f"at most {worst:.0e}, {len(rows)} arms") if rows else (None, "none converted")


def _better(arm: str) -> Callable[[ConvertData], Outcome]:
    """An exactly converted arm ends below the continued PreNorm run; open under three seeds."""

    def test(data: ConvertData) -> Outcome:
        row = data.row(arm, "exact")
        gain = row.gain if row else None
        if gain is None:
            return None, "no finished pair of runs"
        if gain.kind != "seeds" or gain.n < MIN_SEEDS:
            return None, f"{interval_text(gain)}, no verdict under {MIN_SEEDS} seeds"
        decided = gain.high < 0 or gain.low > 0
        return (gain.high < 0 if decided else None), interval_text(gain)

    return test


ITEM = PaperItem(
    name=NAME,
    title=TITLE,
    claim=(
        "Not in the paper, which trains from nothing: with zero queries and the norms' eps divided by the "
        "squared number of sources, AttnRes takes over a trained PreNorm model and loses nothing."
    ),
    experiment=NAME,
    arms=("prenorm", "block_s4", "full"),
    render=render,
    checks=(
        Check("An exact conversion leaves the function as it was.", _exact_is_exact),
        Check("Converted Block (S=4) ends below continued PreNorm.", _better("block_s4")),
        Check("Converted Full ends below continued PreNorm.", _better("full")),
    ),
    scales=tuple(sorted(path.stem for path in (CONF / "scale").glob("*.yaml"))),
    order=6.8,
)
