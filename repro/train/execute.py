"""One run from a resolved config to a finished directory: done once, resumed exactly, never overwritten."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from repro.data.batches import ValidationWindows
from repro.data.losses import summarise
from repro.data.module import TokenData
from repro.data.prepare import Prepared, prepare
from repro.data.shards import Shards
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.lit import Diverged, LitDecoder
from repro.runs import Run, command_line, git_state, host_description
from repro.train.callbacks import Recorder
from repro.train.evaluate import document_losses
from repro.train.mirror import Mirror
from repro.train.optim import build_optimizer
from repro.train.paths import resolve_path

Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a run. status: done | diverged | failed; cached: nothing was trained."""

    status: str
    directory: Path
    message: str = ""
    cached: bool = False


def with_data(config: DictConfig, say: Say) -> tuple[DictConfig, Prepared]:
    """Prepare the corpus and complete the config with its fingerprint."""
    prepared = prepare(
        OmegaConf.to_container(config.data, resolve=True),  # type: ignore[arg-type]
        vocab_size=config.model.vocab_size,
        cache_dir=resolve_path(config, config.paths.data),
        say=say,
    )
    config = config.copy()
    with open_dict(config):
        config.data.fingerprint = prepared.fingerprint
    return config, prepared


def total_steps(config: DictConfig) -> int:
    """Updates that the token budget pays for (the rest below one batch is dropped)."""
    for key in ("tokens", "batch_size", "context"):
        value = config.budget[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"budget.{key}", value, "a whole number of at least 1")
    steps = config.budget.tokens // (config.budget.batch_size * config.budget.context)
    if steps < 1:
        raise ConfigError(
            "budget.tokens", config.budget.tokens, "at least budget.batch_size * budget.context"
        )
    if config.budget.batch_size % config.runtime.accumulate:
        raise ConfigError("runtime.accumulate", config.runtime.accumulate, "a divisor of budget.batch_size")
    return steps


def execute(config: DictConfig, say: Say = print) -> Outcome:
    """Train the run of this config, go on with it, or return it from the cache.

    Raises ConfigError or DataError for what the user can mend; any other failure is recorded in the run's
    status and returned.
    """
    config, prepared = with_data(config, say)
    steps = total_steps(config)
    build_decoder(config, device="meta")  # an unusable shape is refused before a directory exists
    run = Run.open(config, resolve_path(config, config.paths.runs))
    if config.runtime.force and run.status.state in ("done", "diverged"):
        run.supersede()
    if (cached := _cached(run)) is not None:
        return cached
    waiting = partial(_say_waiting, say)
    with run.lock(on_wait=waiting):
        if (cached := _cached(run)) is not None:
            return cached
        try:
            return _train(config, prepared, run, steps, say)
        except (ConfigError, DataError) as error:
            run.set_status("failed", message=str(error))
            raise
        except KeyboardInterrupt:
            run.set_status("failed", message="interrupted; start the same command again to go on")
            raise
        except Exception as error:
            message = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            run.set_status("failed", message=message)
            logging.getLogger("repro").debug("run failed", exc_info=True)
            return Outcome("failed", run.directory, message)


def _cached(run: Run) -> Outcome | None:
    status = run.status
    if status.state in ("done", "diverged") and run.read_json("final.json") is not None:
        return Outcome(status.state, run.directory, status.message, cached=True)
    return None


def _say_waiting(say: Say, status: Any) -> None:
    say(f"another process trains this run (step {status.step}); waiting for it")


def _resume_step(run: Run, say: Say) -> int | None:
    """Cut the records back to the checkpoint; its step, or None where training starts from nothing."""
    if run.checkpoint.exists():
        try:
            saved = torch.load(run.checkpoint, map_location="cpu", weights_only=True)
            step, counts = int(saved["global_step"]), dict(saved["records"])
        except Exception as error:
            run.keep_aside(run.checkpoint, f"not a checkpoint of ours: {str(error).splitlines()[0][:80]}")
        else:
            if run.cut_after(step, counts):
                say(f"going on from step {step}")
                return step
    run.cut_after(-1)
    return None


def _train(config: DictConfig, prepared: Prepared, run: Run, steps: int, say: Say) -> Outcome:
    _quiet()
    torch.set_flush_denormal(True)
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    settings, runtime, budget = plain["evaluation"], plain["runtime"], plain["budget"]
    decoder = build_decoder(config)
    schedule = instantiate(config.schedule)
    module = LitDecoder(
        decoder,
        partial(build_optimizer, optim=plain["optim"]),
        partial(schedule.factor, total=steps),
        float(budget["grad_clip"]),
        compile_options=_compile_options(runtime["compile"]),
    )
    shards, context, batch_size = Shards.open(prepared.directory), budget["context"], budget["batch_size"]
    data = TokenData(
        shards,
        context=context,
        batch_size=batch_size,
        data_seed=config.data_seed,
        accumulate=runtime["accumulate"],
    )
    subset = ValidationWindows(
        shards, context, max(1, settings["subset_tokens"] // context), batch_size=batch_size
    )
    whole = ValidationWindows(shards, context, None, batch_size=batch_size)
    _write_meta(run, config, decoder, prepared)
    resumed = _resume_step(run, say)
    mirror = Mirror(plain["logger"], plain, run.run_id, resolve_path(config, config.paths.runs) / ".wandb")
    recorder = Recorder(
        run, steps, batch_size * context, context, settings, runtime,
        partial(_subset_row, subset), mirror, say,
    )  # fmt: skip
    recorder.clock.seconds_before = _seconds_before(run)
    run.set_status("running", step=resumed or 0)
    trainer = _trainer(config, steps, runtime, [recorder], run.directory)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=run.checkpoint if resumed else None, weights_only=True)
        final = _finish(run, trainer, module, whole, steps, batch_size * context)
    except Exception as error:
        step = error.step if isinstance(error, Diverged) else run.status.step
        if not isinstance(error, Diverged) and run.status.state != "diverged":
            raise
        run.write_json("final.json", {**_account(decoder), "status": "diverged", "val_loss": None,
                                      "diverged_at_step": step, "step": step})  # fmt: skip
        run.set_status("diverged", step=step, message=f"not finite at step {step}")
        mirror.finish({"diverged_at_step": step})
        return Outcome("diverged", run.directory, f"loss not finite at step {step}")
    finally:
        mirror.finish()
    mirror.finish(final)
    run.set_status("done", step=steps)
    return Outcome("done", run.directory, f"validation {final['val_loss']:.4f} nats/token")


def _trainer(
    config: DictConfig, steps: int, runtime: Mapping[str, Any], callbacks: list, root: Path
) -> L.Trainer:
    return L.Trainer(
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        strategy=config.trainer.strategy,
        precision=config.precision,
        max_steps=steps,
        max_epochs=-1,
        accumulate_grad_batches=runtime["accumulate"],
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
        default_root_dir=str(root),
    )


def _subset_row(windows: ValidationWindows, trainer: L.Trainer, module: LitDecoder) -> dict[str, Any]:
    """Losses on the fixed validation subset as a metrics row."""
    sums = _validate(windows, trainer, module)
    return {"subset": True, **summarise(sums, windows.tokens, windows.num_bytes, windows.source)}


def _validate(windows: ValidationWindows, trainer: L.Trainer, module: LitDecoder) -> np.ndarray:
    device = next(module.decoder.parameters()).device
    with trainer.precision_plugin.forward_context():
        return document_losses(module.decoder, windows, windows.num_documents, device)


def _finish(
    run: Run,
    trainer: L.Trainer,
    module: LitDecoder,
    whole: ValidationWindows,
    steps: int,
    tokens_per_step: int,
) -> dict[str, Any]:
    """Validate on every document and write the records that close a run."""
    sums = _validate(whole, trainer, module)
    if not np.isfinite(sums).all():
        raise Diverged(steps, float(sums.sum()), float("nan"))
    scores = summarise(sums, whole.tokens, whole.num_bytes, whole.source)
    run.write_arrays(
        "val_losses.npz",
        loss_sum=sums,
        tokens=whole.tokens,
        bytes=whole.num_bytes,
        source=whole.source,
        doc_id=whole.doc_id,
    )
    final = {
        "status": "done",
        "step": steps,
        "tokens": steps * tokens_per_step,
        "val_loss": scores["loss"],
        "val_bpb": scores["bpb"],
        "val_loss_by_source": {s: v["loss"] for s, v in scores["by_source"].items()},
        "val_bpb_by_source": {s: v["bpb"] for s, v in scores["by_source"].items()},
        "weights_sha256": weights_sha256(module.decoder),
        **_account(module.decoder),
    }
    run.write_json("final.json", final)
    return final


def _account(decoder: Decoder) -> dict[str, Any]:
    return {
        "parameters": decoder.num_parameters(),
        "mixer_parameters": sum(p.numel() for p in decoder.mixer.parameters()),
        "flops_per_token": decoder.flops_per_token(),
    }


def weights_sha256(decoder: Decoder) -> str:
    """Digest of all weights, by name: equal digests mean bit-identical training."""
    digest = hashlib.sha256()
    for name, tensor in sorted(decoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_meta(run: Run, config: DictConfig, decoder: Decoder, prepared: Any) -> None:
    run.write_json(
        "meta.json",
        {
            "git": git_state(),
            "host": host_description(),
            "command": command_line(),
            "data_fingerprint": prepared.fingerprint,
            "device": config.trainer.accelerator,
            "devices": config.trainer.devices,
            "precision": config.precision,
            "backend": decoder.mixer.backend,
            "depth_execution": decoder.mixer.execution,
            "compile": bool(config.runtime.compile),
            "threads": torch.get_num_threads(),
            **_account(decoder),
        },
    )


def _seconds_before(run: Run) -> float:
    rows = run.read_timings()
    return float(rows[-1]["seconds"]) if rows else 0.0


def _compile_options(setting: Any) -> dict[str, Any] | None:
    return None if not setting else dict(setting) if isinstance(setting, Mapping) else {}


def _quiet() -> None:
    """Lightning's advice is for its defaults, which a run here replaces on purpose."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)
