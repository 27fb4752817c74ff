"""Files that are either the earlier version or the new one, whatever happens in between.

A new version is written beside the old one, forced to disk and renamed over it. A process that is killed, or
a disk that is full, leaves the earlier version and at most a hidden temporary file.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from repro.errors import DataError

log = logging.getLogger("repro.runs")
TEMPORARY = ".tmp-"


class DamagedRecord(DataError):
    """A record exists but cannot be read: corrupt, half-written or foreign."""


def replace_atomically(path: str | Path, writer: Callable[[Path], object]) -> Path:
    """Calls ``writer(temporary path)`` and renames the result over `path`.

    The temporary file lies in the same directory and its name ends in that of `path`. Raises DataError where
    the file system refuses (no space, no permission), and passes on whatever the writer raises; in both cases
    the earlier file is untouched and the temporary one is removed.
    """
    path = Path(path)
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(temporary)
        _force_to_disk(temporary)
        os.replace(temporary, path)
        _force_to_disk(path.parent)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        with suppress(OSError):  # already renamed, or never made
            temporary.unlink(missing_ok=True)
    return path


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Atomically makes `data` the contents of `path`."""
    return replace_atomically(path, lambda temporary: temporary.write_bytes(data))


def append_line(path: str | Path, line: bytes) -> None:
    """Appends one line (without its newline) in a single write; a refused write leaves the file as it was.

    What a killed process left of a half-written last line is dropped first, with a report: the new line would
    otherwise be glued to it. Raises DataError where the file system refuses.
    """
    path = Path(path)
    line += b"\n"
    try:
        with open(path, "ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                if file.read(1) != b"\n":
                    size = _drop_half_line(path)
            try:
                written = file.write(line)
                if written != len(line):
                    file.write(line[written:])  # says why: the disk is full
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise not_written(path, error) from error


def read_bytes(path: str | Path) -> bytes:
    """The contents of a file; FileNotFoundError where there is none.

    A file system that refuses is a DataError and not damage: what it holds may be whole.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def force_to_disk(path: str | Path) -> None:
    """Waits until an appended file is on disk; a file that does not exist is fine."""
    with suppress(FileNotFoundError):
        _force_to_disk(Path(path))


def keep_aside(path: str | Path, why: str = "cannot be read") -> Path | None:
    """Renames a damaged file to ``<name>.corrupt-<n>``, says so in one line and returns the new path."""
    path = Path(path)
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.corrupt-{number}")):
        number += 1
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path}: cannot be moved aside ({error.strerror})") from error
    log.warning("%s: %s; kept aside as %s", path, why.removeprefix(f"{path}: "), aside.name)
    return aside


def remove_temporaries(directory: Path, older_than: float = 60.0) -> None:
    """Removes what killed writers left behind; younger files (seconds) may belong to a living one."""
    for entry in directory.rglob(f"{TEMPORARY}*"):
        with suppress(OSError):
            if time.time() - entry.stat().st_mtime > older_than:
                entry.unlink()


def not_written(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be written ({error.strerror or error}); the earlier record is intact, "
        "free space or choose another place (paths.runs, --results)"
    )


def _drop_half_line(path: Path) -> int:
    size = path.read_bytes().rfind(b"\n") + 1
    os.truncate(path, size)
    log.warning("%s: dropped a half-written last line", path)
    return size


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
