"""Table 4 as a picture: each arm's loss minus PreNorm's, ours with its interval and the paper's beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from analysis import style
from analysis.ablation import BASELINE, AblationTable, ArmRow
from analysis.contrast_statistics import ContrastStatistics
from analysis.statistics_view import p_text, prenorm_family

# Layout in inches: labels, plot, then one column of numbers after another.
_EDGE, _LABELS, _PLOT, _ROW, _ABOVE, _BELOW = 0.12, 2.65, 4.1, 0.34, 0.85, 0.95


@dataclass(frozen=True)
class _Column:
    head: str
    width: float
    text: Callable[[ArmRow], str]


def forest(table: AblationTable, title: str) -> Figure:
    """Rows as in the table; circle and bar: ours and its 95 % interval (hollow: one seed); diamond: paper."""
    trained = table.scale != "published"
    columns = _columns(table) if trained else [_PAPER_LOSS, _PAPER_DIFFERENCE]
    width = _EDGE + _LABELS + _PLOT + sum(column.width for column in columns) + _EDGE
    height = _ABOVE + _ROW * len(table.rows) + _BELOW
    with style.styled():
        figure, (axes,) = style.new_figure(width, height)
        axes.set_position(
            ((_EDGE + _LABELS) / width, _BELOW / height, _PLOT / width, 1 - (_ABOVE + _BELOW) / height)
        )
        _frame(axes, table, width)
        for y, row in enumerate(table.rows):
            _draw_row(axes, y, row, columns, trained)
        x = _PLOT
        for column in columns:
            axes.text(
                (x + column.width / 2) / _PLOT,
                -0.62,
                column.head,
                transform=_beside(axes),
                ha="center",
                fontsize=9,
            )
            x += column.width
        where = f"scale {table.scale}, {_seeds(table)}" if trained else "the paper's numbers"
        figure.text(
            _EDGE / width, 1 - 0.12 / height, f"{title} ({where})", fontsize=11.5, weight="bold", va="top"
        )
        _legend(figure, axes, table, trained)
        return figure


def _frame(axes: Axes, table: AblationTable, width: float) -> None:
    left, right = -(_LABELS + _EDGE / 2) / _PLOT, (width - 1.5 * _EDGE - _LABELS) / _PLOT
    for y in range(0, len(table.rows), 2):
        band = axes.axhspan(y - 0.5, y + 0.5, xmin=left, xmax=right, color="#F3F3F3", zorder=-1, lw=0)
        band.set_clip_on(False)
    axes.axvline(0, color=style.PRENORM, lw=1.2, zorder=1)
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.margins(x=0.06)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_xlabel("validation loss minus PreNorm (nats per token); left of zero is better")


def _draw_row(axes: Axes, y: int, row: ArmRow, columns: list[_Column], trained: bool) -> None:
    indent = "" if row.spec.parent in (None, BASELINE) else "    "
    axes.text(-_LABELS / _PLOT, y, indent + row.spec.label, transform=_beside(axes), ha="left", va="center")
    contrast = row.to_prenorm
    ours = contrast.ours if contrast else None
    if contrast:
        axes.plot(contrast.paper, y + (0.18 if ours else 0), "D", zorder=3, **_HOLLOW)
    if ours:
        if math.isfinite(ours.low):
            axes.plot(
                [ours.low, ours.high],
                [y - 0.14] * 2,
                color=style.OURS,
                lw=2.2,
                solid_capstyle="butt",
                zorder=2,
            )
        axes.plot(ours.estimate, y - 0.14, "o", zorder=4, **_marker(ours.kind == "seeds"))
    x = _PLOT
    for column in columns:
        if trained and row.status != "done" and column is columns[0]:
            axes.text((x + 0.1) / _PLOT, y, row.status, transform=_beside(axes), va="center", style="italic")
        elif not trained or row.status == "done" or column.head == _PAPER_LOSS.head:
            middle = (x + column.width / 2) / _PLOT
            axes.text(middle, y, column.text(row), transform=_beside(axes), ha="center", va="center")
        x += column.width


def _columns(table: AblationTable) -> list[_Column]:
    columns = [
        _Column("loss", 0.75, lambda row: "–" if row.loss is None else f"{row.loss:.3f}"),
        _Column("minus\nPreNorm", 0.8, _difference),
    ]
    if any(row.to_prenorm and row.to_prenorm.verdict for row in table.rows):
        columns.append(
            _Column("verdict", 1.2, lambda row: (row.to_prenorm and row.to_prenorm.verdict) or "–")
        )
        statistics = {row.spec.name: entry for row, _, entry in prenorm_family(table)}
        columns.append(_Column("p\n(Holm)", 0.75, lambda row: p_text(_holm(statistics, row))))
    if any(row.step_time for row in table.rows):
        columns.append(
            _Column("step\ntime ×", 0.75, lambda row: f"{row.step_time.ratio:.2f}" if row.step_time else "–")
        )
    return [*columns, _PAPER_LOSS]


def _holm(statistics: Mapping[str, ContrastStatistics], row: ArmRow) -> float | None:
    return statistics[row.spec.name].p_holm if row.spec.name in statistics else None


def _difference(row: ArmRow) -> str:
    return _signed(row.to_prenorm.ours.estimate) if row.to_prenorm and row.to_prenorm.ours else "–"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")  # the minus sign of the axis


_PAPER_LOSS = _Column("paper\nloss", 0.75, lambda row: f"{row.spec.paper_loss:.3f}")
_PAPER_DIFFERENCE = _Column(
    "minus\nPreNorm", 0.8, lambda row: _signed(row.to_prenorm.paper) if row.to_prenorm else "–"
)
_HOLLOW: Any = {"mfc": "white", "mec": style.PAPER, "mew": 1.4, "ms": 5.5}


def _marker(filled: bool) -> Any:
    """Filled where the interval is over seeds: the others, however short, hold no verdict."""
    return {"color": style.OURS, "ms": 5.5, "mew": 1.4, "mfc": style.OURS if filled else "white"}


def _seeds(table: AblationTable) -> str:
    counts = sorted({len(row.seeds) for row in table.rows if row.seeds}) or [0]
    many = str(counts[-1]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"{many} seed" + ("s" if counts[-1] != 1 else "")


def _legend(figure: Figure, axes: Axes, table: AblationTable, trained: bool) -> None:
    handles = []
    if trained:
        words = {
            "seeds": "ours, 95 % over paired seeds",
            "documents": "ours, one seed, 95 % over validation documents alone",
            "none": "ours, no interval",
        }
        kinds = {contrast.ours.kind for row in table.rows if (contrast := row.to_prenorm) and contrast.ours}
        for kind in [kind for kind in words if kind in kinds]:
            handles += axes.plot([], [], "o-", lw=2.2, label=words[kind], **_marker(kind == "seeds"))
    handles += axes.plot([], [], "D", label="paper, 436M activated parameters, no interval", **_HOLLOW)
    figure.legend(handles=handles, loc="lower left", ncols=3, borderaxespad=0.6)


def _beside(axes: Axes):  # type: ignore[no-untyped-def]  # x in axes widths, y in rows
    return axes.get_yaxis_transform()
