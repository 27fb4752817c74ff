"""Fig. 6: validation loss against block size S with PreNorm and Full as lines; ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.ablation import BASELINE, AblationTable
from analysis.ablation_view import num_blocks, transformer_blocks

FULL = "full"


def block_size_figure(
    published: AblationTable, ours: AblationTable | None, sizes: Mapping[str, int]
) -> Figure:
    """One panel per source, each with its own loss axis (the models differ); S falls from left to right.

    sizes: block size in sublayers of each arm on the curve; 1 is Full AttnRes.
    """
    with style.styled():
        figure, panels = style.new_figure(10.0 if ours else 5.6, 4.8, 2 if ours else 1)
        losses = {row.spec.name: row.spec.paper_loss for row in published.rows}
        _panel(panels[0], losses, sizes, style.PAPER, "D", published.num_sublayers)
        _values(panels[0], losses, sizes)
        panels[0].set_title("Paper (436M activated parameters, one run per point)", fontsize=10)
        if ours:
            means = {row.spec.name: row.loss for row in ours.rows if row.loss is not None}
            _panel(panels[1], means, sizes, style.OURS, "o", ours.num_sublayers)
            _intervals(panels[1], ours, sizes)
            _absent(panels[1], ours, sizes)
            panels[1].set_title(f"Ours (scale {ours.scale}, {_seeds(ours)})", fontsize=10)
        handles = {
            label: handle
            for axes in panels
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=3)
        figure.tight_layout(rect=(0, 0.13 if len(handles) > 3 else 0.07, 1, 1), w_pad=2.5)
        return figure


def _panel(
    axes: Axes,
    losses: Mapping[str, float],
    sizes: Mapping[str, int],
    color: str,
    marker: str,
    num_sublayers: int | None,
) -> None:
    heights = [losses.get(arm, math.nan) for arm in sizes]  # NaN leaves a gap where an arm has no result
    who = "paper" if marker == "D" else "ours"
    axes.plot(
        list(sizes.values()),
        heights,
        marker=marker,
        color=color,
        label=f"AttnRes with blocks, {who}",
        zorder=3,
    )
    lines = ((BASELINE, "PreNorm", "--", style.PRENORM), (FULL, "Full AttnRes", ":", style.FULL))
    for arm, label, line, shade in lines:
        if arm in losses:
            axes.axhline(losses[arm], ls=line, color=shade, label=label, zorder=1)
    axes.set_xscale("log", base=2)
    ticks = sorted(sizes.values())
    axes.set_xticks(ticks, [_tick(size, num_sublayers) for size in ticks])
    axes.minorticks_off()
    axes.set_xlim(max(ticks) * 1.25, min(ticks) / 1.25)
    axes.margins(y=0.1)
    units = "block size S in sublayers; the same in transformer blocks"
    depth = f";\nnumber of blocks N at L = {num_sublayers} sublayers" if num_sublayers else ""
    axes.set_xlabel(units + depth)
    axes.set_ylabel("validation loss (nats per token)")


def _values(axes: Axes, losses: Mapping[str, float], sizes: Mapping[str, int]) -> None:
    """The loss at each point and PreNorm's, as the paper prints them; clear of the falling curve."""
    for arm, size in sizes.items():
        if arm in losses:
            place: Any = {"xytext": (2, 7)} if size > 1 else {"xytext": (0, -14), "ha": "center"}
            axes.annotate(
                f"{losses[arm]:.3f}",
                (size, losses[arm]),
                textcoords="offset points",
                fontsize=8.5,
                **place,
            )
    if BASELINE in losses:
        loss, place = losses[BASELINE], {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        axes.text(0.99, loss, f"{loss:.3f}", fontsize=8.5, ha="right", **place)


def _tick(size: int, num_sublayers: int | None) -> str:
    lines = [f"{size} (Full)" if size == 1 else str(size), f"{size / 2:g}"]
    return "\n".join(lines + ([f"N = {num_blocks(size, num_sublayers)}"] if num_sublayers else []))


def _intervals(axes: Axes, table: AblationTable, sizes: Mapping[str, int]) -> None:
    """Bars for the paired difference to PreNorm: what the distance to its line is worth."""
    kinds = {row.to_prenorm.ours.kind for row in table.rows if row.to_prenorm and row.to_prenorm.ours}
    over = " and ".join(sorted(kinds - {"none"}))
    label = f"95 % of the difference to PreNorm, over {over}"
    for row in table.rows:
        ours = row.to_prenorm.ours if row.to_prenorm else None
        if row.spec.name in sizes and ours and row.loss is not None and math.isfinite(ours.low):
            ends = [row.loss + ours.low - ours.estimate, row.loss + ours.high - ours.estimate]
            axes.plot(
                [sizes[row.spec.name]] * 2,
                ends,
                color=style.OURS,
                lw=6,
                alpha=0.3,
                solid_capstyle="butt",
                label=label,
            )
            label = ""


def _absent(axes: Axes, table: AblationTable, sizes: Mapping[str, int]) -> None:
    for row in table.rows:
        size = sizes.get(row.spec.name)
        if size and row.status != "done":
            text = f"S = {size} ({transformer_blocks(size)}): {row.status}"
            place: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(
                size, 0.04, text, rotation=90, style="italic", fontsize=9, backgroundcolor="white", **place
            )


def _seeds(table: AblationTable) -> str:
    counts = sorted({len(row.done) for row in table.rows if row.done}) or [0]
    spelled = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return f"{spelled} seed{'' if counts == [1] else 's'} per point"
