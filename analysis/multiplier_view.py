"""The measured multiplier beside the paper's 1.25x: table, csv records, picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, NullLocator

from analysis import style
from analysis.ablation_view import interval_text
from analysis.multiplier import Contest, Root
from analysis.stats import LEVEL, MARGIN, MIN_SEEDS
from analysis.tables import EMPTY, Column, Table


@dataclass(frozen=True)
class Estimate:
    """One way to the multiplier.

    ratio: NaN where undefined, and ``undefined`` says why; low, high: NaN without an interval; ours: measured
    here.
    """

    label: str
    how: str
    ratio: float
    low: float
    high: float
    ours: bool = False
    undefined: str = ""


def measured(contest: Contest) -> list[Estimate]:
    """The direct test by both axes."""
    count = len(contest.seeds)
    over = f"Fieller, t over {count} seeds" if count > 1 else "one seed, no interval"
    if not count:
        return []
    names = (("6nd", "tokens at one shape"), ("account", "FLOP account"))
    found: list[tuple[str, Root]] = [(text, contest.root(axis)) for axis, text in names]
    sides = {
        "above": f"undefined: above {max(contest.multiples):g}x tokens",
        "below": f"undefined: below {min(contest.multiples):g}x tokens",
        "none": "undefined: loss does not fall",
        "one": "undefined: one multiple trained",
    }
    return [
        Estimate(
            f"measured here, {text}",
            over + (", between neighbours" if root.local else ""),
            root.ratio,
            root.low,
            root.high,
            True,
            sides.get(root.side, ""),
        )
        for text, root in found
    ]


def multiplier_tables(estimates: Sequence[Estimate], contest: Contest | None, title: str) -> list[Table]:
    """The estimates, and for runs the direct comparison at each multiple."""
    columns = [
        Column("label", "multiplier from", numeric=False),
        Column("ratio", "compute × [95 %]"),
        Column("how", "interval", numeric=False),
    ]
    rows = [{"label": e.label, "ratio": _text(e), "how": e.how} for e in estimates]
    notes = [
        "Compute that PreNorm needs to reach Block's loss, over Block's compute. The paper trains no such "
        "pair of runs: "
        "its 1.25x is read from two fitted curves, of one run per size."
    ]
    if contest is None:
        notes.append("The direct test, PreNorm at 1.25 times Block's compute, has no published numbers.")
        return [Table(title, columns, rows, notes)]
    notes += [
        f"Scale: {contest.scale}. Measured: PreNorm at several multiples of Block's tokens, at one shape "
        "and paired by "
        "seed; the multiple at which the mean difference is zero, by a line in log compute.",
        "FLOP account: Block's own mixing counts as compute. Undefined: outside the multiples that were "
        "trained. between "
        "neighbours: the difference is curved in log compute, and the two nearest multiples are used alone.",
        *contest.notes,
    ]
    return [Table(title, columns, rows), _direct(contest, notes)]


def _direct(contest: Contest, notes: Sequence[str]) -> Table:
    columns = [
        Column("multiple", "PreNorm's compute"),
        Column("n", "n"),
        Column("loss", "PreNorm"),
        Column("reached", "Block at 1x"),
        Column("difference", "PreNorm minus Block [95 %]"),
        Column("verdict", "PreNorm needs", numeric=False),
    ]
    words = {
        "more": "more than this",
        "less": "less than this",
        "equal": "this",
        "underpowered": "underpowered",
    }
    rows = [
        {
            "multiple": f"{multiple:g}x",
            "n": str(len(contest.seeds)),
            "loss": f"{contest.losses[:, j].mean():.3f}",
            "reached": f"{contest.reached.mean():.3f}",
            "difference": interval_text(contest.at(multiple)),
            "verdict": words.get(contest.verdict(multiple) or "", EMPTY),
        }
        for j, multiple in enumerate(contest.multiples)
        if len(contest.seeds)
    ]
    rule = (
        f"Losses in nats per token; intervals {100 * LEVEL:.0f} %, t over paired seeds. this: the "
        "interval is within "
        f"±{MARGIN} nats; no verdict under {MIN_SEEDS} seeds."
    )
    return Table("PreNorm with more compute against Block", columns, rows, [*notes, rule])


def _text(e: Estimate) -> str:
    text = f"{e.ratio:.3f}" if math.isfinite(e.ratio) else e.undefined or "undefined"
    if math.isnan(e.low):
        return text
    return f"{text} [{e.low:.2f}, {f'{e.high:.2f}' if e.high < 1e3 else 'unbounded'}]"


def multiplier_records(estimates: Sequence[Estimate], contest: Contest | None) -> list[dict[str, object]]:
    """One csv record per estimate and, for runs, one per multiple."""
    rows: list[dict[str, object]] = [
        {
            "quantity": "multiplier", "source": e.label, "multiple": None, "value": e.ratio, "low": e.low,
            "high": e.high, "undefined": e.undefined, "interval": e.how, "seeds": None, "verdict": None,
        }
        for e in estimates
    ]  # fmt: skip
    if contest is None or not contest.seeds:
        return rows
    for multiple in contest.multiples:
        interval = contest.at(multiple)
        rows.append(
            {
                "quantity": "prenorm_minus_block", "source": contest.scale, "multiple": multiple,
                "value": interval.estimate, "low": interval.low, "high": interval.high, "undefined": None,
                "interval": interval.kind, "seeds": " ".join(contest.seeds),
                "verdict": contest.verdict(multiple),
            }
        )  # fmt: skip
    return rows


def multiplier_figure(estimates: Sequence[Estimate], contest: Contest | None) -> Figure:
    """Every estimate with its interval; for runs, beside it the losses against the multiple."""
    two = contest is not None and len(contest.seeds) > 0
    with style.styled():
        figure, panels = style.new_figure(
            11.6 if two else 7.4, 1.5 + 0.42 * len(estimates) + (1.4 if two else 0), 1 + two
        )
        _estimates(panels[0], estimates)
        if two and contest is not None:
            _losses(panels[1], contest)
        figure.tight_layout(w_pad=2.5)
        return figure


def _estimates(axes: Axes, estimates: Sequence[Estimate]) -> None:
    finite = [v for e in estimates for v in (e.ratio, e.low, e.high) if math.isfinite(v)]
    left, right = max(0.5, min(0.95, *finite)), min(3.0, max(1.4, *finite))
    for y, e in enumerate(estimates):
        color = style.OURS if e.ours else style.PAPER
        if math.isfinite(e.low):
            ends = np.clip([e.low, e.high], left, right)
            axes.plot(ends, [y, y], color=color, lw=2.4, solid_capstyle="butt")
            for end, edge, mark in ((e.low, left, "<"), (e.high, right, ">")):
                if (end < edge) if mark == "<" else (end > edge):  # the interval goes on
                    axes.plot(edge, y, mark, color=color, ms=7, clip_on=False)
        if math.isfinite(e.ratio) and left <= e.ratio <= right:
            look: Any = {} if e.ours else {"mfc": "white", "mew": 1.4}
            axes.plot(e.ratio, y, "o" if e.ours else "D", color=color, ms=6, zorder=3, **look)
        else:
            word = (
                (e.undefined or "undefined")
                if not math.isfinite(e.ratio)
                else f"{e.ratio:.2f}, beyond the axis"
            )
            axes.text((left + right) / 2, y - 0.18, word, ha="center", style="italic", fontsize=9)
    axes.axvline(1.0, color=style.PRENORM, lw=1)
    axes.axvline(1.25, color="black", lw=1, ls=":")
    axes.set_yticks(range(len(estimates)), [e.label for e in estimates])
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.set_xlim(left - 0.02, right + 0.02)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(
        "compute of PreNorm / compute of Block at one loss (dotted: 1.25)\nbars: 95 %, where there is one"
    )


def _losses(axes: Axes, contest: Contest) -> None:
    m = np.array(contest.multiples)
    if len(contest.seeds) > 1:
        axes.plot(m, contest.differences.T, "o", mfc="none", color=style.SKY, ms=4.5)
        axes.plot([], [], "o", mfc="none", color=style.SKY, ms=4.5, label="one seed each")
    mean = contest.differences.mean(0)
    label = f"mean of {len(contest.seeds)} seeds" if len(contest.seeds) > 1 else "one seed"
    axes.plot(m, mean, "o", color=style.OURS, label=label, zorder=3)
    if len(m) > 1 and contest.root("6nd").local:
        axes.plot(m, mean, color=style.OURS, lw=1.4, label="between neighbours")
    elif len(m) > 1:
        slope, level = np.polyfit(np.log(m), mean, 1)
        grid = np.geomspace(m.min(), m.max(), 50)
        axes.plot(
            grid,
            level + slope * np.log(grid),
            color=style.OURS,
            lw=1.4,
            label="line in log compute, all multiples",
        )
    for j, multiple in enumerate(contest.multiples):
        interval = contest.at(multiple)
        if math.isfinite(interval.low):
            look: Any = {
                "color": style.OURS,
                "lw": 5,
                "alpha": 0.25,
                "label": None if j else "95 %, paired seeds",
            }
            axes.plot([multiple] * 2, [interval.low, interval.high], **look)
    axes.axhline(0.0, color=style.PRENORM, lw=1.2, label="Block at 1x")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(m)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%gx"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.08, y=0.12)
    axes.set_xlabel("PreNorm's tokens, in multiples of Block's")
    axes.set_ylabel("PreNorm minus Block at 1x\n(nats per token)")
    count = len(contest.seeds)
    axes.set_title(f"Scale {contest.scale}, {count} seed{'s' * (count != 1)}", fontsize=10)
    axes.legend(loc="best")
