"""Depth weights while a run trains: all snapshots of depth_weights.npz, as models of Fig. 8.

Letters: K snapshots, R = L + 1 reads (the last is the output read), C source columns, P position buckets.
Weights are means over the tokens of the validation subset, and over depth heads where there are several; NaN
where a read has no such source. The last snapshot is what ``analysis.depth_weights`` draws as Fig. 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.depth_weights import ArmWeights, DepthWeights
from repro.errors import DataError
from repro.runs.table import load_arrays


@dataclass(frozen=True)
class Snapshots:
    """One run.

    steps: [K], optimiser steps done; weights, spread: [K, R, C], mean and standard deviation over tokens;
    entropy: [K, R], nats, mean over tokens; by_position: [K, R, C, P], means of the tokens at positions
    edges[p] to edges[p + 1] - 1 of a window (NaN where no window is that long); edges: [P + 1].
    """

    steps: np.ndarray
    weights: np.ndarray
    spread: np.ndarray
    entropy: np.ndarray
    by_position: np.ndarray
    edges: np.ndarray

    def at(self, index: int) -> DepthWeights:
        """The model at one snapshot, averaged over all tokens."""
        return DepthWeights(self.weights[index], self.entropy[index])

    def at_position(self, bucket: int, index: int = -1) -> DepthWeights:
        """The model at one snapshot, averaged over the tokens of one position bucket."""
        return DepthWeights(self.by_position[index, :, :, bucket])


def read_snapshots(run_directory: str | Path) -> Snapshots:
    """All snapshots of one run; a ``DataError`` where they are missing or not as a run writes them."""
    arrays = load_arrays(run_directory, "depth_weights")
    try:
        mean, square = arrays["mean"], arrays["mean_square"]
        # Rounding may leave a variance of -1e-17 where all tokens have the same weight.
        variance = np.maximum(square - mean**2, 0.0)
        return Snapshots(
            arrays["steps"],
            mean.mean(-1),
            np.sqrt(variance.mean(-1)),
            arrays["entropy"].mean(-1),
            arrays["by_position"].mean(-2),
            arrays["position_edges"],
        )
    except KeyError as error:
        raise DataError(f"{run_directory}/depth_weights.npz: no {error}; retrain the run") from None


def over_training(arm: str, label: str, runs: Sequence[Snapshots]) -> list[ArmWeights]:
    """The models of several seeds at each snapshot; a ``DataError`` where their steps differ."""
    steps = runs[0].steps
    if any(not np.array_equal(run.steps, steps) for run in runs):
        raise DataError(f"arm {arm}: its runs have snapshots at different steps")
    return [ArmWeights(arm, label, tuple(run.at(k) for run in runs)) for k in range(len(steps))]


def over_positions(arm: str, label: str, runs: Sequence[Snapshots], index: int = -1) -> list[ArmWeights]:
    """The models of several seeds in each position bucket of one snapshot."""
    buckets = range(len(runs[0].edges) - 1)
    return [ArmWeights(arm, label, tuple(run.at_position(p, index) for run in runs)) for p in buckets]


def ratio_to_uniform(weights: np.ndarray) -> np.ndarray:
    """Weights [R, C] times the number of sources of their read: 1 where all sources weigh the same."""
    return np.asarray(weights * np.isfinite(weights).sum(-1, keepdims=True))


def position_names(edges: np.ndarray) -> list[str]:
    """``0``, ``1``, ``2-3``, ..., one per bucket, positions counted from 0."""
    pairs = zip(edges[:-1], edges[1:] - 1, strict=True)
    return [f"{low}" if low == high else f"{low}-{high}" for low, high in pairs]
