"""Does a source matter? Weight against loss change when a source is taken away (not in the paper).

A *cell* is one read and one source of it. Effects are changes of the validation loss in nats per token,
paired
with the untouched pass on the same tokens. Intervals of one seed are over validation windows: a percentile
bootstrap for a single cell, a jackknife (weights and effects alike) for what is taken over cells; from two
seeds on the latter are t intervals over seeds. Shapes as in ``repro.probe.effects``: M methods, R reads, C
columns, W windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit
from scipy.stats import rankdata

from analysis.probes import Probed
from analysis.selection import RunRow
from analysis.stats import BOOTSTRAP_SEED, LEVEL, Interval, point, seed_interval
from repro.runs.arrays import Arrays

DRAWS = 2000
HALF = 0.5  # of a read's weight: a heavier source has no control of equal mass


@dataclass(frozen=True)
class ArmEffects:
    """One arm. Intervals: of the rank correlation of an effect with the weight (NaN where all weights are
    one)
    and with the share of the mixture; of the mean effect of `remove`, and of `remove` minus its control.

    cells: number of them.  resolved: share of cells whose effect has an interval over windows without zero.
    top: share of reads in which the heaviest source is the one whose removal costs most.
    spread: mean over cells of the standard deviation of a weight over tokens, and the parts of its variance
    that lie between position and between frequency buckets.
    """

    arm: str
    seeds: tuple[str, ...]
    cells: int
    by_weight: Interval
    within_read: Interval
    by_share: Interval
    mean_effect: Interval
    over_control: Interval
    resolved: float
    top: float
    spread: float
    by_position: float
    by_frequency: float
    record: Arrays  # of the first seed, for pictures


@dataclass(frozen=True)
class Interventions:
    """All arms of a scale."""

    scale: str
    arms: tuple[ArmEffects, ...]
    runs: tuple[RunRow, ...]
    notes: tuple[str, ...]


def interventions(
    scale: str, found: Sequence[Probed], arms: Sequence[str], notes: Sequence[str]
) -> Interventions:
    """The arms that have records."""
    rows = []
    for arm in arms:
        own = [(run, record) for run, record in found if run.arm == arm]
        if own:
            rows.append(_arm(arm, own))
    return Interventions(scale, tuple(rows), tuple(run for run, _ in found), tuple(notes))


def effect(record: Arrays, method: str) -> np.ndarray:
    """[R, C, W]: change of each window's mean loss, weighted so that the mean over W is the pooled change."""
    return record["effect"][list(record["methods"]).index(method)] * _window_weight(record)


def later(record: Arrays, method: str) -> np.ndarray:
    """[C, W]: the same where all reads that have the source are touched."""
    return record["effect_later"][list(record["methods"]).index(method)] * _window_weight(record)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, of the pairs in which both are numbers; NaN below three, or where one does not vary."""
    kept = np.isfinite(x) & np.isfinite(y)
    if kept.sum() < 3 or np.ptp(x[kept]) == 0 or np.ptp(y[kept]) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(x[kept]), rankdata(y[kept]))[0, 1])


def within_reads(x: np.ndarray, y: np.ndarray) -> float:
    """Mean over reads of the rank correlation among a read's sources; x, y: [R, C]."""
    values = [rank_correlation(a, b) for a, b in zip(x, y, strict=True)]
    return float(np.mean(finite)) if (finite := [v for v in values if np.isfinite(v)]) else float("nan")


def jackknife(statistic: Callable[[np.ndarray], float], windows: int) -> Interval:
    """Interval of a statistic of how much each window counts [W]: t with the delete-one standard error.

    Not a bootstrap: resampled windows are noisier than the sample, and noise pulls a rank correlation towards
    zero, so its percentiles would lie below the estimate.
    """
    estimate = statistic(np.ones(windows))
    left_out = np.array([statistic(1.0 - row) for row in np.eye(windows)])
    if windows < 2 or not np.isfinite([estimate, *left_out]).all():
        return point(estimate)
    error = float(np.sqrt((windows - 1) / windows * ((left_out - left_out.mean()) ** 2).sum()))
    half = float(stdtrit(windows - 1, 0.5 + LEVEL / 2)) * error
    return Interval(estimate, estimate - half, estimate + half, "windows", windows)


def cell_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap interval over windows of each cell's mean; values [..., W] -> low, high [...]."""
    windows = values.shape[-1]
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    counts = rng.multinomial(windows, np.full(windows, 1 / windows), size=DRAWS) / windows
    means = values @ counts.T
    low, high = np.quantile(means, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2], axis=-1)
    return low, high


def between_share(record: Arrays, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Variance of each weight over tokens [R, C], and the part of it between buckets (``position`` or
    ``frequency``), 0 where the weight does not vary."""
    n = record[f"{name}_tokens"] / record[f"{name}_tokens"].sum()
    mean, variance = np.nan_to_num(record[f"{name}_mean"]), np.nan_to_num(record[f"{name}_variance"])
    overall = (mean * n).sum(-1, keepdims=True)
    between, within = ((mean - overall) ** 2 * n).sum(-1), (variance * n).sum(-1)
    total = between + within
    return total, np.divide(between, total, out=np.zeros_like(total), where=total > 1e-14)


def _window_weight(record: Arrays) -> np.ndarray:
    return record["window_tokens"] / record["window_tokens"].mean()


def _arm(arm: str, own: Sequence[Probed]) -> ArmEffects:
    def over(statistic: Callable[[Arrays, np.ndarray], float]) -> Interval:
        found = [statistic(record, np.ones(record["window_tokens"].size)) for _, record in own]
        if len(own) > 1 and np.isfinite(found).all():
            return seed_interval(found)
        record = own[0][1]
        return jackknife(lambda counts: statistic(record, counts), record["window_tokens"].size)

    def mean(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return values @ counts / counts.sum()

    def mean_effect(record: Arrays, counts: np.ndarray) -> float:
        return float(np.nanmean(mean(effect(record, "remove"), counts)))

    def over_control(record: Arrays, counts: np.ndarray) -> float:
        light = mean(record["weight"], np.ones_like(counts)) < HALF
        gap = mean(effect(record, "remove") - effect(record, "equal_mass"), counts)[light]
        return float(np.nanmean(gap)) if np.isfinite(gap).any() else float("nan")

    def correlation(name: str, how: Callable[[np.ndarray, np.ndarray], float]) -> Interval:
        return over(
            lambda record, counts: how(mean(record[name], counts), mean(effect(record, "remove"), counts))
        )

    record = own[0][1]
    changes = effect(record, "remove")
    cells = np.isfinite(changes[..., 0])
    low, high = cell_interval(changes[cells])
    average, weight = changes.mean(-1), record["weight"].mean(-1)
    reads = [l for l in range(len(cells)) if cells[l].sum() > 1 and np.ptp(weight[l][cells[l]]) > 0]
    hits = [
        np.argmax(np.where(cells[l], weight[l], -np.inf))
        == np.argmax(np.where(cells[l], average[l], -np.inf))
        for l in reads
    ]
    variance, position = between_share(record, "position")
    _, frequency = between_share(record, "frequency")
    total = float(variance[cells].sum())
    return ArmEffects(
        arm=arm,
        seeds=tuple(run.seed_label for run, _ in own),
        cells=int(cells.sum()),
        by_weight=correlation("weight", rank_correlation),
        within_read=correlation("weight", within_reads),
        by_share=correlation("share", rank_correlation),
        mean_effect=over(mean_effect),
        over_control=over(over_control),
        resolved=float(((low > 0) | (high < 0)).mean()),
        top=float(np.mean(hits)) if hits else float("nan"),
        spread=float(np.sqrt(variance[cells]).mean()),
        by_position=float((variance * position)[cells].sum() / total) if total > 1e-12 else float("nan"),
        by_frequency=float((variance * frequency)[cells].sum() / total) if total > 1e-12 else float("nan"),
        record=record,
    )
