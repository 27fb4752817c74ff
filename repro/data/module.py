"""The data side of a Lightning run: batches that follow the global step, and validation windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import lightning
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from repro.data.batches import Batches, ValidationWindows
from repro.data.shards import Shards
from repro.errors import ConfigError


class TokenData(lightning.LightningDataModule):
    """Training and validation data of opened shards.

    Optimiser step k consumes batch k [B, T]: rank r of `world` takes rows r::world, and gradient
    accumulation takes its share of those in turn, so neither the number of processes nor ``accumulate``
    changes what a step sees. Reading begins at the trainer's global step: a resumed run goes on with the
    batch that an uninterrupted one would see.
    Errors: ConfigError if the batch does not divide by world times accumulate, or the context exceeds the
    corpus.
    """

    def __init__(
        self,
        shards: Shards,
        *,
        context: int,
        batch_size: int,
        data_seed: int,
        accumulate: int = 1,
        subset_windows: int | None = None,
        val_batch_size: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        self.shards, self.context, self.accumulate = shards, context, accumulate
        self.batches = Batches(shards, context, batch_size, data_seed)
        self.subset_windows, self.val_batch_size = subset_windows, val_batch_size or batch_size
        self.pin_memory = pin_memory

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        trainer = self.trainer
        if trainer is None:
            raise RuntimeError("TokenData is not attached to a trainer")
        parts = trainer.world_size * self.accumulate
        if self.batches.batch_size % parts:
            allowed = (
                f"a multiple of processes x runtime.accumulate = {trainer.world_size} x {self.accumulate}"
            )
            raise ConfigError("budget.batch_size", self.batches.batch_size, allowed)
        return self._loader(_FromGlobalStep(self, trainer))

    def val_dataloader(self) -> DataLoader[tuple[Tensor, Tensor, Tensor]]:
        """The fixed subset, for snapshots."""
        return self._loader(_Stream(self.subset()))

    def full_dataloader(self) -> DataLoader[tuple[Tensor, Tensor, Tensor]]:
        """The whole validation set, for the end of a run."""
        return self._loader(_Stream(self.full()))

    def subset(self) -> ValidationWindows:
        """The fixed subset as windows (its counts serve to reduce the sums)."""
        return self._windows(self.subset_windows)

    def full(self) -> ValidationWindows:
        """The whole validation set as windows."""
        return self._windows(None)

    def _windows(self, limit: int | None) -> ValidationWindows:
        rank, world = (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
        return ValidationWindows(
            self.shards, self.context, limit, batch_size=self.val_batch_size, rank=rank, world=world
        )

    def _loader(self, dataset: IterableDataset[tuple[Tensor, ...]]) -> DataLoader:
        return DataLoader(dataset, batch_size=None, num_workers=0, pin_memory=self.pin_memory)


class _FromGlobalStep(IterableDataset[tuple[Tensor, ...]]):
    """This rank's share of the batches, without end, from the trainer's global step when reading begins."""

    def __init__(self, data: TokenData, trainer: lightning.Trainer) -> None:
        self._data, self._trainer = data, trainer

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        data, rank, world = self._data, self._trainer.global_rank, self._trainer.world_size
        k = self._trainer.global_step
        while True:
            inputs, targets = data.batches.batch(k)
            own_inputs, own_targets = inputs[rank::world], targets[rank::world]
            for part in range(data.accumulate):
                yield own_inputs[part :: data.accumulate], own_targets[part :: data.accumulate]
            k += 1


class _Stream(IterableDataset[tuple[Tensor, ...]]):
    """An iterable that Lightning does not shard again: the windows already take this rank's share."""

    def __init__(self, windows: Iterable[tuple[Tensor, ...]]) -> None:
        self._windows = windows

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return iter(self._windows)
