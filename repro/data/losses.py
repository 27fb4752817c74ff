"""Per-document sums of the loss to nats per token and bits per byte, per source and pooled (no torch)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def summarise(
    loss_sum: npt.ArrayLike,
    tokens: npt.ArrayLike,
    num_bytes: npt.ArrayLike,
    source: Sequence[str] | npt.NDArray[Any],
) -> dict[str, Any]:
    """Losses of a set of documents.

    loss_sum: [N], nats.  tokens, num_bytes: [N], what the sums are over.  source: [N], names.
    Returns {"loss": nats per token, "bpb": bits per byte, "by_source": {source: {"loss", "bpb"}}}; documents
    and sources without tokens take no part; a ratio without a denominator is NaN.
    """
    sums = np.asarray(loss_sum, dtype=np.float64)
    counts = np.asarray(tokens, dtype=np.int64)
    sizes = np.asarray(num_bytes, dtype=np.int64)
    names = np.asarray(source, dtype=str)
    if not sums.shape == counts.shape == sizes.shape == names.shape:
        raise ValueError(f"shapes differ: {sums.shape}, {counts.shape}, {sizes.shape}, {names.shape}")
    present = counts > 0

    def ratios(chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        total, num_tokens, size = sums[chosen].sum(), counts[chosen].sum(), sizes[chosen].sum()
        return {
            "loss": float(total / num_tokens) if num_tokens else math.nan,
            "bpb": float(total / math.log(2) / size) if size else math.nan,
        }

    by_source = {str(name): ratios(present & (names == name)) for name in np.unique(names[present])}
    return {**ratios(present), "by_source": by_source}
