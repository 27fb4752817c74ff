"""Time and peak memory of forward, forward+backward and whole training step of each arm, beside PreNorm's.

    python -m repro.bench steps [--only standard|depth|width|compiled] [--rounds 9] [key=value ...]

All entrants of a race live in this process and take turns (`repro.bench.racing`). Every finished race is
written at once to ``results/bench/steps.csv``, one row per entrant and quantity. A race that was already
measured on a quiet machine with the same code and settings is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from omegaconf import DictConfig

from repro.bench import entrants, machine, memory, racing, table
from repro.bench.entrants import Entrant, Setting
from repro.errors import DataError
from repro.runs import git_state, host_description, identity
from repro.runs.atomic import write_bytes
from repro.train import step_time

ROUNDS = 9
_DECIDES = ("model", "arm", "data", "optim", "budget", "precision", "semantics")
_OURS = (entrants, memory, racing)


def measure(setting: Setting, configs: Mapping[Entrant, DictConfig], rounds: int = ROUNDS) -> pd.DataFrame:
    """One row per entrant and quantity of one race, with how quiet the machine was."""
    load_before = machine.load_average()
    if setting.compiled:
        torch._dynamo.reset()
    racers = {e.name: racing.Racer(config, setting.compiled) for e, config in configs.items()}
    by_name = {e.name: e for e in configs}
    baseline, first = next(iter(racers)), next(iter(configs.values()))
    racing.check_agreement(
        {name: racer.loss() for name, racer in racers.items()},
        {name: entrant.arm for name, entrant in by_name.items()},
        1e-2 if "16" in first.precision else 1e-4,
    )
    for racer in racers.values():  # allocations, compilation and lazy set-up
        racer.turn()
    watch = machine.Watch()
    seconds = racing.race(racers, rounds)
    others = watch.others()
    spread = racing.spread(seconds["step"][baseline])

    resident = {name: memory.resident_bytes(r.decoder, r.optimizer) for name, r in racers.items()}
    beyond = {name: memory.peak_bytes(racer.step, racer.device) for name, racer in racers.items()}
    mebibytes = {
        "memory": {name: (resident[name] + beyond[name]) / memory.MIB for name in racers},
        "memory_beyond_state": {name: beyond[name] / memory.MIB for name in racers},
    }
    rows = []
    for entrant, config in configs.items():
        mixer = racers[entrant.name].decoder.mixer
        counts = [mixer.num_sources(l) for l in range(mixer.num_sublayers + 1)]
        who = {
            "sweep": setting.sweep,
            "blocks": setting.blocks,
            "width": setting.width,
            "mode": setting.mode,
            "arm": entrant.arm,
            "label": config.arm.label,
            "execution": entrant.execution,
            "backend": entrant.backend,
            "sources_mean": round(float(np.mean(counts)), 3),
        }
        for quantity, by_entrant in seconds.items():
            times = racing.paired(by_entrant[entrant.name], by_entrant[baseline])
            rows.append({**who, "quantity": quantity, "unit": "ms", **times})
        for quantity, sizes in mebibytes.items():
            own, base = sizes[entrant.name], sizes[baseline]
            size = {"median": own, "ratio_median": own / base, "extra_median": own - base}
            rows.append({**who, "quantity": quantity, "unit": "MiB", **size})
    return (
        pd.DataFrame(rows)
        .round(4)
        .assign(
            quiet=machine.is_quiet(others, spread),
            prenorm_spread=round(spread, 4),
            other_cores=others,
            load_before=load_before,
            load_after=machine.load_average(),
        )
    )


def stamp(configs: Mapping[Entrant, DictConfig], rounds: int) -> dict[str, Any]:
    """What a race depends on: settings and code (as digests), machine, threads, versions, rounds."""
    first = next(iter(configs.values()))
    decides = {
        entrant.name: {key: value for key, value in identity(config).items() if key in _DECIDES}
        for entrant, config in configs.items()
    }
    text = json.dumps(decides, sort_keys=True, default=str)
    device = "cpu" if first.trainer.accelerator == "cpu" else torch.cuda.get_device_name()
    return {
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "device": device,
        "precision": first.precision,
        "batch": first.budget.batch_size,
        "context": first.budget.context,
        "cpu": host_description()["cpu"],
        "torch": torch.__version__,
        "setting": hashlib.sha256(text.encode()).hexdigest()[:12],
        "code": _code_digest(),
    }


def _code_digest() -> str:
    digest = hashlib.sha256(step_time.source_digest().encode())
    for module in _OURS:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:12]


def run(
    settings: Sequence[Setting],
    path: Path,
    *,
    overrides: Sequence[str] = (),
    rounds: int = ROUNDS,
    noisy: bool = False,
    say: Callable[[str], None] = print,
) -> bool:
    """Measure what `path` lacks, race by race; whether all of it is quiet. Needs an initialised Hydra."""
    quiet = True
    for setting in settings:
        configs = {e: entrants.configuration(setting, e, overrides) for e in setting.entrants}
        marks = stamp(configs, rounds)
        earlier = table.read(path)
        if table.kept(earlier, setting, marks, noisy):
            say(f"{setting.title}: already measured")
            continue
        others = None if noisy else machine.others_now()
        if others is not None and others > 2 * machine.OTHERS_LIMIT:
            raise DataError(
                f"{setting.title}: other processes keep {others:.2f} cores busy; "
                "run again when nothing else runs, or with --noisy"
            )
        say(f"{setting.title}: {len(configs)} entrants, {rounds} interleaved rounds")
        git = git_state()
        rows = measure(setting, configs, rounds).assign(**marks, git_sha=git["sha"], git_dirty=git["dirty"])
        joined = table.replace_race(earlier, setting, rows)
        write_bytes(path, joined.to_csv(index=False, lineterminator="\n").encode())
        quiet &= bool(rows["quiet"].all())
        say(table.summary(rows))
    return quiet
