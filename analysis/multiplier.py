"""The compute multiplier, measured: how much more compute the baseline needs to reach the method's loss.

The baseline is trained at several multiples m of the method's tokens, at one shape; the losses are paired by
seed. d(m, seed) = baseline's loss at m minus the method's loss falls as m grows, and the multiplier is where
its mean over seeds is zero. d is taken to be a line in log m (a learning rate schedule ends with each budget,
so every multiple is a run of its own): over all multiples, or, where its curvature is told from zero over
seeds, over the two multiples between which the mean changes sign. Level a and slope b of each seed's line
give

    log multiplier = mean a / mean b,

with Fieller's interval over seeds (t, n - 1 degrees of freedom): all r for which mean(a - r b) is not told
from zero. It is unbounded where the slope is not told from zero. Outside the multiples that were trained the
multiplier is undefined, and only the side is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from analysis.grid_runs import runs_by_place
from analysis.ladder import recorded_account
from analysis.scaling import Array
from analysis.selection import RunRow
from analysis.stats import LEVEL, MARGIN, MIN_SEEDS, Interval, point, seed_interval


@dataclass(frozen=True)
class Root:
    """A multiplier with its interval (NaN with one seed; 0 or infinite where unbounded).

    ratio is NaN where the crossing is outside the multiples that were trained; side: ``inside``, ``above``,
    ``below``, ``none`` (more compute does not lower the loss) or ``one`` (a single multiple was trained).
    local: found between two neighbours.
    """

    ratio: float
    low: float
    high: float
    side: str
    local: bool = False

    def times(self, factor: float) -> Root:
        """The same on an axis on which the baseline's compute is counted ``factor`` times."""
        return replace(self, ratio=self.ratio * factor, low=self.low * factor, high=self.high * factor)


def multiplier(differences: npt.ArrayLike, multiples: Sequence[float], level: float = LEVEL) -> Root:
    """Where the mean of d = baseline minus method crosses zero.

    differences: [seeds, multiples], nats; multiples: rising, of the method's compute.
    """
    d, m = np.asarray(differences, dtype=np.float64), np.asarray(multiples, dtype=np.float64)
    if len(m) < 2:
        return Root(math.nan, math.nan, math.nan, "one")
    pair = _neighbours(d.mean(0))
    local = pair is not None and _curved(d, m, level)
    if local and pair is not None:
        d, m = d[:, pair], m[pair]
    x = np.log(m)
    dx = x - x.mean()
    slopes = -(d @ dx) / (dx @ dx)  # positive: more compute, less loss
    levels = d.mean(1) + slopes * x.mean()  # d at m = 1
    low, high = (math.nan, math.nan) if len(d) < 2 else _fieller(levels, slopes, level)
    if slopes.mean() <= 0:
        return Root(math.nan, low, high, "none")
    ratio = math.exp(float(levels.mean() / slopes.mean()))
    if ratio > m.max() * (1 + 1e-9):
        return Root(math.nan, low, high, "above")
    if ratio < m.min() * (1 - 1e-9):
        return Root(math.nan, low, high, "below")
    return Root(ratio, low, high, "inside", local)


def _neighbours(mean: Array) -> list[int] | None:
    """The first two multiples between which the mean difference falls through zero."""
    for j in range(len(mean) - 1):
        if mean[j] >= 0 > mean[j + 1]:
            return [j, j + 1]
    return None


def _curved(d: Array, m: Array, level: float) -> bool:
    """Whether the quadratic term in log m, one per seed, is told from zero over seeds."""
    if len(d) < 2 or len(m) < 3:
        return False
    bend = np.polyfit(np.log(m), d.T, 2)[0]
    half = stdtrit(len(d) - 1, 0.5 + level / 2) * bend.std(ddof=1) / math.sqrt(len(d))
    return bool(abs(bend.mean()) > max(half, 1e-9))  # below that it is rounding


def _fieller(levels: Array, slopes: Array, level: float) -> tuple[float, float]:
    n = len(levels)
    a, b = levels.mean(), slopes.mean()
    variance = np.cov(np.stack([levels, slopes])) / n
    square = float(stdtrit(n - 1, 0.5 + level / 2)) ** 2
    quadratic = b * b - square * variance[1, 1]
    linear = a * b - square * variance[0, 1]
    constant = a * a - square * variance[0, 0]
    if quadratic <= 0:
        return 0.0, math.inf
    root = math.sqrt(max(linear * linear - quadratic * constant, 0.0))
    # The exponential of a far end is no number of use; 1e6 stands for it.
    ends = ((linear - root) / quadratic, (linear + root) / quadratic)
    return math.exp(max(ends[0], -14.0)), math.exp(min(ends[1], 14.0))


@dataclass(frozen=True)
class Contest:
    """The runs of a direct test.

    multiples: of the method's tokens; losses: [seeds, multiples] of the baseline; reached: [seeds], the
    method's; flops: FLOPs per token of (baseline, method), NaN where not recorded.
    """

    scale: str
    multiples: tuple[float, ...]
    losses: Array
    reached: Array
    seeds: tuple[str, ...]
    flops: tuple[float, float]
    runs: tuple[RunRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> Array:
        """Baseline minus method, [seeds, multiples]."""
        return self.losses - self.reached[:, None]

    def at(self, multiple: float) -> Interval:
        """The difference at one trained multiple, t over paired seeds."""
        column = self.differences[:, self.multiples.index(multiple)]
        return point(float(column[0])) if len(column) < 2 else seed_interval([float(v) for v in column])

    def root(self, axis: str) -> Root:
        """The multiplier; axis: ``6nd`` (tokens) or ``account`` (with the method's own mixing)."""
        found = multiplier(self.differences, self.multiples)
        if axis == "6nd":
            return found
        return found.times(self.flops[0] / self.flops[1])

    def verdict(self, multiple: float) -> str | None:
        """``more``: the baseline needs more than this; ``less``; ``equal``: within the margin; None: open."""
        interval = self.at(multiple)
        if interval.kind != "seeds" or interval.n < MIN_SEEDS:
            return None
        if interval.low >= -MARGIN and interval.high <= MARGIN:
            return "equal"
        return "more" if interval.low > 0 else "less" if interval.high < 0 else "underpowered"


def contest(
    scale: str,
    tokens: Mapping[str, float],
    baseline: str,
    method: str,
    runs: Sequence[RunRow],
    problems: Sequence[str] = (),
) -> Contest:
    """The finished runs of both arms; tokens: name of a multiple -> tokens, the first being the method's.

    Multiples that no seed of the baseline finished are left out; of the rest, the seeds that all share.
    """
    unit = next(iter(tokens.values()))
    places = {name: {"budget.tokens": value} for name, value in tokens.items()}
    own = [run for run in runs if run.arm in (baseline, method)]
    found, notes = runs_by_place("multiplier", scale, places, own)

    def done(name: str, arm: str) -> dict[tuple[int, int, int], RunRow]:
        return {r.seeds: r for r in found.get(name, ()) if r.arm == arm and r.status == "done"}

    first = next(iter(tokens))
    reached = done(first, method)
    cells = {name: done(name, baseline) for name in tokens}
    cells = {name: cell for name, cell in cells.items() if cell}
    missing = [f"{tokens[name] / unit:g}x" for name in tokens if name not in cells]
    if missing:
        notes.append(f"The baseline has no finished run at {', '.join(missing)}.")
    seeds = sorted(set(reached).intersection(*(set(cell) for cell in cells.values()))) if cells else []
    used = [*(reached[s] for s in seeds), *(cell[s] for cell in cells.values() for s in seeds)]
    total = len(reached) + sum(map(len, cells.values()))
    if total > len(used):
        notes.append(f"{total - len(used)} runs with seeds that not every multiple has are left out.")
    if not seeds:
        notes.append("No seed has finished runs of both arms: nothing is compared.")
    flops = tuple(
        next((recorded_account(r)[1] for r in used if r.arm == arm), math.nan) for arm in (baseline, method)
    )
    return Contest(
        scale=scale,
        multiples=tuple(tokens[name] / unit for name in cells),
        losses=np.array([[cell[s].val_loss for cell in cells.values()] for s in seeds]).reshape(
            len(seeds), len(cells)
        ),
        reached=np.array([reached[s].val_loss for s in seeds]),
        seeds=tuple(reached[s].seed_label for s in seeds),
        flops=(flops[0], flops[1]),
        runs=tuple(used),
        notes=(*problems, *notes),
    )
