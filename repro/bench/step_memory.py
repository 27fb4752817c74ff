"""Peak memory of a training step of each arm beside PreNorm's, counted by the allocator.

    python -m repro.bench.step_memory experiment=tradeoff scale=quick

One step (forward, backward, clipping, optimizer) of each arm at the scale's model and batch, after one that
makes the optimizer's state. Nothing is timed, so other work may run beside it: the count of allocations does
not depend on it. Writes ``results/<scale>/step_memory.csv``; arms measured with the same code and settings
are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from repro.bench.memory import peak_bytes, resident_bytes
from repro.errors import ConfigError
from repro.runs.atomic import write_bytes
from repro.train import settings, step_time
from repro.train.paths import config_directory, resolve_path
from repro.train.process import prepare, use_threads
from repro.train.refusal import one_line
from repro.train.sweep import register

COLUMNS = ["arm", "peak_bytes", "resident_bytes", "ratio"]


def measure(config: DictConfig) -> tuple[int, int]:
    """Peak bytes of a step with weights and optimizer state, and those of weights and state alone."""
    contestant = step_time.Contestant(config)
    contestant.step()
    resident = resident_bytes(contestant.decoder, contestant.optimizer)
    return resident + peak_bytes(contestant.step, contestant.device), resident


def main(overrides: list[str]) -> int:
    """Measure the arms of these overrides and write the table; the exit code."""
    register()
    prepare()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            arms = step_time.swept_arms(overrides)
            arms = [step_time.BASELINE, *(arm for arm in arms if arm != step_time.BASELINE)]
            plain = [o for o in overrides if not o.startswith("arm=")]
            configs = {arm: compose("train", overrides=[*plain, f"arm={arm}"]) for arm in arms}
        for config in configs.values():
            settings.check(config)
            settings.check_device(config)
        first = configs[step_time.BASELINE]
        use_threads(first.runtime.threads)
        path = resolve_path(first, first.paths.results) / first.scale / "step_memory.csv"
        stamp = str(step_time.measured_under(first)["setting"])
        kept = _kept(path, stamp)
        measured = {arm: kept.get(arm) or measure(config) for arm, config in configs.items()}
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error, overrides)}", file=sys.stderr)
        return 2
    measured |= {arm: found for arm, found in kept.items() if arm not in measured}
    reference = measured[step_time.BASELINE][0]
    rows = [(arm, peak, resident, round(peak / reference, 4)) for arm, (peak, resident) in measured.items()]
    table = pd.DataFrame(rows, columns=COLUMNS).assign(
        device=first.trainer.accelerator,
        precision=first.precision,
        torch=torch.__version__,
        batch=first.budget.batch_size,
        context=first.budget.context,
        setting=stamp,
    )
    write_bytes(path, table.to_csv(index=False).encode())
    print(table[COLUMNS].to_string(index=False))
    print(f"step memory: {path}")
    return 0


def _kept(path: Path, stamp: str) -> dict[str, tuple[int, int]]:
    """Arms already measured under this stamp."""
    if not path.exists():
        return {}
    table = pd.read_csv(path)
    if not {*COLUMNS, "setting"} <= set(table):
        return {}
    same = table[table["setting"] == stamp]
    values = zip(same["arm"], same["peak_bytes"], same["resident_bytes"], strict=True)
    return {str(arm): (int(peak), int(resident)) for arm, peak, resident in values}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
