"""The C of this folder as a library: compiled when first asked for, by the machine's C compiler, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("phases.c")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
#: OpenMP runtimes with threads of their own, which would compete with those of torch.
OTHER_RUNTIMES = ("libiomp", "libomp.")


class Unavailable(ValueError):
    """Why there is no library here, in one line."""


def folder() -> Path:
    """Where compiled libraries are kept, for all projects of a user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnres-repro"


@cache
def load() -> ctypes.CDLL:
    """The library; Unavailable where it cannot be had."""
    try:
        return _load()
    except Unavailable:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # no home, no /proc, a disk that refuses, ...
        raise Unavailable(f"its library cannot be made or loaded ({error})") from error


@cache
def unavailable() -> str | None:
    """Why the library cannot be had here; None where it can."""
    try:
        load()
    except Unavailable as error:
        return str(error)
    return None


def _load() -> ctypes.CDLL:
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    compiler = shutil.which(command[0])
    if compiler is None:
        raise Unavailable("it needs a C compiler (cc, or the one that CC names), and none was found")
    if platform.system() != "Linux":
        raise Unavailable(f"it is for Linux, where torch and C share one OpenMP, not {platform.system()}")
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    if found := next((name for name in OTHER_RUNTIMES if name in loaded), None):
        raise Unavailable(f"torch computes with {found}, not with GNU's OpenMP")
    command = [compiler, *command[1:]]
    kept = _kept(command)
    if kept is None:  # a place that others may write, or nobody: for this process alone
        with tempfile.TemporaryDirectory(prefix="attnres-repro-") as place:
            return ctypes.CDLL(str(_make(command, Path(place) / "phases.so")))
    try:
        if kept.exists():
            return ctypes.CDLL(str(kept))
    except OSError:  # damaged, or of another system that shares this folder
        kept.unlink(missing_ok=True)
    return ctypes.CDLL(str(_make(command, kept)))


def _kept(command: list[str]) -> Path | None:
    """Path of the library of this source, compiler and processor; None where it cannot be kept safely."""
    version = subprocess.run([*command, "--version"], capture_output=True, check=False).stdout
    made_by = f"{command} {FLAGS} {platform.machine()} {_processor()}".encode()
    name = hashlib.sha256(SOURCE.read_bytes() + made_by + version).hexdigest()[:16]
    try:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = place.stat()
    except (OSError, RuntimeError):
        return None
    others = stat.S_IWGRP | stat.S_IWOTH
    if state.st_uid != os.getuid() or state.st_mode & others or not os.access(place, os.W_OK):
        return None
    return place / f"phases-{name}.so"


def _make(command: list[str], library: Path) -> Path:
    """Compile to that path, which then holds all of it or nothing, whoever else makes it meanwhile."""
    with tempfile.TemporaryDirectory(prefix=".making-", dir=library.parent) as place:
        made = Path(place) / "made.so"
        done = subprocess.run(
            [*command, *FLAGS, "-o", str(made), str(SOURCE), "-lm"], capture_output=True, check=False
        )
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").splitlines() or ["no message"]
            line = next((line for line in lines if "error" in line), lines[0])
            raise Unavailable(f"{command[0]} cannot compile it ({line.strip()})")
        os.replace(made, library)
    return library


def _processor() -> str:
    """What tells processors apart for which code is generated."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "".join(next((line for line in lines if line.startswith(key)), "") for key in wanted)
