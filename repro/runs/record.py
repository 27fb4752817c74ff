"""One run directory: the only hand-over from training to analysis.

config.yaml, status.json, meta.json, final.json, metrics.jsonl, timings.jsonl, *.npz, checkpoints/last.ckpt.

Small files are replaced atomically, metrics and timings are appended line by line. A record that cannot be
read is kept aside under another name, reported in one line and treated as absent. Writing is for the process
that holds the lock; reading is for anyone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.errors import ConfigError, DataError
from repro.runs import arrays as npz
from repro.runs import atomic, jsonl, plain, reading
from repro.runs.atomic import DamagedRecord, log
from repro.runs.identity import identity, recorded, run_directory, run_id
from repro.runs.lock import hold
from repro.runs.status import Status


class Run:
    """A run directory. `directory` is ``<root>/<scale>/<arm>/<run_id>``; see `Run.open`."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.config_path = self.directory / "config.yaml"
        self.status_path = self.directory / "status.json"
        self.metrics_path = self.directory / "metrics.jsonl"
        self.timings_path = self.directory / "timings.jsonl"
        self.checkpoint = self.directory / "checkpoints" / "last.ckpt"

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    @classmethod
    def open(cls, config: Mapping[str, Any], root: str | Path | None = None) -> Run:
        """The run of a resolved config, made if it does not exist yet; root defaults to `paths.runs`.

        A config.yaml that cannot be read is kept aside and written again. Raises DataError where the
        directory belongs to another config or cannot be written, ConfigError where no run can be named.
        """
        run = cls(run_directory(config, root))
        run._make_directory()
        try:
            found = identity(reading.read_config(run.config_path))
        except FileNotFoundError:
            found = None
        except (DamagedRecord, ConfigError) as error:
            run.keep_aside(run.config_path, str(error))
            found = None
        if found is None:
            atomic.write_bytes(run.config_path, reading.yaml_text(recorded(config)).encode("utf-8"))
        elif found != identity(config):
            other = run_id(reading.read_config(run.config_path))
            raise DataError(f"{run.directory}: holds the run of another config ({other}); move it away")
        return run

    @property
    def run_id(self) -> str:
        """The directory's name."""
        return self.directory.name

    @property
    def config(self) -> dict[str, Any]:
        """The recorded config as plain data; raises DataError where it is missing or damaged."""
        try:
            return reading.read_config(self.config_path)
        except FileNotFoundError:
            raise DataError(f"{self.config_path}: missing") from None

    # Status and lock

    @property
    def status(self) -> Status:
        """Where the run stands; a status.json that cannot be read is kept aside and counts as failed."""
        try:
            return reading.read_status(self.status_path)
        except FileNotFoundError:
            return Status()
        except DamagedRecord as error:
            self.keep_aside(self.status_path, str(error))
            failed = Status("failed", message="status.json was damaged")
            with suppress(DataError):  # a full disk is no reason not to answer
                self.write_json("status.json", failed.as_plain())
            return failed

    def set_status(self, state: str, *, step: int | None = None, message: str = "") -> Status:
        """Replaces status.json with the present time as heartbeat; without `step` the last one stays."""
        if step is None:
            try:
                step = reading.read_status(self.status_path).step
            except (FileNotFoundError, DataError):
                step = 0
        status = Status(state, int(step), time.time(), message)
        self.write_json("status.json", status.as_plain())
        return status

    @contextmanager
    def lock(
        self,
        *,
        blocking: bool = True,
        timeout: float | None = None,
        on_wait: Callable[[Status], object] | None = None,
    ) -> Iterator[None]:
        """Holds the run: of the processes that ask for one run id only one is inside at a time.

        on_wait: called once with the holder's status if the lock is not free at once.  timeout: seconds to
        wait (None: for ever).  Raises RunBusy where it stays taken. The lock dies with its process.
        """
        self._make_directory()
        with hold(self.directory, self._peek, blocking, timeout, on_wait):
            atomic.remove_temporaries(self.directory)
            yield

    # Rows

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Appends a row to metrics.jsonl; nothing in it depends on the clock (a rerun is bit-identical)."""
        jsonl.append_row(self.metrics_path, row)

    def append_timings(self, row: Mapping[str, Any]) -> None:
        """Appends a row to timings.jsonl: speeds and memory, whatever differs between two equal runs."""
        jsonl.append_row(self.timings_path, row)

    def read_metrics(self) -> list[dict[str, Any]]:
        """The whole rows of metrics.jsonl; raises DataError naming a damaged line."""
        return jsonl.read_rows(self.metrics_path)

    def read_timings(self) -> list[dict[str, Any]]:
        """The whole rows of timings.jsonl; raises DataError naming a damaged line."""
        return jsonl.read_rows(self.timings_path)

    # Whole records

    def write_json(self, name: str, value: Any) -> Path:
        """Atomically writes ``<name>.json`` (the suffix may be given)."""
        text = plain.encode(value, indent=2) + "\n"
        return atomic.write_bytes(self._path(name, ".json"), text.encode("utf-8"))

    def read_json(self, name: str) -> Any | None:
        """The value of ``<name>.json``; None where it is missing, or damaged and now kept aside."""
        return self._read_or_keep_aside(self._path(name, ".json"), reading.read_json)

    def write_arrays(self, name: str, **arrays: Any) -> Path:
        """Atomically writes ``<name>.npz``; equal arrays give equal bytes."""
        return npz.write_npz(self._path(name, ".npz"), arrays)

    def read_arrays(self, name: str) -> npz.Arrays | None:
        """The arrays of ``<name>.npz``; None where it is missing, or damaged and now kept aside."""
        return self._read_or_keep_aside(self._path(name, ".npz"), npz.read_npz)

    def append_snapshot(
        self, name: str, step: int, *, fixed: Mapping[str, Any] | None = None, **arrays: Any
    ) -> Path:
        """Adds what was measured at `step` to ``<name>.npz``: ``steps`` [K] and each array with K in front.

        fixed: arrays without that axis (labels, bucket edges), equal at every step.  The same step given
        twice is kept once, with the later values.  Raises ValueError for other names or shapes than before
        and DataError where the earlier snapshots cannot be read or the disk refuses.
        """
        path = self._path(name, ".npz")
        try:
            earlier = npz.read_npz(path)
        except FileNotFoundError:
            earlier = None
        return npz.write_npz(path, npz.add_snapshot(earlier, step, fixed or {}, arrays))

    # Resuming

    def counts(self) -> dict[str, int]:
        """Number of rows and snapshots per file, to be stored in a checkpoint and given to `cut_after`.

        Forces the metrics to disk, so that a checkpoint never knows of rows that a power cut can take away.
        """
        atomic.force_to_disk(self.metrics_path)
        snapshots = {path.name: len(found[npz.STEPS]) for path, found in self._snapshot_files()}
        return {self.metrics_path.name: jsonl.count_rows(self.metrics_path), **snapshots}

    def cut_after(self, step: int, counts: Mapping[str, int] | None = None) -> bool:
        """Brings the records back to how they were when a checkpoint at `step` was saved (-1: nothing).

        Drops rows and snapshots of later steps and half-written last lines. Returns True where the records
        fit the checkpoint. False where they are damaged, or fewer than `counts` says: then the checkpoint
        and all of them are kept aside, and training starts again from nothing.
        """
        try:
            left = {self.metrics_path.name: jsonl.cut_rows(self.metrics_path, step)}
            for path, found in self._snapshot_files():
                kept = npz.cut_snapshots(found, step)
                left[path.name] = 0 if kept is None else len(kept[npz.STEPS])
                if kept is None:
                    path.unlink()
                elif left[path.name] < len(found[npz.STEPS]):
                    npz.write_npz(path, kept)
            for name, expected in (counts or {}).items():
                if left.get(name, 0) < expected:
                    raise DamagedRecord(
                        f"{self.directory / name}: {left.get(name, 0)} of {expected} entries left"
                    )
        except DamagedRecord as error:
            log.warning("%s; this run starts again from nothing", error)
            # The checkpoint goes first: without it, whatever else remains is not continued.
            for path in (
                self.checkpoint,
                self.metrics_path,
                self.timings_path,
                *self.files("*.npz"),
            ):
                self.keep_aside(path, "does not fit the damaged records")
            return False
        try:
            jsonl.cut_rows(self.timings_path, step)
        except DamagedRecord as error:
            self.keep_aside(self.timings_path, str(error))
        return True

    def supersede(self) -> Path:
        """Moves everything a run has produced into ``superseded-<n>/`` beside its config: a rerun by force.

        Takes the lock, so it is not called while holding it. Returns the new directory.
        """
        with self.lock():
            number = 1
            while (aside := self.directory / f"superseded-{number}").exists():
                number += 1
            aside.mkdir()
            # Without a checkpoint there is nothing to go on with, without a status nothing to return: in this
            # order a process killed in between leaves a finished run or a new one.
            first = [self.checkpoint.parent, self.status_path]
            records = [p for kind in ("*.json", "*.jsonl", "*.npz") for p in self.files(kind)]
            for path in [*first, *records]:
                with suppress(FileNotFoundError):
                    path.rename(aside / path.name)
        return aside

    def replace_atomically(self, path: str | Path, writer: Callable[[Path], object]) -> Path:
        """`repro.runs.atomic.replace_atomically` (for checkpoints)."""
        return atomic.replace_atomically(path, writer)

    def keep_aside(self, path: str | Path, why: str = "cannot be read") -> Path | None:
        """Renames a damaged file to ``<name>.corrupt-<n>`` and reports it in one line."""
        return atomic.keep_aside(path, why)

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.not_written(self.directory, error) from error

    def _path(self, name: str, suffix: str) -> Path:
        return self.directory / (name if name.endswith(suffix) else name + suffix)

    def _peek(self) -> Status:
        try:
            return reading.read_status(self.status_path)
        except (FileNotFoundError, DataError):
            return Status()

    def _read_or_keep_aside(self, path: Path, reader: Callable[[Path], Any]) -> Any | None:
        try:
            return reader(path)
        except FileNotFoundError:
            return None
        except DamagedRecord as error:
            self.keep_aside(path, str(error))
            return None

    def files(self, kind: str) -> list[Path]:
        """Records by pattern, without what a killed process was still writing."""
        found = self.directory.glob(kind)
        return sorted(path for path in found if not path.name.startswith(atomic.TEMPORARY))

    def _snapshot_files(self) -> Iterator[tuple[Path, npz.Arrays]]:
        for path in self.files("*.npz"):
            found = npz.read_npz(path)
            if npz.is_snapshot_file(found):
                yield path, found
