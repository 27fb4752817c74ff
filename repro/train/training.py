"""The training of one run: its parts, and the way from its last checkpoint to its results (Lightning)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from repro.data.batches import ValidationWindows
from repro.data.module import TokenData
from repro.data.prepare import Prepared
from repro.data.shards import Shards
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.lit import LitDecoder
from repro.runs import Run
from repro.train import checkpoints
from repro.train.callbacks import Recorder
from repro.train.mirror import Mirror
from repro.train.optim import build_optimizer
from repro.train.paths import resolve_path
from repro.train.process import keep_compiled
from repro.train.results import account, subset_row, write_meta, write_results
from repro.train.schedule import Schedule, build_schedule
from repro.train.trainer import build_trainer, diverged_step, fit, reason

__all__ = ["Parts", "assemble", "reason", "train"]

Say = Callable[[str], None]
Begin = Callable[[Run, Decoder, ValidationWindows], None]


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


def assemble(config: DictConfig, prepared: Prepared) -> Parts:
    """The parts of a run on a prepared corpus; a ConfigError names what does not fit."""
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
    return Parts(
        prepared,
        data,
        ValidationWindows(shards, context, subset, batch_size=batch_size),
        ValidationWindows(shards, context, None, batch_size=batch_size),
        build_schedule(OmegaConf.to_container(config.schedule, resolve=True)),  # type: ignore[arg-type]
        budget.tokens // (batch_size * context),
    )


def train(config: DictConfig, parts: Parts, run: Run, say: Say, begin: Begin | None) -> tuple[str, str]:
    """Train an opened run from its last checkpoint to its end: (``done`` or ``diverged``, what to say).

    Any other failure is raised, with the run as its last checkpoint left it.
    """
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
        return "diverged", f"loss not finite at step {step}"
    finally:
        mirror.finish()
    checkpoints.confirm(run)
    run.set_status("done", step=parts.steps)
    return "done", f"validation {final['val_loss']:.4f} nats/token"


def _seconds_before(run: Run) -> float:
    rows = run.read_timings()
    return float(rows[-1]["seconds"]) if rows else 0.0


def _compile_options(setting: Any) -> dict[str, Any] | None:
    return None if not setting else dict(setting) if isinstance(setting, Mapping) else {}
