"""The direct test of 1.25x (not in the paper): PreNorm with more compute against Block."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.ablation_view import interval_text
from analysis.advantage import Place
from analysis.compute_axis import NAMES
from analysis.grid_runs import table_of_scale
from analysis.multiplier import Contest, contest
from analysis.multiplier_view import (
    Estimate,
    measured,
    multiplier_figure,
    multiplier_records,
    multiplier_tables,
)
from analysis.stats import MARGIN, MIN_SEEDS
from experiments.item import Check, PaperItem, Rendered, Source
from experiments.ladder_items import METHOD, PAPER_COMPUTE, paper_study, printed_curves
from repro.errors import ConfigError

TITLE = "The compute multiplier of Block over PreNorm, tested directly"
BASELINE = "prenorm"
CLAIMED = 1.25


@dataclass(frozen=True)
class Multiplier:
    """All estimates; contest: the runs of the direct test, None for published numbers."""

    estimates: tuple[Estimate, ...]
    contest: Contest | None


def indirect() -> list[Estimate]:
    """The paper's multiplier at Block's 5.6 PFLOP/s-days: its coefficients, and refits of its table."""
    printed, place = printed_curves(), Place("method", PAPER_COMPUTE)
    found = [
        Estimate(
            f"the paper's coefficients, {source}",
            "none published",
            place.ratio(printed[source, BASELINE], printed[source, METHOD]),
            math.nan,
            math.nan,
        )
        for source in ("printed", "drawn")
    ]
    study = paper_study()
    for axis in study.ladder.axes:
        row = study.advantage(METHOD, "method", axis)
        assert row.paired is not None
        found.append(
            Estimate(f"Table 2 refitted, OLS, {NAMES[axis]}", "t, scatter of 5 sizes", row.ratio, *row.paired)
        )
    return found


def render(source: Source) -> Rendered:
    """The indirect estimates and, of runs, the measured one."""
    estimates, runs = indirect(), None
    if not source.is_published:
        if source.setting is not None:
            raise ConfigError(
                "--setting", source.setting, "not for multiplier, whose budgets are settings of their own"
            )
        tokens = table_of_scale("compute/tokens", source.scale)
        runs = contest(source.scale, tokens, BASELINE, METHOD, *source.load("multiplier", (BASELINE, METHOD)))
        estimates = [*measured(runs), *estimates]
    tables = multiplier_tables(estimates, runs, TITLE)
    return Rendered(
        records=multiplier_records(estimates, runs),
        text=tables,
        terminal=tables,
        figure=multiplier_figure(estimates, runs),
        runs=runs.runs if runs else (),
        data=Multiplier(tuple(estimates), runs),
    )


def _indirect_holds(data: Multiplier) -> tuple[bool | None, str]:
    printed = next(e for e in data.estimates if e.label.endswith("printed"))
    return abs(printed.ratio - CLAIMED) <= 0.005, f"{printed.ratio:.3f}"


def _measured_holds(data: Multiplier) -> tuple[bool | None, str]:
    if data.contest is None:
        return None, "no such runs are published"
    if len(data.contest.seeds) < MIN_SEEDS:
        return None, f"no verdict under {MIN_SEEDS} seeds"
    root = data.contest.root("6nd")
    if root.side != "inside" or not math.isfinite(root.high):
        return None, f"undefined or unbounded: {root.side}, [{root.low:.2f}, {root.high:.2f}]"
    return root.low <= CLAIMED <= root.high, f"{root.ratio:.3f} [{root.low:.2f}, {root.high:.2f}]"


def _reaches(data: Multiplier) -> tuple[bool | None, str]:
    runs = data.contest
    if runs is None or CLAIMED not in runs.multiples or not runs.seeds:
        return None, "no such runs" if runs else "no such runs are published"
    interval, verdict = runs.at(CLAIMED), runs.verdict(CLAIMED)
    if verdict is None:
        return None, f"{interval.estimate:+.3f}, no verdict under {MIN_SEEDS} seeds"
    evidence = f"PreNorm at {CLAIMED}x minus Block {interval_text(interval)}"
    return (None if verdict == "underpowered" else verdict == "equal"), evidence


ITEM = PaperItem(
    name="multiplier",
    title=TITLE,
    claim=(
        "Block AttnRes has the loss of PreNorm trained with 1.25 times the compute (the paper: from two "
        "fits)."
    ),
    experiment="multiplier",
    arms=(BASELINE, METHOD),
    render=render,
    checks=(
        Check("The printed coefficients give 1.25x.", _indirect_holds),
        Check("The measured multiplier's interval holds 1.25.", _measured_holds),
        Check(f"PreNorm with 1.25 times the compute is within {MARGIN} nats of Block.", _reaches),
    ),
    order=4.5,
)
