"""Lightning's trainer, without what a run here does itself (logging, checkpoints, progress, validation)."""

from __future__ import annotations

import logging
import re
import signal
import warnings
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from omegaconf import DictConfig

from repro.depth.base import DepthMixer
from repro.model.lit import Diverged
from repro.train.process import prepare


class Interrupted(KeyboardInterrupt):
    """Training was told to stop, by Ctrl-C or by a SIGTERM; `code` is the process's exit code."""

    def __init__(self, code: int) -> None:
        super().__init__("interrupted")
        self.code = code


def build_trainer(
    config: DictConfig, steps: int, callback: L.Callback, mixer: DepthMixer, directory: Path
) -> L.Trainer:
    """The trainer of config node `trainer` for so many updates."""
    quiet()
    prepare()
    strategy = config.trainer.strategy
    if strategy == "ddp_spawn":
        # Data-parallel training would wait for the gradient of a parameter that never gets one.
        unused = any("[" not in name for name in mixer.parameters_without_gradient())
        strategy = DDPStrategy(start_method="spawn", find_unused_parameters=unused)
    return L.Trainer(
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        strategy=strategy,
        precision=config.precision,
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=config.runtime.accumulate,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
        default_root_dir=str(directory),
    )


def fit(
    trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule, start: Path | None
) -> None:
    """Train from checkpoint `start` (None: from nothing); raises Interrupted on Ctrl-C or SIGTERM."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    except SystemExit as stop:  # Lightning's way to end on Ctrl-C (code 1) and on SIGTERM
        if trainer.received_sigterm:
            raise Interrupted(128 + signal.SIGTERM) from stop
        signal.signal(signal.SIGINT, on_interrupt)  # Lightning leaves it ignored
        raise Interrupted(128 + signal.SIGINT) from stop


def diverged_step(error: Exception) -> int | None:
    """The step at which a run diverged, where that is what an error says; else None.

    A spawned process hands its exception over as the text of a traceback.
    """
    if isinstance(error, Diverged):
        return error.step
    found = re.search(r"^repro\.model\.lit\.Diverged: not finite at step (\d+)", str(error), re.MULTILINE)
    return int(found[1]) if found else None


def reason(error: Exception) -> str:
    """One line for an error; of a spawned process's traceback the last line, which names it."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    spawned = isinstance(error, torch.multiprocessing.ProcessRaisedException)
    return lines[-1] if spawned else f"{type(error).__name__}: {lines[0]}"


def quiet() -> None:
    """Lightning's advice is for its defaults, which a run here replaces on purpose."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
