"""One run from a resolved config to a finished directory: done once, resumed exactly, never overwritten."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from repro.data.batches import ValidationWindows
from repro.data.module import TokenData
from repro.data.prepare import Prepared, prepare
from repro.data.shards import Shards
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.lit import LitDecoder
from repro.runs import DamagedRecord, Run, run_directory
from repro.train import checkpoints, settings
from repro.train.callbacks import Recorder
from repro.train.mirror import Mirror
from repro.train.optim import build_optimizer
from repro.train.paths import resolve_path
from repro.train.process import keep_compiled
from repro.train.results import account, subset_row, write_meta, write_results
from repro.train.schedule import Schedule, build_schedule
from repro.train.trainer import build_trainer, diverged_step, fit, reason

Say = Callable[[str], None]
#: fills the weights of a run that has a `start` node and writes what it wants to its directory
Begin = Callable[[Run, Decoder, ValidationWindows], None]


@dataclass(frozen=True)
class Outcome:
    """What became of a run. status: done | diverged | failed; cached: nothing was trained."""

    status: str
    directory: Path
    message: str = ""
    cached: bool = False


@dataclass(frozen=True)
class Parts:
    """What a run is made of, built before its directory exists so that bad settings leave none.

    steps: updates that the token budget pays for (the rest below one batch is dropped).
    """

    prepared: Prepared
    data: TokenData
    subset: ValidationWindows
    whole: ValidationWindows
    schedule: Schedule
    steps: int


def execute(config: DictConfig, say: Say = print, begin: Begin | None = None) -> Outcome:
    """Train the run of this config, go on with it, or return it from the cache.

    begin: called with the run, its decoder and all validation windows before the first step of a run that
    starts from another's weights (config node `start`: run, method, step), which no other run has.
    Raises ConfigError or DataError for what the user can mend; any other failure is recorded in the run's
    status, its traceback goes to stderr, and it is returned.
    """
    settings.check(config)
    if (config.get("start") is None) != (begin is None):
        allowed = "absent; python -m repro.convert makes runs that start from another's weights"
        raise ConfigError("start", config.get("start"), allowed)
    config, parts = _assemble(config, say)
    root = resolve_path(config, config.paths.runs)
    if not run_directory(config, root).exists():
        settings.check_device(config)
    run = Run.open(config, root)
    if config.runtime.force and run.status.finished:
        run.supersede()
    if (cached := _cached(run)) is not None:
        return cached
    settings.check_device(config)
    with run.lock(on_wait=partial(_say_waiting, say)):
        if (cached := _cached(run)) is not None:
            return cached
        try:
            return _train(config, parts, run, say, begin)
        except (ConfigError, DataError) as error:
            _note_failure(run, str(error))
            raise
        except KeyboardInterrupt as error:
            _note_failure(run, str(error) or "interrupted")
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            message = reason(error)
            _note_failure(run, message)
            return Outcome("failed", run.directory, message)


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


def _assemble(config: DictConfig, say: Say) -> tuple[DictConfig, Parts]:
    schedule = build_schedule(OmegaConf.to_container(config.schedule, resolve=True))  # type: ignore[arg-type]
    build_decoder(config, device="meta")
    config, prepared = with_data(config, say)
    budget, shards = config.budget, Shards.open(prepared.directory)
    context, batch_size = budget.context, budget.batch_size
    data = TokenData(
        shards,
        context=context,
        batch_size=batch_size,
        data_seed=config.data_seed,
        accumulate=config.runtime.accumulate,
        pin_memory=config.trainer.accelerator == "gpu",
        first=int((config.get("start") or {}).get("step", 0)),
    )
    subset = max(1, config.evaluation.subset_tokens // context)
    return config, Parts(
        prepared,
        data,
        ValidationWindows(shards, context, subset, batch_size=batch_size),
        ValidationWindows(shards, context, None, batch_size=batch_size),
        schedule,
        budget.tokens // (batch_size * context),
    )


def _cached(run: Run) -> Outcome | None:
    """The result of a finished run whose records can be read (damaged ones are kept aside and made again)."""
    status = run.status
    if not status.finished:
        return None
    if lost := _unreadable(run, status.state):
        # Said at once: what was kept aside would not be missed the next time.
        run.set_status("failed", message=f"{lost} cannot be read")
        return None
    return Outcome(status.state, run.directory, status.message, cached=True)


def _unreadable(run: Run, state: str) -> str | None:
    """Name of a record of a finished run that is missing or damaged."""
    if run.read_json("final.json") is None:
        return "final.json"
    try:
        run.read_metrics()
    except DamagedRecord:
        return "metrics.jsonl"
    names = {path.name for path in run.files("*.npz")}
    names |= {"val_losses.npz"} if state == "done" else set()
    return next((name for name in sorted(names) if run.read_arrays(name) is None), None)


def _train(config: DictConfig, parts: Parts, run: Run, say: Say, begin: Begin | None) -> Outcome:
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    runtime, budget = plain["runtime"], plain["budget"]
    if runtime["compile"]:
        keep_compiled(resolve_path(config, config.paths.compiled))
    decoder = build_decoder(config)
    module = LitDecoder(
        decoder,
        partial(build_optimizer, optim=plain["optim"]),
        partial(parts.schedule.factor, total=parts.steps),
        float(budget["grad_clip"]),
        compile_options=_compile_options(runtime["compile"]),
    )
    write_meta(run, config, decoder, parts.prepared.fingerprint)
    resumed = checkpoints.resume_step(run, say)
    if begin is not None and not resumed:
        begin(run, decoder, parts.whole)
    mirror = Mirror(plain["logger"], plain, run.run_id, resolve_path(config, config.paths.runs) / ".wandb")
    tokens_per_step = budget["batch_size"] * budget["context"]
    recorder = Recorder(
        run, parts.steps, tokens_per_step, budget["context"], plain["evaluation"], runtime,
        partial(subset_row, parts.subset), mirror, say,
    )  # fmt: skip
    recorder.clock.seconds_before = _seconds_before(run)
    run.set_status("running", step=resumed or 0)
    trainer = build_trainer(config, parts.steps, recorder, decoder.mixer, run.directory)
    try:
        fit(trainer, module, parts.data, run.checkpoint if resumed else None)
        final = write_results(run, trainer, module, parts.whole, parts.steps, tokens_per_step)
        mirror.finish(final)
    except Exception as error:
        step = diverged_step(error)
        if step is None:
            raise
        checkpoints.withdraw(run, step)
        lost = {"status": "diverged", "step": step, "diverged_at_step": step, "val_loss": None}
        run.write_json("final.json", {**account(decoder), **lost})
        run.set_status("diverged", step=step, message=f"not finite at step {step}")
        mirror.finish({"diverged_at_step": step})
        return Outcome("diverged", run.directory, f"loss not finite at step {step}")
    finally:
        mirror.finish()
    checkpoints.confirm(run)
    run.set_status("done", step=parts.steps)
    return Outcome("done", run.directory, f"validation {final['val_loss']:.4f} nats/token")


def _note_failure(run: Run, message: str) -> None:
    with suppress(DataError):  # the disk may be what failed; the first error is the one to tell
        run.set_status("failed", message=message)


def _say_waiting(say: Say, status: Any) -> None:
    say(f"another process trains this run (step {status.step}); waiting for it")


def _seconds_before(run: Run) -> float:
    rows = run.read_timings()
    return float(rows[-1]["seconds"]) if rows else 0.0


def _compile_options(setting: Any) -> dict[str, Any] | None:
    return None if not setting else dict(setting) if isinstance(setting, Mapping) else {}
