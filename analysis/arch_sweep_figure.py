"""Fig. 7 as heatmaps: loss of PreNorm and AttnRes on one colour scale, each optimum starred, and the gain.

A cell without a result is hatched. Rows of panels: the paper's, then ours at a trained scale, each with a
colour scale of its own, since the models differ.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis import style
from analysis.arch_sweep import Cell
from analysis.arch_sweep_results import PRENORM, Sweep

LOSS_COLOURS, GAIN_COLOURS = "viridis_r", "PuOr"


def arch_sweep_figure(paper: Sweep, ours: Sweep | None) -> Figure:
    """Three panels per source: PreNorm, AttnRes, PreNorm minus AttnRes."""
    sources = [(paper, "Paper (one run per cell)")]
    if ours is not None:
        seeds = len(ours.seeds)
        sources.append((ours, f"Ours (scale {ours.scale}, {seeds} seed{'s' * (seeds != 1)})"))
    with style.styled():
        figure = Figure(figsize=(13.5, 4.3 * len(sources)))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
        grid = figure.subplots(len(sources), 3, squeeze=False)
        for row, (source, who) in zip(grid, sources, strict=True):
            _row(figure, list(row), source, who)
        return figure


def _row(figure: Figure, panels: list[Axes], source: Sweep, who: str) -> None:
    losses = {arm: _matrix(source, arm) for arm in (PRENORM, source.attnres)}
    gains = _gains(source)
    known = np.concatenate([m[np.isfinite(m)] for m in losses.values()])
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    names = {PRENORM: "PreNorm", source.attnres: "AttnRes" if source.scale == "published" else "AttnRes Full"}
    for axes, (arm, matrix) in zip(panels, losses.items(), strict=False):
        _heatmap(axes, source, matrix, LOSS_COLOURS, low, high, "{:.3f}")
        axes.set_title(f"{who}: {names[arm]} (star: lowest)", fontsize=10)
        best = source.optimum(arm)
        if best is not None:
            x, y = _place(source, best)
            axes.plot(x, y - 0.27, "*", color="white", mec="black", mew=0.7, ms=13, zorder=4)
    figure.colorbar(panels[1].images[0], ax=panels[:2], label="validation loss (nats per token)", pad=0.02)
    reach = float(np.nanmax(np.abs(gains))) if np.isfinite(gains).any() else 1.0
    _heatmap(panels[2], source, gains, GAIN_COLOURS, -reach, reach, "{:+.3f}")
    panels[2].set_title(f"{who}: PreNorm minus AttnRes", fontsize=10)
    figure.colorbar(panels[2].images[0], ax=panels[2], label="gain of AttnRes (nats per token)", pad=0.02)


def _heatmap(
    axes: Axes, source: Sweep, matrix: np.ndarray, colours: str, low: float, high: float, form: str
) -> None:
    axes.grid(False)
    axes.patch.set(hatch="////", edgecolor="#A8A8A8", linewidth=0)
    if high <= low:
        low, high = low - 1e-3, high + 1e-3
    image = axes.imshow(
        np.ma.masked_invalid(matrix), cmap=colours, vmin=low, vmax=high, origin="lower", aspect="auto"
    )
    for (y, x), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            r, g, b, _ = image.cmap(image.norm(value))
            dark = 0.299 * r + 0.587 * g + 0.114 * b < 0.5
            color = "white" if dark else "black"
            axes.text(x, y, form.format(value), ha="center", va="center", color=color, fontsize=9)
    widths, heads = _axes(source)
    axes.set_xticks(range(len(widths)), [f"{w:g}" for w in widths])
    axes.set_yticks(range(len(heads)), [f"{h:g}" for h in heads])
    axes.set_xlabel("width per transformer block, $d / L_b$")
    axes.set_ylabel("heads per transformer block, $H / L_b$")


def _axes(source: Sweep) -> tuple[list[float], list[float]]:
    widths = sorted({cell.width_per_block for cell in source.cells})
    return widths, sorted({cell.heads_per_block for cell in source.cells})


def _place(source: Sweep, cell: Cell) -> tuple[int, int]:
    widths, heads = _axes(source)
    return widths.index(cell.width_per_block), heads.index(cell.heads_per_block)


def _empty(source: Sweep) -> np.ndarray:
    widths, heads = _axes(source)
    return np.full((len(heads), len(widths)), np.nan)


def _matrix(source: Sweep, arm: str) -> np.ndarray:
    matrix = _empty(source)
    for cell in source.cells:
        x, y = _place(source, cell)
        loss = source.loss(arm, cell)
        matrix[y, x] = np.nan if loss is None else loss
    return matrix


def _gains(source: Sweep) -> np.ndarray:
    matrix = _empty(source)
    for cell in source.cells:
        x, y = _place(source, cell)
        gain = source.gain(cell)
        matrix[y, x] = np.nan if gain is None else gain.estimate
    return matrix
