"""What the untouched pass says of every (read, source): weight, share of the mixture, mean value, spread.

Letters: R = L + 1 reads, C columns (`DepthMixer.source_columns`), W windows, P position buckets, F frequency
buckets. NaN where a read has no such source. Weights are averaged over depth heads first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.depth.base import DepthMixer
from repro.train.evaluate import position_edges

#: Occurrences per training token: the buckets of `by_frequency` lie between these.
FREQUENCY_EDGES = (0.0, 1e-5, 1e-4, 1e-3, 1e-2, 1.0)


def frequency_bucket(train_tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Bucket of each token of the vocabulary [V] by its frequency in the training stream."""
    counts = np.bincount(train_tokens, minlength=vocab_size)
    share = counts / counts.sum()
    return np.clip(np.searchsorted(FREQUENCY_EDGES, share, side="right") - 1, 0, len(FREQUENCY_EDGES) - 2)


class SourceRecorder:
    """Sums over the valid tokens of all batches; `add` once per batch, then `arrays`.

    means: (read, column) -> mean value over tokens [D], for the intervention `mean`.
    """

    def __init__(self, mixer: Any, context: int, bucket_of_token: np.ndarray) -> None:
        self.mixer, self.context = mixer, context
        self.columns = num_columns(mixer)
        self._bucket_of_token = torch.from_numpy(bucket_of_token)
        self._edges = position_edges(context)
        self._weights: dict[int, Tensor] = {}
        self._value_sums: dict[tuple[int, int], Tensor] = {}
        self._rows: dict[tuple[int, int], list[tuple[Tensor, ...]]] = {}
        self._tokens = 0.0
        self._counts: list[tuple[Tensor, Tensor]] = []

    def tap(self, l: int, weights: Tensor) -> None:
        """Set as the mixer's tap while the states are made."""
        self._weights[l] = weights.mean(1)  # [S, B, T]

    def add(self, states: list[Any], tokens: Tensor, valid: Tensor) -> None:
        """One batch. tokens, valid: [B, T], the inputs and which of them have a target."""
        mask = valid.to(self.mixer.sources_at(states[0], 0)[0].dtype)
        by_position = self._one_hot(self._position_buckets(tokens), len(self._edges) - 1, mask)
        frequency = self._bucket_of_token.to(tokens.device)[tokens]
        by_frequency = self._one_hot(frequency, len(FREQUENCY_EDGES) - 1, mask)
        self._counts.append((by_position.sum((0, 1)), by_frequency.sum((0, 1))))
        self._tokens += float(mask.sum())
        per_window = mask.sum(1).clamp_min(1)
        for l in range(self.mixer.num_sublayers + 1):
            values = self.mixer.sources_at(states[l], l)
            weights = self._weights.get(l)
            if weights is None and len(values) == 1:
                weights = mask.new_ones(1, *mask.shape)
            total = self._mixture(values, weights).norm(dim=-1).clamp_min(1e-30)
            for i, column in enumerate(self.mixer.source_columns(l)):
                a = mask.new_ones(mask.shape) if weights is None else weights[i].to(mask.dtype)
                share = a * values[i].norm(dim=-1) / total
                sums = torch.einsum("bt,btd->d", mask, values[i].to(mask.dtype))
                key = l, column
                self._value_sums[key] = self._value_sums.get(key, 0) + sums
                spread = [
                    torch.einsum("bt,btk->k", a**power, buckets)
                    for buckets in (by_position, by_frequency)
                    for power in (1, 2)
                ]
                self._rows.setdefault(key, []).append(
                    ((a * mask).sum(1) / per_window, (share * mask).sum(1) / per_window, *spread)
                )

    @property
    def means(self) -> dict[tuple[int, int], Tensor]:
        return {key: sums / self._tokens for key, sums in self._value_sums.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """`weight`, `share` [R, C, W]; per bucket `position_mean`, `position_variance` [R, C, P], likewise
        `frequency_*` [R, C, F], with `position_tokens` [P], `frequency_tokens` [F] and the edges.

        share: a_i |v_i| / |mixture|, the source's part in what is read. Variances are over tokens.
        """
        reads = self.mixer.num_sublayers + 1
        counts = [torch.stack([c[k] for c in self._counts]).sum(0).double().cpu().numpy() for k in (0, 1)]
        found: dict[str, np.ndarray] = {}
        for name, size in (("position", len(counts[0])), ("frequency", len(counts[1]))):
            for kind in ("mean", "variance"):
                found[f"{name}_{kind}"] = np.full((reads, self.columns, size), np.nan)
        windows = sum(len(row[0]) for row in next(iter(self._rows.values())))
        for name in ("weight", "share"):
            found[name] = np.full((reads, self.columns, windows), np.nan, dtype=np.float32)
        for (l, column), rows in self._rows.items():
            for k, name in enumerate(("weight", "share")):
                found[name][l, column] = torch.cat([row[k] for row in rows]).cpu().numpy()
            for k, name in enumerate(("position", "frequency")):
                first, second = (
                    sum(row[2 + 2 * k + power].double().cpu().numpy() for row in rows) for power in (0, 1)
                )
                n = np.where(counts[k] > 0, counts[k], np.nan)
                found[f"{name}_mean"][l, column] = first / n
                found[f"{name}_variance"][l, column] = np.maximum(second / n - (first / n) ** 2, 0)
        return {
            **{name: value.astype(np.float32) for name, value in found.items()},
            "position_edges": np.array(self._edges),
            "frequency_edges": np.array(FREQUENCY_EDGES),
            "position_tokens": counts[0],
            "frequency_tokens": counts[1],
        }

    def _mixture(self, values: list[Tensor], weights: Tensor | None) -> Tensor:
        if weights is None:
            return sum(values[1:], values[0])
        return sum((w.unsqueeze(-1) * v for w, v in zip(weights, values, strict=True)), torch.zeros(()))

    def _position_buckets(self, tokens: Tensor) -> Tensor:
        positions = np.arange(tokens.shape[1])
        buckets = np.searchsorted(self._edges, positions, side="right") - 1
        return torch.from_numpy(buckets).to(tokens.device).expand_as(tokens)

    @staticmethod
    def _one_hot(bucket: Tensor, size: int, mask: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(bucket, size).to(mask.dtype) * mask.unsqueeze(-1)


def num_columns(mixer: DepthMixer) -> int:
    """C: columns of the depth-weight picture."""
    return 1 + max(c for l in range(mixer.num_sublayers + 1) for c in mixer.source_columns(l))
