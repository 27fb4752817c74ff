"""What a multirun adds to a run: a plan that may not be empty, a number for every job, and one verdict.

Hydra's basic sweeper launches zero jobs without complaint, and reports only the first of several failures.
Here every job appends a line to a ledger named by an environment variable (inherited by joblib and
submitit workers), and the parent turns the ledger into a summary and an exit code.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra_plugins.hydra_joblib_launcher.config import JobLibLauncherConf
from omegaconf import II, OmegaConf

from repro.errors import ConfigError
from repro.train import by_scale, resources
from repro.train.paths import under_root

# Scanning for plugins executes Hydra's plugin modules anew: only after it is their class the one to inherit.
Plugins.instance()
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # noqa: E402

PLUGIN_MODULE = "hydra_plugins.attnres_repro"
JOBS, LEDGER = "REPRO_SWEEP_JOBS", "REPRO_SWEEP_LEDGER"


class PlannedSweeper(BasicSweeper):
    """Hydra's basic sweeper, but an empty plan is an error and each job knows the plan and the ledger."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        _open_ledger(under_root(self.config.paths.root, self.config.paths.runs) / ".sweeps")
        return super().sweep(arguments)

    @staticmethod
    def split_arguments(overrides: list[Override], max_batch_size: int | None) -> Any:
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        jobs = sum(len(batch) for batch in batches)
        if jobs == 0:
            swept = ", ".join(o.get_key_element() for o in overrides if o.is_sweep_override())
            raise ConfigError(
                swept or "sweep", "(no match)", "the sweep is empty: no value matches, no job to run"
            )
        os.environ[JOBS] = str(jobs)
        return batches


# At import, since a worker composes its config after importing the job and nothing else of ours.
OmegaConf.register_new_resolver("workers", resources.workers, replace=True)
by_scale.register()
OmegaConf.register_new_resolver("under_root", lambda root, path: str(under_root(root, path)), replace=True)


def register() -> None:
    """Make the sweeper and our joblib defaults known to Hydra."""
    # Hydra accepts a plugin only from this package, and imports it by name: conf/hydra/sweeper/planned.yaml.
    PlannedSweeper.__module__ = PLUGIN_MODULE
    sys.modules[PLUGIN_MODULE] = sys.modules[__name__]
    Plugins.instance().register(PlannedSweeper)
    # The plugin's own entry with our defaults: one worker a core, and one arm at a time, so that a short arm
    # never queues behind a long one. A YAML of the same name would make Hydra warn at every job.
    launcher = JobLibLauncherConf(n_jobs=II("workers:"), batch_size="1", verbose=0)  # type: ignore[arg-type]
    ConfigStore.instance().store(
        group="hydra/launcher", name="joblib", node=launcher, provider="attnres-repro"
    )


def _open_ledger(directory: Path) -> None:
    """Name a new, empty ledger for this sweep and its workers (beside the runs, which workers share)."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"sweep-{socket.gethostname()}-{os.getpid()}.jsonl"
    path.write_text("")
    os.environ[LEDGER] = str(path)


def note(entry: dict[str, Any]) -> None:
    """Add one finished job to the ledger (a single short write, so that workers never interleave)."""
    if path := os.environ.get(LEDGER):
        with open(path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")


def close_ledger(report: bool = True) -> int:
    """Print what became of the sweep, if there was one, and return its exit code.

    0 if every job ended in a result, 1 if one failed, 2 if all were refused (nothing can come of repeating).
    report=False only tidies up, for a sweep that was refused or interrupted as a whole.
    """
    where, planned = os.environ.pop(LEDGER, None), int(os.environ.pop(JOBS, 0))
    if where is None:
        return 0
    entries = [json.loads(line) for line in Path(where).read_text().splitlines()]
    Path(where).unlink()
    if not report:
        return 0
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry["status"]] = counts.get(entry["status"], 0) + 1
    told = ", ".join(f"{n} {status}" for status, n in sorted(counts.items())) or "none ended"
    print(f"sweep: {planned} runs: {told}", flush=True)
    bad = [entry for entry in entries if entry["status"] in ("failed", "refused")]
    by_reason: dict[str, list[str]] = {}
    for entry in bad:
        by_reason.setdefault(f"{entry['status']}: {{}}: {entry['message']}", []).append(entry["name"])
    for line, names in by_reason.items():
        print(line.replace("{}", ", ".join(names), 1), flush=True)
    if lost := planned - len(entries):
        print(
            f"failed: {lost} runs ended without a word (killed?); start the same command again to go on",
            flush=True,
        )
    if entries and all(entry["status"] == "refused" for entry in entries):
        return 2
    return 1 if bad or lost else 0
