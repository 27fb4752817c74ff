"""One run from a resolved config to a finished directory: done once, resumed exactly, never overwritten."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from repro.data.batches import ValidationWindows
from repro.data.prepare import Prepared, prepare
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.runs import DamagedRecord, Run, run_directory
from repro.train import settings
from repro.train.paths import resolve_path
from repro.train.schedule import build_schedule

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
    build_schedule(OmegaConf.to_container(config.schedule, resolve=True))  # type: ignore[arg-type]
    build_decoder(config, device="meta")
    config, prepared = with_data(config, say)
    root = resolve_path(config, config.paths.runs)
    if not run_directory(config, root).exists():
        settings.check_device(config)
    elif not config.runtime.force and (cached := _cached(Run.open(config, root))) is not None:
        return cached
    from repro.train import training  # here: Lightning takes seconds to import, and a cached run needs none

    parts = training.assemble(config, prepared)
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
            status, message = training.train(config, parts, run, say, begin)
            return Outcome(status, run.directory, message)
        except (ConfigError, DataError) as error:
            _note_failure(run, str(error))
            raise
        except KeyboardInterrupt as error:
            _note_failure(run, str(error) or "interrupted")
            raise
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            message = training.reason(error)
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


def _note_failure(run: Run, message: str) -> None:
    with suppress(DataError):  # the disk may be what failed; the first error is the one to tell
        run.set_status("failed", message=message)


def _say_waiting(say: Say, status: Any) -> None:
    say(f"another process trains this run (step {status.step}); waiting for it")
