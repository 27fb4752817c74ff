"""`make gpu-check`: correctness, speed and training steps on this machine's GPU, in at most five minutes.

    python -m repro.bench.gpu [--seconds 300] [--out FILE] [--dry-run]

Copy bandwidth and matrix rates of the card first; then every Triton operation against float64; every kernel
at the sizes of large models, beside what the card could do; a CUDA graph, training steps by arm, a compiled
step, and the reads of published kernels where they are installed. What does not fit into the time is listed.
Writes results/gpu/check.csv, which belongs to one card, and prints one table.

Exit code 1 where a bound does not hold, could not be looked at, or a case broke; 2 where there is no GPU, or
the file is another card's. --dry-run walks the same way in Triton's interpreter, with tiny sizes on a CPU.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch: the profiler counts memory, silently

import torch

from analysis.tables import to_csv, to_text
from repro.bench import gpu_table
from repro.bench.supervised import run_apart, run_here
from repro.runs import git_state
from repro.runs.atomic import write_bytes
from repro.runs.places import project_root, shown

#: Seconds kept for writing, and for ending the child.
_RESERVE = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, write, print; the exit code."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(
        prog="python -m repro.bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="time for everything (default 300)")
    parser.add_argument("--out", type=Path, help="default: results/gpu/check.csv; none in a dry run")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on a CPU, in the interpreter")
    options = parser.parse_args(arguments)
    path: Path | None = options.out
    if importlib.util.find_spec("triton") is None:
        return _refuse("the package triton is not installed")
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if options.dry_run:
        if not interpreted:  # read when kernels are defined: too late in this process
            command = [
                sys.executable,
                "-m",
                "repro.bench.gpu",
                *(sys.argv[1:] if arguments is None else arguments),
            ]
            os.execve(sys.executable, command, {**os.environ, "TRITON_INTERPRET": "1"})
        torch.set_num_threads(1)
        card = "none (dry run)"
    else:
        if not torch.cuda.is_available():
            return _refuse(
                f"torch {torch.__version__} finds no GPU here (--dry-run walks through the check on a CPU)"
            )
        if interpreted:
            return _refuse("unset TRITON_INTERPRET: interpreted kernels do not run on a GPU")
        card = torch.cuda.get_device_name()
        path = path or project_root() / "results" / "gpu" / "check.csv"
        other = _card_of(path)
        if options.out is None and other not in (None, card):
            return _refuse(f"{shown(path)} is of another card ({other}): --out names a file for {card}")

    from repro.bench.gpu_plan import DRY, Plan, cases  # only here: needs triton

    plan = cases(DRY if options.dry_run else Plan())
    print(f"{card}: {len(plan)} cases in at most {options.seconds:.0f} s", flush=True)
    run = run_here if options.dry_run else run_apart
    outcomes = run(plan, started + options.seconds - _RESERVE, _say)
    rows = gpu_table.records(outcomes, {"gpu": card, **_marks()})
    print(*map(to_text, gpu_table.tables(rows)), sep="\n")
    if path is not None:
        print(shown(write_bytes(path, to_csv(rows).encode())))
    problems = gpu_table.problems(rows)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"gpu-check: {time.monotonic() - started:.0f} s, {len(problems)} errors")
    return 1 if problems else 0


def _card_of(path: Path) -> str | None:
    """The card that a file was measured on; None where there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first: dict[str, str] = next(csv.DictReader(file), {})
    except FileNotFoundError:
        return None
    return first.get("gpu", "unknown")


def _marks() -> dict[str, Any]:
    import triton

    git = git_state()
    return {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "git_sha": git["sha"],
        "git_dirty": git["dirty"],
    }


def _refuse(reason: str) -> int:
    print(f"error: gpu-check: {reason}", file=sys.stderr)
    return 2


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
