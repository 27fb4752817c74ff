"""Run records: what training leaves and analysis reads (no torch on either side of this package)."""

from repro.runs.atomic import DamagedRecord, keep_aside, replace_atomically
from repro.runs.identity import SEMANTICS, identity, run_directory, run_id
from repro.runs.lock import RunBusy
from repro.runs.meta import command_line, git_state, host_description, library_versions, remember_command
from repro.runs.places import project_root
from repro.runs.record import Run
from repro.runs.status import Status
from repro.runs.table import (
    copy_records,
    load_arrays,
    load_metrics,
    load_runs,
    load_timings,
    load_val_losses,
)

__all__ = [
    "SEMANTICS",
    "DamagedRecord",
    "Run",
    "RunBusy",
    "Status",
    "command_line",
    "copy_records",
    "git_state",
    "host_description",
    "identity",
    "keep_aside",
    "library_versions",
    "load_arrays",
    "load_metrics",
    "load_runs",
    "load_timings",
    "load_val_losses",
    "project_root",
    "remember_command",
    "replace_atomically",
    "run_directory",
    "run_id",
]
