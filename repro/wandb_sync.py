"""``python -m repro.wandb_sync``: send what was mirrored offline under runs/ to W&B.

Runs that are still training are left for later: a file that was sent is not sent again. A run that was
resumed has several offline files under one id, which W&B joins in the order they were started. Exit code 2
and one line without a login.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.errors import DataError
from repro.runs.places import project_root, shown
from repro.runs.table import load_runs
from repro.wandb_account import require_login

OFFLINE = "offline-run-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.wandb_sync",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = project_root() / "runs"
    parser.add_argument("--runs", type=Path, default=place, help=f"default: {shown(place)}")
    args = parser.parse_args(arguments)
    try:
        return _sync(args.runs)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _sync(runs: Path) -> int:
    waiting, training = offline_files(runs)
    if training:
        print(f"left for later, still training: {', '.join(training)}")
    if not waiting:
        print(f"nothing to send: no offline run in {shown(runs / '.wandb')}")
        return 0
    require_login()
    command = [sys.executable, "-m", "wandb", "sync", *map(str, waiting)]
    return 1 if subprocess.run(command, check=False).returncode else 0


def offline_files(runs: Path) -> tuple[list[Path], list[str]]:
    """Directories of offline runs not sent yet, by start, and the ids of runs that still train."""
    states = load_runs(runs)
    busy = set(states.loc[states["status"] == "running", "run_id"]) if len(states) else set()
    waiting, training = [], []
    for path in sorted((runs / ".wandb").glob(f"**/{OFFLINE}*"), key=lambda path: path.name):
        if any(path.glob("*.wandb.synced")) or not path.is_dir():
            continue
        run_id = path.name.removeprefix(OFFLINE).partition("-")[2]
        if run_id in busy:
            training.append(run_id)
        else:
            waiting.append(path)
    return waiting, sorted(set(training))


if __name__ == "__main__":
    sys.exit(main())
