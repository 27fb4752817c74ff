"""The item `interventions` as csv, tables and one picture."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis import style
from analysis.interventions import ArmEffects, Interventions, cell_interval, effect, later
from analysis.stats import MIN_SEEDS, Interval
from analysis.tables import EMPTY, Column, Table

COLORS = {"remove": style.BLUE, "zero": style.ORANGE, "mean": style.GREEN, "random": style.PURPLE}
LINTHRESH = 1e-3  # nats: below it, the axes of effects are linear


def records(data: Interventions) -> list[dict[str, object]]:
    """One csv row per arm, read and source: weight, share, effects with intervals over windows (first
    seed).
    """
    rows: list[dict[str, object]] = []
    for arm in data.arms:
        record = arm.record
        removed, control = effect(record, "remove"), effect(record, "equal_mass")
        low, high = cell_interval(removed)
        for l, c in np.argwhere(np.isfinite(removed[..., 0])):
            rows.append(
                {
                    "scale": data.scale,
                    "model": arm.arm,
                    "seed": arm.seeds[0],
                    "read": int(l),
                    "source": str(record["labels"][l, c]),
                    "weight": float(record["weight"][l, c].mean()),
                    "share": float(record["share"][l, c].mean()),
                    "removed": float(removed[l, c].mean()),
                    "low": float(low[l, c]),
                    "high": float(high[l, c]),
                    "equal_mass": float(control[l, c].mean()),
                }
            )
    return rows


def tables(data: Interventions) -> list[Table]:
    """Effects, then the spread of weights over tokens."""
    kinds = sorted({i.kind for arm in data.arms for i in (arm.mean_effect, arm.by_share)})
    note = (
        f"Scale: {data.scale}. Loss in nats per token; 95 % over {' and '.join(kinds)} in brackets. Under "
        f"{MIN_SEEDS} seeds this says nothing about other trainings, so no verdict. The paper has no such "
        "numbers."
    )
    effects = Table(
        "Does a source matter? One source removed from one read",
        [
            Column("arm", "arm", numeric=False),
            Column("seeds", "seeds"),
            Column("cells", "cells"),
            Column("mean", "loss change ×1000"),
            Column("control", "minus control"),
            Column("weight", "rank corr."),
            Column("within", "within a read"),
        ],
        [
            {
                "arm": arm.arm,
                "seeds": ", ".join(arm.seeds),
                "cells": str(arm.cells),
                "mean": _interval(arm.mean_effect, 1000),
                "control": _interval(arm.over_control, 1000),
                "weight": _interval(arm.by_weight),
                "within": _interval(arm.within_read),
            }
            for arm in data.arms
        ],
        [
            note,
            "minus control (×1000): the read keeps the source and loses the same weight from other "
            "sources in random order (cells "
            "of weight below 0.5). rank corr.: Spearman between weight and loss change, over all cells "
            "and as "
            "mean over reads.",
            *data.notes,
        ],
    )
    spread = Table(
        "Depth weights over tokens, and which cells matter",
        [
            Column("arm", "arm", numeric=False),
            Column("sd", "sd over tokens"),
            Column("position", "between positions"),
            Column("frequency", "between frequencies"),
            Column("resolved", "resolved"),
            Column("top", "top agrees"),
            Column("share", "rank corr. of share"),
        ],
        [
            {
                "arm": arm.arm,
                "sd": f"{arm.spread:.4f}",
                "position": _percent(arm.by_position),
                "frequency": _percent(arm.by_frequency),
                "resolved": f"{100 * arm.resolved:.0f} %",
                "top": _percent(arm.top),
                "share": _interval(arm.by_share),
            }
            for arm in data.arms
        ],
        [
            "sd: of a weight, mean over cells, first seed; then the parts of its variance. Between "
            "positions: buckets that double in width; between "
            "frequencies: decades of the input token's frequency in the training text. share of the mixture: "
            "weight times norm of the source over the norm of what is read; it is defined for PreNorm "
            "too, where "
            "every weight is one. Its rank correlation is with the loss change of the first table. "
            "resolved: cells whose "
            "interval over windows excludes zero (no correction for their number). top agrees: reads in "
            "which the "
            "heaviest source is the one whose removal costs most.",
        ],
    )
    return [effects, spread]


def figure(data: Interventions) -> Figure:
    """A row per arm: weight or share against effect, effect by read and source, effect of removing
    everywhere;
    below, the spread of weights by position and by token frequency."""
    n = len(data.arms)
    with style.styled():
        drawing = Figure(figsize=(13.5, 3.7 * (n + 1)))
        FigureCanvasAgg(drawing)
        axes = drawing.subplots(n + 1, 3, squeeze=False)
        limit = max(float(np.nanmax(np.abs(effect(arm.record, "remove").mean(-1)))) for arm in data.arms)
        for row, arm in zip(axes, data.arms, strict=False):
            _scatter(row[0], arm)
            _map(drawing, row[1], arm, max(limit, 2 * LINTHRESH))
            _everywhere(row[2], arm)
        _spread(axes[n][0], data, "position", "token position (bucket's first)")
        _spread(axes[n][1], data, "frequency", "frequency of the input token (bucket's upper end)")
        axes[n][2].set_axis_off()
        seeds = sorted({seed for arm in data.arms for seed in arm.seeds[:1]})
        text = (
            f"Scale {data.scale}, seed {', '.join(seeds)}\n\nLoss change: nats per token, paired with the\n"
            f"untouched pass; symmetric log axes, linear\nbelow {LINTHRESH:g}. Bars: 95 % over windows.\n\n"
            "Hatched: no such source in that read.\nPreNorm: every summand has weight one, so\nits "
            "panels use the share of the sum."
        )
        axes[n][2].text(0.02, 0.95, text, va="top", fontsize=10)
        drawing.tight_layout(h_pad=2.0, w_pad=2.0)
        return drawing


def _scatter(axes: Axes, arm: ArmEffects) -> None:
    record = arm.record
    weight = record["weight"].mean(-1)
    removed, control = effect(record, "remove").mean(-1), effect(record, "equal_mass").mean(-1)
    constant = np.nanmax(weight) - np.nanmin(weight) == 0
    x = record["share"].mean(-1) if constant else weight
    light = np.isfinite(control) & (weight < 0.5)
    axes.plot(
        x[light], control[light], "x", ms=4, color=style.GREY, label="equal mass of others"
    ) if light.any() else None
    axes.plot(x.ravel(), removed.ravel(), "o", ms=4, alpha=0.6, color=style.BLUE, label="source removed")
    axes.axhline(0, color="black", lw=0.8)
    axes.set_xscale("log")
    wide = np.nanmax(x) > 30 * np.nanmin(x)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yscale("symlog", linthresh=LINTHRESH)
    axes.set_xlabel(
        "share of what is read, |v| / |sum|" if constant else "mean weight of the source in the read"
    )
    axes.set_ylabel("loss change (nats per token)")
    found = arm.by_share if constant else arm.by_weight
    axes.set_title(f"{arm.arm}: rank correlation {_interval(found)}", fontsize=10)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 8)  # room for the legend
    axes.legend(loc="upper left", fontsize=8)


def _map(drawing: Figure, axes: Axes, arm: ArmEffects, limit: float) -> None:
    values = effect(arm.record, "remove").mean(-1)
    axes.set_facecolor("#DDDDDD")
    axes.patch.set_hatch("////")
    axes.patch.set_edgecolor("#BBBBBB")
    image = axes.imshow(
        np.ma.masked_invalid(values),
        cmap="PuOr_r",
        norm=SymLogNorm(LINTHRESH, vmin=-limit, vmax=limit),
        aspect="auto",
        interpolation="nearest",
    )
    axes.grid(False)
    axes.set_xlabel("source (0: embedding)")
    axes.set_ylabel("read (last: output)")
    axes.set_title(f"{arm.arm}: loss change, source removed from one read", fontsize=10)
    drawing.colorbar(image, ax=axes, label="nats per token")


def _everywhere(axes: Axes, arm: ArmEffects) -> None:
    for k, (method, color) in enumerate(COLORS.items()):
        values = later(arm.record, method)
        kept = np.isfinite(values[:, 0])
        if not kept.any():
            continue
        low, high = cell_interval(values[kept])
        mean, x = values[kept].mean(-1), np.flatnonzero(kept) + 0.12 * (k - 1.5)
        label = {"remove": "removed", "zero": "zero", "mean": "its mean", "random": "random, same norm"}[
            method
        ]
        axes.errorbar(
            x,
            mean,
            yerr=[np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
            fmt="o",
            ms=3,
            lw=0.9,
            color=color,
            label=label,
        )
    axes.axhline(0, color="black", lw=0.8)
    axes.set_yscale("symlog", linthresh=LINTHRESH)
    axes.set_xlabel("source, touched in every read that has it")
    axes.set_ylabel("loss change (nats per token)")
    axes.set_title(f"{arm.arm}: all later reads", fontsize=10)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 12)  # room for the legend
    axes.legend(loc="upper right", ncols=2, fontsize=8)


def _spread(axes: Axes, data: Interventions, name: str, label: str) -> None:
    for arm, color, mark in zip(data.arms, (style.GREY, style.GREEN, style.BLUE), "sDo", strict=False):
        record = arm.record
        deviation = np.sqrt(record[f"{name}_variance"])
        seen = record[f"{name}_tokens"] > 0
        if not np.nanmax(deviation) > 0:
            continue
        edges = record[f"{name}_edges"]
        ticks = edges[:-1] if name == "position" else edges[1:]
        heights = np.array(
            [np.nanmean(deviation[..., k]) if seen[k] else math.nan for k in range(len(ticks))]
        )
        axes.plot(range(len(ticks)), heights, marker=mark, color=color, label=arm.arm)
        axes.set_xticks(range(len(ticks)), [f"{t:g}" for t in ticks])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(label)
    axes.set_ylabel("sd of a weight, mean over cells")
    axes.set_title("Spread of depth weights over tokens", fontsize=10)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)


def _interval(found: Interval, factor: float = 1.0) -> str:
    if not math.isfinite(found.estimate):
        return EMPTY
    text = f"{factor * found.estimate:+.2f}"
    if math.isfinite(found.low):
        text += f" [{factor * found.low:+.2f}, {factor * found.high:+.2f}]"
    return text.replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %" if math.isfinite(value) else EMPTY
