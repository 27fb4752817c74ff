"""Fig. 5: validation loss over training, output and gradient magnitudes over depth; the paper's and ours.

Bands are the range over seeds. Every recorded norm has a row of its own; magnitudes are on logarithmic axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis import style
from analysis.dynamics import NORMS, ArmDynamics

LOOKS = {"prenorm": (style.PRENORM, "o"), "block": (style.BLOCK, "s"), "full": (style.FULL, "^")}
NORM_LABELS = {"rms": "RMS", "l2": "Euclidean norm", "mean_abs": "mean |x|"}
UNITS = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"))
TENSOR_LABELS = {"stream": "running tensor", "output": "output"}


def dynamics_figure(paper: Sequence[ArmDynamics], ours: Sequence[ArmDynamics], caption: str) -> Figure:
    """The paper's three panels; with runs, their loss beside it and a row of four panels per norm below."""
    with style.styled():
        rows = 1 + (len(NORMS) if ours else 0)
        columns = 4 if ours else 3
        figure = Figure(figsize=(3.9 * columns, 3.5 * rows + 0.7))
        FigureCanvasAgg(figure)
        figure.set_layout_engine("constrained", h_pad=0.08, w_pad=0.08)
        grid = figure.subplots(rows, columns, squeeze=False)
        top = list(grid[0])
        _loss(top.pop(0), paper, "Paper: validation loss")
        if ours:
            _loss(top.pop(0), ours, f"Ours: validation loss ({caption})")
        _depth(top[0], paper, "stream_paper", "Paper: output magnitude")
        _depth(top[1], paper, "stream_grad_paper", "Paper: gradient magnitude")
        for axes in top[:2]:
            axes.set_ylabel("magnitude (undefined in the paper)")
        for row, norm in zip(grid[1:], NORMS, strict=False):
            for axes, (tensor, gradient) in zip(
                row, [(t, g) for t in ("stream", "output") for g in ("", "_grad")], strict=True
            ):
                what = f"{'gradient of ' if gradient else ''}{TENSOR_LABELS[tensor]}"
                _depth(axes, ours, f"{tensor}{gradient}_{norm}", f"Ours: {what}")
                axes.set_ylabel(NORM_LABELS[norm])
        handles: dict[str, Any] = {}
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles))
        if ours:
            figure.legends[0].set_title("bands: range over seeds")
        return figure


def _loss(axes: Axes, arms: Sequence[ArmDynamics], title: str) -> None:
    last = arms[0].mean_curve()
    step_unit, step_label = (1000, "1000 steps") if last.steps[-1] >= 1e4 else (1, "steps")
    unit, token_label = next(
        ((u, f"{name} tokens") for u, name in UNITS if last.tokens[-1] >= u), (1.0, "tokens")
    )
    for arm in arms:
        curve = arm.mean_curve()
        color, marker = _look(arm.arm)
        kept = curve.steps > 0  # the loss before training would flatten everything else
        x = curve.steps[kept] / step_unit
        axes.plot(
            x, curve.loss[kept], color=color, label=arm.label, marker=marker if len(x) < 30 else None, ms=4
        )
        if len(arm.curves) > 1:
            every = np.stack([c.loss for c in arm.curves])[:, kept]
            axes.fill_between(x, every.min(0), every.max(0), color=color, alpha=0.18, lw=0)
    ratio = float(last.tokens[-1] / unit / (last.steps[-1] / step_unit))

    def to_tokens(x: Any) -> Any:
        return np.asarray(x) * ratio

    def to_steps(x: Any) -> Any:
        return np.asarray(x) / ratio

    if len(last.steps) < 30:  # snapshots of runs are spaced in powers of two
        axes.set_xscale("log")
    upper = axes.secondary_xaxis("top", functions=(to_tokens, to_steps))
    if len(last.steps) < 30:
        upper.set_xscale("log")
        for axis in (axes.xaxis, upper.xaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axis.set_major_formatter(FuncFormatter(_plain))
            axis.set_minor_formatter(NullFormatter())
    upper.set_xlabel(token_label, fontsize=9)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(step_label)
    axes.set_ylabel("nats per token")


def _depth(axes: Axes, arms: Sequence[ArmDynamics], name: str, title: str) -> None:
    axes.set_title(title, fontsize=10)
    paper = name.endswith("_paper")
    axes.set_xlabel("transformer block (from 0)" if paper else "transformer block (from 1)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for arm in arms:
        if not arm.series or name not in arm.series[0]:
            continue
        every = np.stack([model[name] for model in arm.series])
        # Per sublayer: attention at a half position, the MLP where its transformer block ends.
        places = np.arange(every.shape[1]) * 1.0
        if not paper:
            places = (places + 1) / 2
        color, marker = _look(arm.arm)
        axes.plot(places, every.mean(0), color=color, marker=marker, ms=3.5, lw=1.3, label=arm.label)
        if len(every) > 1:
            axes.fill_between(places, every.min(0), every.max(0), color=color, alpha=0.18, lw=0)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _plain(value: float, _: int) -> str:
    return f"{value:g}" if value >= 1e-3 else f"{value:.1e}".replace(".0e", "e").replace("e-0", "e-")


def _look(arm: str) -> tuple[str, str]:
    return next(look for prefix, look in LOOKS.items() if arm.startswith(prefix))
