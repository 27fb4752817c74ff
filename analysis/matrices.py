"""Depth-mixing matrices of runs (Fig. 9) and what their ranks say.

A matrix is [R, C]: row l is read l (rows 0..L - 1 the sublayers, row L the output read), column i what was
written, v_0 the embedding and v_i the output of sublayer i - 1; zero above the diagonal. The paper's L x L
matrix leaves out the output read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from repro.errors import DataError
from repro.runs.arrays import Arrays, read_npz
from repro.runs.table import load_arrays

#: Singular values below this share of the largest count as zero: in float64, and in averages of float32.
EXACT, RECORDED = 1e-9, 1e-5
CHECKPOINT, WEIGHTS, CLOSED_FORM = "checkpoint", "depth weights", "closed form"


@dataclass(frozen=True)
class Measured:
    """What is known of a run's matrix, heads averaged.

    mean: [R, C], over tokens.  single: [K, R, C], of K single tokens, or None.  origin: `checkpoint`,
    `depth weights` (token averages of AttnRes weights) or `closed form`.  tokens: averaged over, or None
    where the record does not say.  residual: how far the matrix is from reproducing the reads, relative.
    """

    mean: np.ndarray
    single: np.ndarray | None
    origin: str
    tokens: int | None = None
    residual: float | None = None

    def one_token(self) -> Measured | None:
        """The matrix of the middle one of the single tokens; None where all tokens have the same."""
        if self.single is None or np.allclose(self.single, self.single[:1], atol=1e-9):
            return None
        middle = self.single[len(self.single) // 2]
        return replace(self, mean=middle, single=None, tokens=1)

    @property
    def square(self) -> np.ndarray:
        """The paper's matrix, [L, L]: without the output read."""
        return self.mean[:-1, :-1]

    @property
    def tolerance(self) -> float:
        """Relative size of a singular value that counts as zero."""
        return RECORDED if self.origin == WEIGHTS else EXACT


def read_measured(directory: Path) -> Measured | None:
    """The matrix of a run: depth_matrices.npz, else from depth_weights.npz where that determines it."""
    try:
        found = read_npz(directory / "depth_matrices.npz")
    except FileNotFoundError:
        if not (directory / "depth_weights.npz").exists():
            return None
        mean = from_depth_weights(load_arrays(directory, "depth_weights"))
        return None if mean is None else Measured(mean, None, WEIGHTS)
    return Measured(
        found["mean"].mean(-1),
        found["single"].mean(-1),
        CHECKPOINT,
        int(found["num_tokens"]),
        float(found["residual"]),
    )


def plain_sum(num_sublayers: int) -> Measured:
    """The standard residual: every read is the sum of all that was written."""
    ones = np.tril(np.ones((num_sublayers + 1, num_sublayers + 1)))
    return Measured(ones, ones[None], CLOSED_FORM)


def from_depth_weights(arrays: Arrays) -> np.ndarray | None:
    """The matrix [R, C] of the last snapshot, averaged over tokens and heads; None for other sources.

    Known are block sums (`b<n>`, `partial(<i>)`: AttnRes, static mixing) and states (`x<n>`: DenseFormer).
    """
    names, weights = arrays["sources"], arrays["mean"][-1].mean(-1)
    labels = {str(name) for name in names.flat} - {""}
    if labels and all(re.fullmatch(r"b\d+|partial\(\d+\)", label) for label in labels):
        matrix = _over_block_sums(names, weights)
    elif labels and all(re.fullmatch(r"x\d+", label) for label in labels):
        matrix = _over_states(names, weights)
    else:
        return None
    if not np.isfinite(matrix).all():
        raise DataError("depth_weights.npz: a source has no weight in the last snapshot")
    return matrix


def _over_block_sums(names: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A block sum shares its weight with every output in it, a partial(i) with the last i outputs.

    Which outputs b_n holds is known from the first read in which it appears, where its block has just ended.
    """
    reads = len(names)
    ends = [0]  # of block n; block 0 is the embedding
    for n in range(1, names.shape[1]):
        rows = np.flatnonzero(names[:, n] == f"b{n}")
        if len(rows) == 0:
            break
        ends.append(int(rows[0]))
    matrix = np.zeros((reads, reads))
    for l, column in zip(*np.nonzero(names != ""), strict=True):
        label, weight = str(names[l, column]), weights[l, column]
        if label == "b0":
            matrix[l, 0] = weight
        elif label.startswith("partial("):
            matrix[l, l + 1 - int(label[8:-1]) : l + 1] = weight
        else:
            n = int(label[1:])
            matrix[l, ends[n - 1] + 1 : ends[n] + 1] = weight
    return matrix


def _over_states(names: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """States are averaged at the reads that have sources; in between, outputs are added to the average."""
    reads = len(names)
    matrix, states = np.zeros((reads, reads)), []
    stream = np.eye(reads)[0]
    for l in range(reads):
        columns = np.flatnonzero(names[l] != "")
        if len(columns):
            states.append(stream)
            stream = sum(weights[l, c] * states[c] for c in columns)
        matrix[l] = stream
        if l + 1 < reads:
            stream = stream + np.eye(reads)[l + 1]
    return matrix


def shares(matrix: np.ndarray) -> np.ndarray:
    """Rows divided by the sum of their absolute entries: each read is normalised, so its scale is void."""
    return matrix / np.abs(matrix).sum(-1, keepdims=True)


def rank(matrix: np.ndarray, tolerance: float) -> int:
    """Singular values above `tolerance` times the largest; rows are brought to a common scale first."""
    scale = np.abs(matrix).max(-1, keepdims=True)
    scaled = matrix / np.where(scale > 0, scale, 1.0)
    values = np.linalg.svd(scaled, compute_uv=False)
    return int((values > tolerance * values[0]).sum()) if values[0] > 0 else 0


def ordinary_rank(square: np.ndarray) -> int:
    """Rank of the paper's L x L matrix: triangular, so L where no diagonal entry is zero.

    Read from the diagonal where that decides, since the determinant of a deep matrix is far below rounding.
    """
    return len(square) if np.all(np.diag(square) != 0) else rank(square, EXACT)


def cut_ranks(matrix: np.ndarray, tolerance: float) -> np.ndarray:
    """[R], rank across each depth cut: what reads k, k + 1, ..., L take from v_0, ..., v_k.

    It is the number of vectors that have to be carried past the cut, so a scheme whose state is m vectors has
    at most m (m-semiseparable), and Block at most its sources there, N + 1.  At k = 0 and k = L it is 1.
    """
    return np.array([rank(matrix[k:, : k + 1], tolerance) for k in range(len(matrix))])


def effective_rank(square: np.ndarray) -> float:
    """exp of the entropy of the singular values, as shares of their sum, of the row shares of [L, L]."""
    values = np.linalg.svd(shares(square), compute_uv=False)
    p = values / values.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))
