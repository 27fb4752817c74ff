"""Fig. 6: validation loss against block size S with PreNorm and Full as lines; ours beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.ablation import BASELINE, AblationTable
from analysis.stats import LEVEL, seed_interval

FULL = "full"


def block_size_figure(
    published: AblationTable, ours: AblationTable | None, sizes: Mapping[str, int]
) -> Figure:
    """One panel per source, each with its own loss axis (the models differ); S falls from left to right.

    sizes: block size in sublayers of each arm on the curve; 1 is Full AttnRes.
    """
    with style.styled():
        figure, panels = style.new_figure(10.0 if ours else 5.6, 4.1, 2 if ours else 1)
        losses = {row.spec.name: row.spec.paper_loss for row in published.rows}
        _panel(panels[0], losses, sizes, style.PAPER, "D")
        panels[0].set_title("Paper (436M activated parameters, one run per point)", fontsize=10)
        if ours:
            means = {row.spec.name: row.loss for row in ours.rows if row.loss is not None}
            _panel(panels[1], means, sizes, style.OURS, "o")
            _spread(panels[1], ours, sizes)
            seeds = sorted({len(row.done) for row in ours.rows if row.done})
            count = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1])))) if seeds else "0"
            panels[1].set_title(f"Ours (scale {ours.scale}, seeds per point: {count})", fontsize=10)
            _absent(panels[1], ours, sizes)
        figure.tight_layout()
        return figure


def _panel(
    axes: Axes, losses: Mapping[str, float], sizes: Mapping[str, int], color: str, marker: str
) -> None:
    points = [(size, losses[arm]) for arm, size in sizes.items() if arm in losses]
    if points:
        axes.plot(
            *zip(*points, strict=True), marker=marker, color=color, label="AttnRes, block size S", zorder=3
        )
    for arm, label, line, shade in (
        (BASELINE, "PreNorm", "--", style.PRENORM),
        (FULL, "Full AttnRes", ":", style.FULL),
    ):
        if arm in losses:
            axes.axhline(losses[arm], ls=line, color=shade, label=label, zorder=1)
    axes.set_xscale("log", base=2)
    ticks = sorted(set(sizes.values()))
    axes.set_xticks(ticks, [f"{s}\n(Full)" if s == 1 else str(s) for s in ticks])
    axes.minorticks_off()
    axes.set_xlim(max(ticks) * 1.25, min(ticks) / 1.25)
    axes.margins(y=0.12)
    axes.set_xlabel("block size S (sublayers; two per transformer block)")
    axes.set_ylabel("validation loss (nats per token)")
    axes.legend(loc="best")


def _spread(axes: Axes, table: AblationTable, sizes: Mapping[str, int]) -> None:
    """Bars for the interval of each mean; one seed has none: its intervals are those of differences."""
    for row in table.rows:
        if row.spec.name in sizes and len(row.done) > 1:
            interval = seed_interval([run.val_loss for run in row.done], LEVEL)
            x = sizes[row.spec.name]
            axes.plot([x, x], [interval.low, interval.high], color=style.OURS, lw=2, alpha=0.5, zorder=2)


def _absent(axes: Axes, table: AblationTable, sizes: Mapping[str, int]) -> None:
    for row in table.rows:
        if row.spec.name in sizes and row.status != "done":
            axes.text(
                sizes[row.spec.name],
                0.03,
                f"S = {sizes[row.spec.name]}: {row.status}",
                transform=axes.get_xaxis_transform(),
                rotation=90,
                ha="center",
                va="bottom",
                style="italic",
                fontsize=9,
            )
    if not any(np.isfinite(row.loss) for row in table.rows if row.loss is not None):
        axes.text(0.5, 0.5, "no finished run", transform=axes.transAxes, ha="center")
