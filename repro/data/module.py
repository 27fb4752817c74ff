"""The data side of a Lightning run: training batches that follow the global step.

Validation is not Lightning's: a run reads `repro.data.batches.ValidationWindows` at its snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator

import lightning
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from repro.data.batches import Batches
from repro.data.shards import Shards
from repro.errors import ConfigError


class TokenData(lightning.LightningDataModule):
    """Training data of opened shards.

    Optimiser step k consumes batch k [B, T]: rank r of `world` takes rows r::world, and gradient
    accumulation takes its share of those in turn, so neither the number of processes nor ``accumulate``
    changes what a step sees. Reading begins at the trainer's global step: a resumed run goes on with the
    batch that an uninterrupted one would see.
    first: batches that count as seen before step 0, as in a run that goes on from another's weights.
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
        pin_memory: bool = False,
        first: int = 0,
    ) -> None:
        super().__init__()
        self.shards, self.context, self.accumulate = shards, context, accumulate
        self.batches = Batches(shards, context, batch_size, data_seed)
        self.pin_memory, self.first = pin_memory, first

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
        dataset = _FromGlobalStep(self, trainer)
        return DataLoader(dataset, batch_size=None, num_workers=0, pin_memory=self.pin_memory)


class _FromGlobalStep(IterableDataset[tuple[Tensor, Tensor]]):
    """This rank's share of the batches, without end, from the trainer's global step when reading begins."""

    def __init__(self, data: TokenData, trainer: lightning.Trainer) -> None:
        self._data, self._trainer = data, trainer

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        data, rank, world = self._data, self._trainer.global_rank, self._trainer.world_size
        k = data.first + self._trainer.global_step
        while True:
            inputs, targets = data.batches.batch(k)
            own_inputs, own_targets = inputs[rank::world], targets[rank::world]
            for part in range(data.accumulate):
                yield own_inputs[part :: data.accumulate], own_targets[part :: data.accumulate]
            k += 1
