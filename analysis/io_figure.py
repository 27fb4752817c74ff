"""Table 1 as a picture: traffic of each mechanism by operation, and how it grows with the depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.io_model import Mechanism, counted, in_widths

_SHADES = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE, style.SKY)
_LINES = {
    "standard": (style.GREY, "-"),
    "mhc": (style.PURPLE, "-"),
    "attnres_full": (style.FULL, "-"),
    "attnres_block": (style.BLOCK, "-"),
    "naive_full": (style.FULL, ":"),
    "naive_block": (style.BLOCK, ":"),
}
#: Longest bar drawn, in units of d; a longer one is cut and says so.
LONGEST = 40.0


def io_figure(
    mechanisms: Sequence[Mechanism],
    letters: Mapping[str, int],
    found: Mapping[str, Mapping[str, float]],
    depths: Sequence[int],
) -> Figure:
    """Bars at one shape with the counted totals as triangles; lines over L at the same N, S = L / N."""
    with style.styled():
        figure, (bars, lines) = style.new_figure(12.6, 4.9, 2)
        _bars(bars, mechanisms, letters, found)
        _growth(lines, mechanisms, letters, depths)
        figure.tight_layout(w_pad=2.5)
        return figure


def _bars(
    axes: Axes,
    mechanisms: Sequence[Mechanism],
    letters: Mapping[str, int],
    found: Mapping[str, Mapping[str, float]],
) -> None:
    for row, mechanism in enumerate(mechanisms):
        left = 0.0
        for n, operation in enumerate(mechanism.operations):
            width = float(in_widths(operation.total, letters)[0])
            shown = max(0.0, min(width, LONGEST - left))
            axes.barh(row, shown, left=left, height=0.62, color=_SHADES[n], edgecolor="white", linewidth=0.8)
            label = _short(operation.name)
            if shown > 0.7 * len(label):
                ink = "white" if n == 0 else "black"
                axes.text(left + shown / 2, row, label, ha="center", va="center", fontsize=7.5, color=ink)
            left += width
        text = f"{left:.4g}d" + (" (bar cut)" if left > LONGEST else "")
        beyond = min(left, LONGEST)
        own = counted(mechanism, found)
        if own is not None and own <= LONGEST:
            axes.plot(own, row + 0.38, "v", color="black", ms=6, clip_on=False, zorder=4)
        elif own is not None:
            text += f", counted {own:.1f}d"
        axes.text(beyond + 0.6, row, text, va="center", fontsize=9)
    axes.plot([], [], "v", color="black", ls="", label="counted in our kernels (forward)")
    names = {"mHC": "mHC (compute α, β, A; apply each; merge)"}
    axes.set_yticks(range(len(mechanisms)), [names.get(m.name, m.name) for m in mechanisms])
    axes.set_ylim(len(mechanisms) - 0.45, -0.6)
    axes.set_xlim(0, LONGEST + 26)
    axes.set_xticks(range(0, int(LONGEST) + 1, 10))
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("elements read and written per token and sublayer (units of d)")
    axes.set_title(", ".join(f"{k} = {v}" for k, v in letters.items() if k != "d"), fontsize=10)
    if found:
        axes.legend(loc="upper right")


def _short(name: str) -> str:
    return {
        "compute alpha beta A": "αβA",
        "apply alpha": "α",
        "apply beta": "β",
        "apply A": "A",
        "residual merge": "merge",
        "phase 1 (amortised)": "phase 1",
        "read of all sources": "sources",
        "partial sum": "partial",
    }.get(name, name)


def _growth(
    axes: Axes, mechanisms: Sequence[Mechanism], letters: Mapping[str, int], depths: Sequence[int]
) -> None:
    for mechanism in mechanisms:
        totals = [
            float(in_widths(mechanism.total, {**letters, "L": L, "S": L // letters["N"]})[0]) for L in depths
        ]
        colour, line = _LINES[mechanism.key]
        axes.plot(depths, totals, color=colour, ls=line, label=mechanism.name)
    axes.plot(
        depths, 2 * np.sqrt(depths), color=style.FULL, ls="--", label="AttnRes Full, S = sqrt(L) (Appendix B)"
    )
    axes.axvline(letters["L"], color="#BBBBBB", lw=1, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(depths, [str(L) for L in depths])
    ticks = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"sublayers L (N = {letters['N']}, S = L / N, m = {letters['m']})")
    axes.set_ylabel("accesses per token and sublayer (units of d)")
    axes.set_ylim(2, 1400)
    axes.legend(fontsize=8.5, loc="upper left")
