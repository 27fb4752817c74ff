"""How to share the cores of this machine: one run with all threads, or one run a core with one thread?

    python -m repro.train.throughput scale=quick

Starts each way as real processes, lets them train on random tokens for a few seconds, and prints tokens per
second in total; writes ``results/<scale>/throughput.csv``. The answer is the default of a sweep
(`repro.train.resources`). Nothing else should run meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from repro.train import resources

SECONDS = 12.0


def _worker(overrides: list[str], start_at: float) -> None:
    """Train from `start_at` (unix seconds) for SECONDS and print tokens per second."""
    import torch
    from hydra import compose, initialize_config_dir

    from repro.train.paths import config_directory
    from repro.train.process import prepare
    from repro.train.step_time import Contestant
    from repro.train.sweep import register

    register()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    prepare()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", overrides=overrides)
    contestant = Contestant(config)
    contestant.step()
    time.sleep(max(0.0, start_at - time.time()))
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < SECONDS:
        contestant.step()
        steps += 1
    print(steps * config.budget.batch_size * config.budget.context / elapsed)


def total_rate(overrides: list[str], processes: int, threads: int) -> float:
    """Tokens per second of `processes` runs of `threads` threads each, together."""
    start_at = str(time.time() + 12 + 3 * processes)
    environment = {**os.environ, **{name: str(threads) for name in resources.THREAD_VARIABLES}}
    command = [sys.executable, "-m", "repro.train.throughput", "--worker", start_at, *overrides]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return sum(float(process.communicate()[0]) for process in running)


def main(arguments: list[str]) -> int:
    """Measure the sensible ways of sharing the cores; the exit code."""
    if arguments[:1] == ["--worker"]:
        _worker(arguments[2:], float(arguments[1]))
        return 0
    import pandas as pd
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from repro.errors import ConfigError
    from repro.train import settings
    from repro.train.paths import config_directory, resolve_path
    from repro.train.refusal import one_line
    from repro.train.sweep import register

    register()
    try:
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            config = compose("train", overrides=arguments)
        settings.check(config)
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error, arguments)}", file=sys.stderr)
        return 2
    cores = resources.cores()
    ways = [(1, cores), (cores, 1), (1, 1)] if cores > 1 else [(1, 1)]
    rows = [(p, t, round(total_rate(arguments, p, t))) for p, t in ways]
    table = pd.DataFrame(rows, columns=["processes", "threads_each", "tokens_per_second_total"])
    path = resolve_path(config, config.paths.results) / config.scale / "throughput.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False)
    print(table.to_string(index=False))
    print(f"throughput: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
