"""Fig. 4: loss against compute with fitted curves and bands, and the compute advantage against loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FormatStrFormatter, MaxNLocator, NullFormatter, NullLocator
from scipy.special import stdtrit

from analysis import style
from analysis.advantage import Place, paired_interval
from analysis.compute_axis import NAMES as AXES
from analysis.scaling import NAMES, Array, Curve
from analysis.scaling_study import Study

COLORS = (style.PRENORM, style.BLOCK, style.FULL, style.MHC)
MARKERS = ("o", "s", "D", "^")
LINES = ("-", "--", "-", ":")


def scaling_figure(study: Study, printed: Mapping[tuple[str, str], Curve], method: str) -> Figure:
    """Two panels; method: the arm whose advantage is marked at left and drawn at right."""
    with style.styled():
        figure, (left, right) = style.new_figure(11.4, 4.9, 2)
        _losses(left, study, method)
        _advantages(right, study, printed, method)
        _heading(figure, study)
        figure.tight_layout(rect=(0, 0, 1, 0.94), w_pad=2.5)
        return figure


def _heading(figure: Figure, study: Study) -> None:
    ladder = study.ladder
    if ladder.scale == "published":
        text = "Fig. 4. Scaling (the paper's Table 2, one run per point; fits and bands are ours)"
    else:
        count = len(ladder.seeds)
        text = f"Fig. 4. Scaling (scale {ladder.scale}, {count} seed{'s' * (count != 1)} per point)"
    figure.text(0.012, 0.985, text, fontsize=11.5, weight="bold", va="top")


def _losses(axes: Axes, study: Study, method: str) -> None:
    ladder, axis = study.ladder, study.axis
    compute = ladder.compute[axis]
    known = compute[np.isfinite(compute)]
    grid = np.geomspace(known.min() / 1.25, known.max() * 1.25, 120)
    for k, label in enumerate(ladder.labels):
        axes.plot(compute[k], ladder.losses[k], MARKERS[k], color=COLORS[k], ms=5.5, zorder=4)
        line = "none" if study.fitted is None else LINES[k]
        axes.plot([], [], marker=MARKERS[k], ls=line, color=COLORS[k], ms=5.5, lw=1.5, label=label)
        if study.fitted is None:
            continue
        curve = study.curve(ladder.arms[k])
        axes.plot(grid, curve.loss(grid), LINES[k], color=COLORS[k], lw=1.5, zorder=3)
        if ladder.arms[k] in (ladder.arms[0], method):
            low, high = _band(study.fitted.compute[axis][k], study.fitted.losses[k], curve, grid)
            axes.fill_between(grid, low, high, color=COLORS[k], alpha=0.15, lw=0, zorder=1)
    if study.fitted is not None:
        _arrow(axes, study, method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_xlabel(f"compute ({ladder.unit}, {AXES[axis]})")
    axes.set_ylabel("validation loss (nats per token)")
    if study.why_not:
        axes.text(0.5, 0.5, "no fit: fewer than three complete sizes", transform=axes.transAxes, ha="center")
    handles, labels = axes.get_legend_handles_labels()
    if study.fitted is not None:
        labels = [f"{text}: {_equation(study, k)}" for k, text in enumerate(labels)]
    axes.legend(
        handles,
        labels,
        loc="upper right",
        title=f"OLS, log-log; bands: 95 %, PreNorm and {_name(study, method)}",
    )
    axes.margins(y=0.12)


def _name(study: Study, arm: str) -> str:
    return study.ladder.labels[study.ladder.arms.index(arm)]


def _equation(study: Study, k: int) -> str:
    curve = study.curve(study.ladder.arms[k])
    return rf"${float(curve.a):.3f}\,C^{{-{float(curve.alpha):.4f}}}$"


def _band(compute: Array, loss: Array, curve: Curve, grid: Array) -> tuple[Array, Array]:
    """95 % of the mean of log L at each C: the usual t band of a line."""
    x, n = np.log(compute), len(compute)
    residuals = np.log(loss) - np.log(curve.loss(compute))
    sigma = math.sqrt(float((residuals**2).sum()) / (n - 2))
    leverage = 1 / n + (np.log(grid) - x.mean()) ** 2 / float(((x - x.mean()) ** 2).sum())
    half = float(stdtrit(n - 2, 0.975)) * sigma * np.sqrt(leverage)
    return curve.loss(grid) * np.exp(-half), curve.loss(grid) * np.exp(half)


def _arrow(axes: Axes, study: Study, method: str) -> None:
    """The horizontal distance of the two curves at one loss."""
    place = study.advantage(method, "loss").place
    curves = [study.curve(arm) for arm in (study.ladder.arms[0], method)]
    ends = [float(np.exp(curve.log_compute(place.value))) for curve in curves]
    ratio = place.ratio(*curves)
    if not math.isfinite(ratio):
        return
    known = study.ladder.compute[study.axis]
    if abs(math.log(ratio)) < 0.03 * math.log(np.nanmax(known) / np.nanmin(known)):
        return  # shorter than its own heads
    style_: Any = {"arrowstyle": "<->", "color": "black", "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (ends[1], place.value), (ends[0], place.value), arrowprops=style_, zorder=5)
    axes.annotate(
        f"{ratio:.2f}×", (max(ends), place.value), (5, 5), textcoords="offset points", ha="left", va="bottom",
        fontsize=10,
    )  # fmt: skip


def _advantages(axes: Axes, study: Study, printed: Mapping[tuple[str, str], Curve], method: str) -> None:
    if study.fitted is None:
        axes.set_axis_off()
        return
    ladder, fitted = study.ladder, study.fitted
    base, k = ladder.arms[0], ladder.arms.index(method)
    losses = np.linspace(fitted.losses[[0, k]].min(), fitted.losses[[0, k]].max(), 60)
    axis = study.axis

    def ratios(curves: tuple[Curve, Curve]) -> list[float]:
        return [Place("loss", float(loss)).ratio(*curves) for loss in losses]

    pair = [tuple(values[i] for i in (0, k)) for values in (fitted.compute[axis], fitted.losses)]
    ends = np.array([paired_interval(pair[0], pair[1], Place("loss", float(loss))) for loss in losses])
    bounded = np.isfinite(ends).all(1)
    axes.fill_between(
        losses[bounded],
        *ends[bounded].T,
        color=style.OURS,
        alpha=0.15,
        lw=0,
        label="95 % of that, scatter of points",
    )
    looks: dict[str, Any] = {
        "ols": {"color": style.OURS, "lw": 2},
        "ls": {"color": style.SKY, "ls": "--"},
        "huber": {"color": style.PURPLE, "ls": "-."},
    }
    lines: list[tuple[str, tuple[Curve, Curve], Any]] = [
        (f"{NAMES[estimator]}, {AXES[axis]}", _pair(study, base, method, axis, estimator), look)
        for estimator, look in looks.items()
    ]
    for other, look in zip(ladder.axes[1:], ({"color": style.GREEN}, {"color": "black"}), strict=False):
        lines.append(
            (f"{NAMES['ols']}, {AXES[other]}", _pair(study, base, method, other, "ols"), {"ls": ":", **look})
        )
    if ladder.scale == "published":
        for source, dashes in (("printed", "--"), ("drawn", "-")):
            curves = printed[source, base], printed[source, method]
            lines.append(
                (
                    f"the paper's coefficients, {source}",
                    curves,
                    {"color": style.PAPER, "ls": dashes, "lw": 1.3},
                )
            )
    for label, curves, look in lines:
        axes.plot(losses, ratios(curves), label=label, **look)
    axes.axhline(1.0, color=style.PRENORM, lw=1)
    axes.invert_xaxis()
    axes.set_xlabel("validation loss (nats per token); more compute to the right")
    axes.set_ylabel(f"compute of PreNorm / compute of {ladder.labels[k]}")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    handles, labels = axes.get_legend_handles_labels()
    order = [1, 0, *range(2, len(handles))]
    axes.legend([handles[i] for i in order], [labels[i] for i in order], loc="best", fontsize=8)
    shown = [r for _, curves, _ in lines for r in ratios(curves) if math.isfinite(r)] or [1.0]
    low, high = min(1.0, *shown), max(1.0, *shown)
    reach = 2.0 * (high - low) + 0.05  # the band may be far wider than the lines
    top = min(float(ends[bounded].max()), high + reach) if bounded.any() else high
    bottom = max(float(ends[bounded].min()), low - reach) if bounded.any() else low
    bottom, top = min(bottom, low), max(top, high)
    axes.set_ylim(bottom - 0.05 * (top - bottom), top + 0.45 * (top - bottom))


def _pair(study: Study, base: str, method: str, axis: str, estimator: str) -> tuple[Curve, Curve]:
    return study.curve(base, axis, estimator), study.curve(method, axis, estimator)


def _plain_ticks(axes: Axes) -> None:
    """Numbers, not powers of ten, where the axis spans less than two decades."""
    low, high = axes.get_ylim()
    ticks = [t for t in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= t <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FormatStrFormatter("%.3g"))
    axes.yaxis.set_minor_locator(NullLocator())
    left, right = axes.get_xlim()
    if right / left < 100:
        decades = 10.0 ** np.arange(math.floor(math.log10(left)), math.ceil(math.log10(right)) + 1)
        marks = [m * d for d in decades for m in (1, 2, 5) if left <= m * d <= right]
        axes.xaxis.set_major_locator(FixedLocator(marks))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%.3g"))
        axes.xaxis.set_minor_formatter(NullFormatter())
