"""The pictures of Fig. 9: matrices in symbols, measured matrices as maps, and ranks across depth cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.matrices import CHECKPOINT, Measured, cut_ranks, shares
from analysis.mixing_forms import Form

#: One light tint per source, of the house palette.
_TINTS = ("#CFE3F2", "#FBE3B5", "#BFE5D8", "#F6D1BC", "#EED6E3", "#D5EBF8")
_LINES = (style.GREY, style.BLUE, style.VERMILION, style.GREEN, style.ORANGE, style.PURPLE, style.SKY)


def symbolic_figure(forms: Sequence[Form]) -> Figure:
    """One grid per scheme, rows h_l, columns v_i; one tint per source, a dashed frame for a partial sum."""
    with style.styled():
        figure = Figure(figsize=(12.4, 6.8))
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(2, 3).flat)
        for axes, form in zip(panels, forms, strict=False):
            _symbols(axes, form)
        for axes in panels[len(forms) :]:
            _legend(axes)
        figure.tight_layout(h_pad=2.0, w_pad=1.5)
        return figure


def _symbols(axes: Axes, form: Form) -> None:
    L = len(form.numbers)
    for entry in form.entries:
        width = entry.last - entry.first + 1
        inset = 0.03
        axes.add_patch(
            Rectangle(
                (entry.first + inset, entry.row - 1 + inset),
                width - 2 * inset,
                1 - 2 * inset,
                facecolor=_TINTS[entry.source % len(_TINTS)],
                edgecolor="#333333" if entry.partial else "#8A8A8A",
                linestyle="--" if entry.partial else "-",
                linewidth=1.3 if entry.partial else 0.6,
            )
        )
        axes.text(
            entry.first + width / 2, entry.row - 0.5, f"${entry.tex}$", ha="center", va="center", size=9
        )
    axes.set(xlim=(0, L), ylim=(L, 0))
    axes.set_xticks(np.arange(L) + 0.5, [f"$v_{{{i}}}$" for i in range(L)])
    axes.set_yticks(np.arange(L) + 0.5, [f"$h_{{{l}}}$" for l in range(1, L + 1)])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(form.name, fontsize=11)
    axes.set_xlabel(form.structure, fontsize=9.5)


def _legend(axes: Axes) -> None:
    axes.set_axis_off()
    lines = (
        r"Entry $M_{i\to l}$ weighs $v_i$ in $h_l$: rows are reads, columns what was",
        r"written ($v_0$ the embedding, $v_i$ the output of sublayer $i$).",
        "One tint per source; a block sum spans the columns of its",
        "outputs; dashed: the partial sum of the open block.",
        r"$\gamma^{\times}_{i\to l} = (1-g_{i+1}) \cdots (1-g_l)$,  "
        r"$A^{\times}_{i\to l} = A_{i+1} \cdots A_l$.",
        r"$\phi(w, k) = \exp(w^{\top} \mathrm{RMSNorm}(k))$, before division by",
        "the row's sum. Blank: not yet written.",
    )
    for n, line in enumerate(lines):
        axes.text(0.0, 0.95 - 0.12 * n, line, transform=axes.transAxes, fontsize=9.5, va="center")


@dataclass(frozen=True)
class Panel:
    """A measured matrix with the words above it."""

    title: str
    measured: Measured


def measured_figure(panels: Sequence[Panel], tokens: Sequence[Panel], note: str) -> Figure:
    """Row shares of each matrix on one colour scale, and below the rank across every depth cut.

    tokens: matrices of one token, drawn after the averages and not among the ranks.
    """
    maps = [*panels, *tokens]
    rows = -(-len(maps) // 5)
    columns = -(-len(maps) // rows)
    with style.styled():
        figure = Figure(figsize=(3.2 * columns + 0.9, 3.3 * rows + 4.0))
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            rows + 1, columns + 1, height_ratios=[3.0] * rows + [3.0], width_ratios=[1.0] * columns + [0.05],
            left=0.065, right=0.94, top=0.92, bottom=0.13, hspace=0.42, wspace=0.3,
        )  # fmt: skip
        colours = LinearSegmentedColormap.from_list(
            "shares", [style.VERMILION, "white", style.BLUE]
        ).with_extremes(bad="#DADADA")
        image = None
        for n, panel in enumerate(maps):
            axes = figure.add_subplot(grid[n // columns, n % columns])
            image = _map(axes, panel, colours)
            if n % columns == 0:
                axes.set_ylabel("read of sublayer l (last row: output)")
            if n // columns == rows - 1 or n + columns >= len(maps):
                axes.set_xlabel("written v_i (0: embedding)")
        assert image is not None
        bar = figure.colorbar(image, cax=figure.add_subplot(grid[:rows, columns]))
        bar.set_label("weight as a share of its row (absolute values)")
        ticks = [-0.5, -0.1, 0.0, 0.1, 0.5, 1.0]
        bar.set_ticks([_squeeze(np.array(t)).item() for t in ticks], labels=[f"{t:g}" for t in ticks])
        half = max(1, columns // 2)
        lines = figure.add_subplot(grid[rows, :half])
        _cuts(lines, panels, single=False)
        _cuts(figure.add_subplot(grid[rows, half:columns]), panels, single=True)
        handles, labels = lines.get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=5, bbox_to_anchor=(0.5, 0.005))
        figure.text(0.065, 0.985, note, fontsize=9.5, va="top")
        return figure


def _squeeze(x: np.ndarray) -> np.ndarray:
    """Signed square root: small shares stay visible, and zero is white."""
    return np.sign(x) * np.sqrt(np.abs(x))


def _map(axes: Axes, panel: Panel, colours: Colormap) -> AxesImage:
    matrix = shares(panel.measured.mean)
    above = np.triu(np.ones_like(matrix, dtype=bool), 1)
    image = axes.imshow(
        np.ma.array(_squeeze(matrix), mask=above), cmap=colours, vmin=-1, vmax=1, interpolation="nearest"
    )
    axes.set_title(panel.title, fontsize=10)
    axes.grid(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True))
    return image


def _cuts(axes: Axes, panels: Sequence[Panel], single: bool) -> None:
    """Rank across each cut: of the token average, or the largest of the single tokens."""
    nothing = single and all(panel.measured.origin != CHECKPOINT for panel in panels)
    styles = cycle(["-", "--", ":", "-."])
    looks = [(colour, next(styles)) for colour in _LINES * 3]
    for n, panel in enumerate(panels):
        found = panel.measured
        if nothing or (single and found.single is None):
            continue
        several = found.single if single and found.single is not None else found.mean[None]
        ranks = np.max([cut_ranks(matrix, found.tolerance) for matrix in several], axis=0)
        colour, line = looks[n]
        axes.plot(ranks, color=colour, ls=line, label=panel.title.partition("\n")[0])
    axes.set_title("single tokens, largest" if single else "token average", fontsize=10)
    if nothing:
        axes.text(0.5, 0.5, "needs checkpoints\n(python -m repro.probe matrices)", ha="center", va="center",
                  transform=axes.transAxes, fontsize=9.5, style="italic")  # fmt: skip
        axes.set_axis_off()
        return
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
    axes.minorticks_off()
    axes.set_xlabel("depth cut before read k")
    axes.set_ylabel("rank of M[k:, :k+1]")
