"""Training batches and validation windows over token shards.

Batch k is a pure function of (data seed, k): a resumed run, another process or another machine sees the same
tokens. B batch, T tokens (the context), N validation documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from repro.data.shards import Shards
from repro.errors import ConfigError

IGNORE = -100  # target of a padded position, as torch's cross entropy ignores it


class Batches:
    """Non-overlapping windows of the training stream, shuffled anew in each pass over it (epoch).

    Windows follow one another without end: a batch may span two epochs. The order of an epoch sorts raw bits
    of a counter-based generator keyed by (seed, epoch), which NumPy keeps the same across versions.
    Errors: ConfigError for a context longer than the corpus, a batch size below 1, a negative seed.
    """

    def __init__(self, shards: Shards, context: int, batch_size: int, seed: int) -> None:
        self._tokens = shards.tokens["train"]
        _require_positive("budget.context", context)
        _require_positive("budget.batch_size", batch_size)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError("data_seed", seed, "an integer of at least 0")
        self.context, self.batch_size, self.seed = context, batch_size, seed
        self.num_windows = (len(self._tokens) - 1) // context
        if self.num_windows == 0:
            allowed = (
                f"longer than the training part of the corpus, which has {len(self._tokens) - 1} targets"
            )
            raise ConfigError("budget.context", context, allowed)
        self._orders: dict[int, npt.NDArray[np.int64]] = {}

    @property
    def tokens_per_epoch(self) -> int:
        """Targets in one pass."""
        return self.num_windows * self.context

    def epoch(self, k: int) -> int:
        """The pass, counted from 0, that batch k begins in."""
        return k * self.batch_size // self.num_windows

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of batch k, each [B, T] int64; targets are the inputs one position later."""
        rows = np.empty((self.batch_size, self.context + 1), dtype=np.int64)
        first = k * self.batch_size
        for row, number in enumerate(range(first, first + self.batch_size)):
            epoch, position = divmod(number, self.num_windows)
            start = int(self._order(epoch)[position]) * self.context
            rows[row] = self._tokens[start : start + self.context + 1]
        tokens = torch.from_numpy(rows)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if epoch not in self._orders:
            bits = np.random.Philox(key=[self.seed, epoch]).random_raw(self.num_windows)
            self._orders = {e: o for e, o in self._orders.items() if abs(e - epoch) == 1}
            self._orders[epoch] = np.argsort(bits, kind="stable")
        return self._orders[epoch]


class ValidationWindows:
    """The validation stream in fixed order, cut into windows, with the document that each target belongs to.

    Indexing gives batch i as (inputs, targets, doc_index), each [B, T] int64. The last window is padded:
    targets IGNORE, doc_index 0. The last batch may have fewer rows.
    limit_windows: a fixed subset of that many windows, evenly strided within each source, with at least one
    from every source in which a window begins (as far as the limit allows); None for all.
    rank, world: this process takes every ``world``-th window; counts are those of all processes.
    """

    def __init__(
        self,
        shards: Shards,
        context: int,
        limit_windows: int | None = None,
        *,
        batch_size: int = 16,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        _require_positive("budget.context", context)
        if limit_windows is not None:
            _require_positive("evaluation.subset_tokens", limit_windows)
        self._shards, self.context, self.batch_size = shards, context, batch_size
        self._tokens, self._documents = shards.tokens["val"], shards.documents["val"]
        self._starts = np.ascontiguousarray(self._documents["start"]).astype(np.int64)
        num_windows = -(-(len(self._tokens) - 1) // context)
        self.windows = np.arange(num_windows)
        if limit_windows is not None and limit_windows < num_windows:
            first_document = self._document_of(self.windows * context + 1)
            self.windows = spread(self._documents["source"][first_document], limit_windows)
        self._own = self.windows[rank::world]

    @property
    def num_documents(self) -> int:
        return len(self._documents)

    def __len__(self) -> int:
        return -(-len(self._own) // self.batch_size)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        if not 0 <= i < len(self):
            raise IndexError(i)
        inputs, targets, doc_index = self._window_arrays(
            self._own[i * self.batch_size : (i + 1) * self.batch_size]
        )
        return torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(doc_index)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def tokens(self) -> npt.NDArray[np.int64]:
        """Targets of each document in these windows [N]; 0 for a document that they do not touch."""
        return self._count(np.ones(self._shards.vocab_size, dtype=np.int64))

    @cached_property
    def num_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes of text behind those targets [N]; the whole document's over all windows."""
        return self._count(self._shards.token_bytes)

    @cached_property
    def source(self) -> npt.NDArray[np.str_]:
        """Name of each document's source [N]."""
        return np.array(self._shards.sources, dtype=str)[self._documents["source"]]

    @cached_property
    def doc_id(self) -> npt.NDArray[np.uint64]:
        """Identity of each document, whatever the tokenizer [N]: the first 8 bytes of its title's sha256."""
        return np.ascontiguousarray(self._documents["id"])

    def _count(self, weight: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        total = np.zeros(self.num_documents, dtype=np.int64)
        for chunk in range(0, len(self.windows), 1024):
            _, targets, doc_index = self._window_arrays(self.windows[chunk : chunk + 1024])
            valid = targets != IGNORE
            np.add.at(total, doc_index[valid], weight[targets[valid]])
        return total

    def _window_arrays(self, windows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], ...]:
        shape = (len(windows), self.context)
        inputs = np.full(shape, self._shards.end_of_text, dtype=np.int64)
        targets = np.full(shape, IGNORE, dtype=np.int64)
        doc_index = np.zeros(shape, dtype=np.int64)
        for row, window in enumerate(windows):
            start = int(window) * self.context
            stream = self._tokens[start : start + self.context + 1]
            length = len(stream) - 1
            inputs[row, :length], targets[row, :length] = stream[:-1], stream[1:]
            doc_index[row, :length] = self._document_of(np.arange(start + 1, start + 1 + length))
        return inputs, targets, doc_index

    def _document_of(self, positions: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        return np.searchsorted(self._starts, positions, side="right") - 1


def add_document_losses(sums: Tensor, losses: Tensor, targets: Tensor, doc_index: Tensor) -> None:
    """Add a validation batch to sums [N] (float64) in place; the others are [B, T]; padding adds nothing."""
    kept = torch.where(targets == IGNORE, 0.0, losses.detach().to(sums.dtype))
    sums.index_add_(0, doc_index.reshape(-1), kept.reshape(-1))


def spread(group: npt.NDArray[Any], limit: int) -> npt.NDArray[np.int64]:
    """Ascending indices of ``limit`` members, evenly strided within each group and shared out by the groups'
    sizes.

    group: [n], the group of each member, n > limit. Every group gets one member if there are as many as the
    limit.
    """
    names, sizes = np.unique(group, return_counts=True)
    quota = np.maximum(1, limit * sizes // len(group))
    while quota.sum() > limit:
        quota[np.argmax(quota)] -= 1
    while quota.sum() < limit:
        quota[np.argmax(sizes / np.maximum(quota, 0.5))] += 1
    chosen = []
    for name, share in zip(names, quota, strict=True):
        members = np.flatnonzero(group == name)
        chosen.append(members[(2 * np.arange(share) + 1) * len(members) // (2 * max(share, 1))])
    return np.sort(np.concatenate(chosen))


def _require_positive(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(key, value, "an integer of at least 1")
