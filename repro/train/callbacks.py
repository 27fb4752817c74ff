"""What a run writes while it trains: metrics, snapshots, checkpoints, progress and a heartbeat.

Order within a step is what makes an interrupted run resume exactly: rows and snapshots of step k are on
disk before a checkpoint of step k is, and opening a run cuts whatever lies past its checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from repro.depth.base import DepthMixer
from repro.model.lit import Diverged, LitDecoder
from repro.runs import Run
from repro.train import checkpoints
from repro.train.evaluate import DepthWeightRecorder, DynamicsRecorder
from repro.train.process import prepare
from repro.train.trainer import quiet


def snapshot_steps(total: int, count: int) -> list[int]:
    """Step 0 and `count` steps at total / 2^k, ascending and distinct: log-spaced towards the start."""
    return sorted({0, *(max(1, round(total / 2**k)) for k in range(count))})


@dataclass
class Clock:
    """Trained seconds and tokens of this process, and of the ones before it."""

    seconds_before: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    paused: float = 0.0

    def seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started - self.paused


class Recorder(L.Callback):
    """Writes one run's records.

    validate: (trainer, module) -> row of the validation subset, called at snapshots with the tap set.
    mirror: called with every metrics row (W&B).  say: prints one progress line.
    In a data-parallel run every rank has a recorder, and only rank 0 writes.
    """

    def __init__(
        self,
        run: Run,
        total_steps: int,
        tokens_per_step: int,
        context: int,
        settings: Mapping[str, Any],
        runtime: Mapping[str, Any],
        validate: Callable[[L.Trainer, LitDecoder], dict[str, Any]],
        mirror: Callable[[dict[str, Any]], None],
        say: Callable[[str], None],
    ) -> None:
        self.run, self.total, self.tokens_per_step, self.context = run, total_steps, tokens_per_step, context
        self.snapshots = snapshot_steps(total_steps, int(settings["num_snapshots"]))
        self.log_every = int(settings["log_every"])
        self.accumulate = int(runtime["accumulate"])
        self.checkpoint_seconds = float(runtime["checkpoint_seconds"])
        self.progress_seconds = runtime["progress_seconds"]
        self.validate, self.mirror, self.say = validate, mirror, say
        self.clock = Clock()
        self._dynamics: DynamicsRecorder | None = None
        self._saved_at = self._said_at = self._beat_at = time.monotonic()
        self._rate = (time.perf_counter(), 0)
        self._done_step = -1
        self._unconfirmed = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        quiet()  # a spawned process has just been started: the same silence as in its parent
        self.__dict__.update(state)

    # -- Lightning's hooks ---------------------------------------------------------------------

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        prepare()  # this process, which may be a spawned one

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._done_step = trainer.global_step
        self.clock = Clock(seconds_before=self.clock.seconds_before)
        self._rate = (time.perf_counter(), trainer.global_step)
        if trainer.global_step == 0 and trainer.is_global_zero:
            self._snapshot(trainer, pl_module, 0)

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if batch_idx % self.accumulate:
            return  # only a first micro-batch begins a step
        # Saved here and not after the step before: now all of Lightning's counters agree on that step.
        stop = trainer.received_sigterm
        if step > 0 and (stop or self._checkpoint_is_due(trainer)):
            self._save(trainer)
        if stop:
            raise SIGTERMException
        # Beside the snapshots, the last step too: Fig. 5 (b) and (c) show the end of training.
        if (step in self.snapshots or step == self.total - 1) and trainer.is_global_zero:
            decoder = pl_module.decoder
            self._dynamics = DynamicsRecorder(
                decoder.num_sublayers, decoder.mixer.stream_has_outputs_gradient
            )
            pl_module.observer = self._dynamics.observe

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if step == self._done_step:
            return  # a micro-batch that completed no update
        self._done_step = step
        pl_module.observer = None
        if not trainer.is_global_zero:
            return
        if self._unconfirmed:
            checkpoints.confirm(self.run)
            self._unconfirmed = False
        if self._dynamics is not None:
            # Each process backpropagates the mean over its own rows.
            dynamics: dict[str, Any] = self._dynamics.arrays(1 / trainer.world_size)
            self.run.append_snapshot("depth_norms.npz", step - 1, **dynamics)
            self._dynamics = None
        if step % self.log_every == 0 or step == self.total:
            self._log(trainer, pl_module, step)
        if step in self.snapshots:
            self._snapshot(trainer, pl_module, step)
        self._beat(pl_module, step)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The last weights are kept too: if the final validation is interrupted, only that is repeated.
        self._save(trainer)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["records"] = self.run.counts() if trainer.is_global_zero else {}

    # -- what is written -----------------------------------------------------------------------

    def _log(self, trainer: L.Trainer, module: LitDecoder, step: int) -> None:
        row = {
            "step": step,
            "kind": "train",
            "tokens": step * self.tokens_per_step,
            "loss": module.last_loss,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "grad_norm": module.last_grad_norm,
        }
        self.run.append_metrics(row)
        self.mirror(row)
        self.run.append_timings(
            {
                "step": step,
                "seconds": self.clock.seconds(),
                "tokens_per_second": self._tokens_per_second(step),
                "flops_per_second": self._tokens_per_second(step) * module.decoder.flops_per_token(),
                "peak_memory_bytes": peak_memory_bytes(),
            }
        )

    def _snapshot(self, trainer: L.Trainer, module: Any, step: int) -> None:
        before = time.perf_counter()
        mixer: DepthMixer = module.decoder.mixer
        with DepthWeightRecorder(mixer, self.context) as recorder:
            row = {
                "step": step,
                "kind": "val",
                "tokens": step * self.tokens_per_step,
                **self.validate(trainer, module),
            }
        if not math.isfinite(row["loss"]):
            raise Diverged(step, row["loss"], float("nan"))
        self.run.append_metrics(row)
        self.mirror(row)
        if arrays := recorder.arrays():
            self.run.append_snapshot("depth_weights.npz", step, fixed=recorder.labels(), **arrays)
        pause = time.perf_counter() - before
        self.clock.paused += pause
        self._rate = (self._rate[0] + pause, self._rate[1])  # a rate is that of training alone

    def _checkpoint_is_due(self, trainer: L.Trainer) -> bool:
        due = time.monotonic() - self._saved_at >= self.checkpoint_seconds
        if trainer.world_size == 1:
            return due
        # Saving is collective and clocks differ between ranks, so they agree first, and not at every step.
        return trainer.global_step % self.log_every == 0 and trainer.strategy.reduce_boolean_decision(
            due, all=False
        )

    def _save(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            checkpoints.save(self.run, trainer.save_checkpoint)
        else:
            trainer.save_checkpoint(self.run.checkpoint)  # takes part; only rank 0 writes
        self._saved_at, self._unconfirmed = time.monotonic(), True

    def _beat(self, module: LitDecoder, step: int) -> None:
        now = time.monotonic()
        if now - self._beat_at >= 5:
            self._beat_at = now
            self.run.set_status("running", step=step)
        if self.progress_seconds is not None and (
            now - self._said_at >= self.progress_seconds or step == self.total
        ):
            self._said_at = now
            rate = self._tokens_per_second(step)
            left = (self.total - step) * self.tokens_per_step / rate if rate else float("nan")
            self.say(
                f"step {step}/{self.total} | loss {module.last_loss:.3f} | {rate / 1000:.1f}k tokens/s"
                f" | {minutes(left)} left"
            )
            self._rate = (time.perf_counter() - 1e-9, step)

    def _tokens_per_second(self, step: int) -> float:
        then, before = self._rate
        return (step - before) * self.tokens_per_step / max(1e-9, time.perf_counter() - then)


def minutes(seconds: float) -> str:
    """ "3:07" for 187 seconds, "?" where it is not known."""
    return "?" if seconds != seconds else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def peak_memory_bytes() -> int:
    """Peak of the accelerator's allocator, or of the process's resident memory on the CPU."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
