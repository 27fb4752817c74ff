"""``python -m repro.bench steps``: time and peak memory of training steps, written to ``results/bench/``.

    --only SWEEP    standard, depth, width or compiled (may be repeated; default: all)
    --rounds N      interleaved rounds per race (default 9)
    --noisy         measure although other processes run, and keep what was not quiet
    --results DIR   default: results/
    key=value       Hydra overrides for all entrants, as runtime.threads=1

Exit code 2 and one line for bad input, 1 where the machine was too busy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch: the profiler counts memory, silently

import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from repro.bench import entrants, steps
from repro.errors import ConfigError, DataError
from repro.runs.places import project_root, shown
from repro.train import resources
from repro.train.paths import config_directory
from repro.train.process import prepare
from repro.train.refusal import one_line
from repro.train.sweep import register


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the table and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["steps"])
    parser.add_argument("--only", action="append", choices=entrants.SWEEPS)
    parser.add_argument("--rounds", type=int, default=steps.ROUNDS)
    parser.add_argument("--noisy", action="store_true")
    parser.add_argument("--results", type=Path, default=project_root() / "results")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args(arguments)
    path = args.results / "bench" / "steps.csv"
    register()
    prepare()
    try:
        if args.rounds < 1:
            raise ConfigError("--rounds", args.rounds, "a whole number of at least 1")
        with initialize_config_dir(str(config_directory()), version_base="1.3"):
            threads = compose("train", overrides=args.overrides).runtime.threads
            torch.set_num_threads(min(2, resources.cores()) if threads == "auto" else int(threads))
            plan = entrants.planned(args.only or entrants.SWEEPS)
            quiet = steps.run(
                plan, path, overrides=args.overrides, rounds=args.rounds, noisy=args.noisy, say=_say
            )
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {one_line(error, args.overrides)}", file=sys.stderr)
        return 2
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"step bench: {shown(path)}" + ("" if quiet else "; some of it is not quiet: run again"))
    return 0 if quiet or args.noisy else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
