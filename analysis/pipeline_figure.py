"""Fig. 3: which block representations each stage holds and is sent, and what that costs over depth."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from analysis import style
from analysis.pipeline_io import Chunk, equation_7, equation_8

_CACHED, _RECEIVED = "#DADADA", "#8FC1E3"


def pipeline_figure(chunks: Sequence[Chunk], stages: Sequence[int], most_virtual: int) -> Figure:
    """Left: the walk, ranks by virtual stages. Right: Eqs. 7 and 8 against V for each number of stages P."""
    with style.styled():
        figure = Figure(figsize=(13.2, 4.8))
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(
            1, 2, width_ratios=[1.75, 1.0], left=0.06, right=0.985, top=0.9, bottom=0.2
        )
        _walk(figure.add_subplot(grid[0]), chunks)
        _growth(figure.add_subplot(grid[1]), stages, most_virtual)
        return figure


def _walk(axes: Axes, chunks: Sequence[Chunk]) -> None:
    ranks = 1 + max(chunk.rank for chunk in chunks)
    virtual = 1 + max(chunk.virtual_stage for chunk in chunks)
    for chunk in chunks:
        x, y = chunk.rank, chunk.virtual_stage
        axes.add_patch(
            Rectangle((x + 0.03, y + 0.08), 0.94, 0.84, facecolor="white", edgecolor="#8A8A8A", linewidth=0.8)
        )
        held = chunk.cached or ((0,) if chunk is chunks[0] else ())  # the embedding is made there
        _boxes(axes, x, y + 0.2, "holds", held, _CACHED)
        _boxes(axes, x, y + 0.44, "receives", chunk.received, _RECEIVED)
        _boxes(axes, x, y + 0.68, "completes", chunk.completed, "white")
    axes.set(xlim=(0, ranks), ylim=(virtual, 0))
    axes.set_xticks([r + 0.5 for r in range(ranks)], [f"rank {r}" for r in range(ranks)])
    axes.set_yticks([v + 0.5 for v in range(virtual)], [f"virtual\nstage {v}" for v in range(virtual)])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(
        f"P = {ranks} stages, V = {virtual}; each block spans two stages (chunks run left to right, top down)"
    )
    handles = [
        Patch(
            facecolor=_CACHED,
            edgecolor="#555555",
            label="held (cached from an earlier transition; rank 0 makes b0)",
        ),
        Patch(facecolor=_RECEIVED, edgecolor="#555555", label="sent with the input"),
        Patch(facecolor="white", edgecolor=style.VERMILION, label="completed here"),
    ]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=3)


def _boxes(axes: Axes, x: float, y: float, word: str, blocks: Sequence[int], colour: str) -> None:
    axes.text(x + 0.07, y + 0.08, word, va="center", fontsize=8, color="#444444")
    edge = style.VERMILION if colour == "white" else "#555555"
    for n, block in enumerate(blocks):
        left = x + 0.46 + 0.185 * n
        axes.add_patch(Rectangle((left, y), 0.165, 0.16, facecolor=colour, edgecolor=edge, linewidth=1.0))
        axes.text(left + 0.0825, y + 0.085, f"$b_{{{block}}}$", ha="center", va="center", fontsize=9)


def _growth(axes: Axes, stages: Sequence[int], most_virtual: int) -> None:
    virtual = list(range(1, most_virtual + 1))
    for P, colour in zip(stages, (style.BLUE, style.VERMILION, style.GREEN), strict=False):
        axes.plot(virtual, [float(equation_7(P, V, 1)) for V in virtual], ls="--", marker="o", color=colour,
                  ms=4, label=f"P = {P}, naive (Eq. 7)")  # fmt: skip
        axes.plot(virtual, [float(equation_8(P, V, 1)) for V in virtual], ls="-", marker="s", color=colour,
                  ms=4, label=f"P = {P}, cached (Eq. 8)")  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(virtual)
    axes.set_xlabel("virtual stages V per rank")
    axes.set_ylabel("sent per token (units of $N_p d$)")
    axes.legend(fontsize=8, loc="upper left", ncols=1)
    axes.set_ylim(top=axes.get_ylim()[1] * 6)
