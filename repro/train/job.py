"""One job of Hydra: train a composed config and say what became of it (runs in workers too)."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from functools import partial

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from repro.errors import ConfigError, DataError
from repro.runs.places import shown
from repro.train import resources, sweep
from repro.train.execute import execute
from repro.train.process import use_threads

#: of the last job of this process: 0 a result (diverged included), 1 a failed run, 2 a refused setting
exit_code = 0


def run(config: DictConfig) -> None:
    """Train one config and tell what became of it: in one line, by `exit_code`, and in a sweep's ledger.

    Nothing but an interruption is raised: Hydra would add lines of its own, and end a sweep.
    """
    global exit_code
    swept = os.environ.get(sweep.LEDGER) is not None
    name = f"{config.arm.get('name')} seed {config.seed}"
    say = partial(_say, f"{_place()}{name}" if swept else name)
    try:
        use_threads(config.runtime.threads)
        slot = resources.worker_slot() if os.environ.get(resources.SLOTS) else contextlib.nullcontext()
        with slot:
            outcome = execute(_grouped(config), say)
    except (ConfigError, DataError) as error:
        status, message, exit_code = "refused", str(error), 2
        if swept:
            say(f"refused: {error}")
        else:
            print(f"error: {error}", file=sys.stderr, flush=True)
    except Exception as error:  # before a run has a status to tell it by
        traceback.print_exc(file=sys.stderr)
        status, message, exit_code = "failed", f"{type(error).__name__}: {error}", 1
        say(f"failed: {message}")
    else:
        status, message = "cached" if outcome.cached else outcome.status, outcome.message
        exit_code = int(outcome.status == "failed")
        note = "already there" if outcome.cached else message
        say(f"{outcome.status}: {note} | {shown(outcome.directory)}")
    sweep.note({"name": name, "status": status, "message": message})


def _grouped(config: DictConfig) -> DictConfig:
    """The config with the experiment of the command as W&B group, unless one is set."""
    experiment = HydraConfig.get().runtime.choices.get("experiment")
    if experiment not in (None, "null") and config.logger.get("group") is None:
        with open_dict(config):
            config.logger.group = str(experiment)
    return config


def _place() -> str:
    """ "[ 3/12] ": which job of how many."""
    total, number = os.environ.get(sweep.JOBS, "?"), HydraConfig.get().job.num + 1
    return f"[{number:>{len(total)}}/{total}] "


def _say(prefix: str, text: str) -> None:
    print(f"{prefix} | {text}", flush=True)
