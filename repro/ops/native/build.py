"""The C of this folder as a library: compiled when first asked for, by the machine's C compiler, and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
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
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise Unavailable("it needs a C compiler (cc, or the one that CC names), and none was found")
    if platform.system() != "Linux":
        raise Unavailable(f"it is for Linux, where torch and C share one OpenMP, not {platform.system()}")
    loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    if found := next((name for name in OTHER_RUNTIMES if name in loaded), None):
        raise Unavailable(f"torch computes with {found}, not with GNU's OpenMP")
    try:
        return ctypes.CDLL(str(_compiled(compiler)))
    except OSError as error:
        raise Unavailable(f"its library cannot be made or loaded ({error})") from error


@cache
def unavailable() -> str | None:
    """Why the library cannot be had here; None where it can."""
    try:
        load()
    except Unavailable as error:
        return str(error)
    return None


def _compiled(compiler: str) -> Path:
    """Path of the library of this source, compiler and processor."""
    source = SOURCE.read_bytes()
    made_by = f"{os.path.realpath(compiler)} {FLAGS} {platform.machine()} {_processor()}"
    name = hashlib.sha256(source + made_by.encode()).hexdigest()[:16]
    kept = folder() / f"phases-{name}.so"
    if kept.exists():
        return kept
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=".making-", dir=kept.parent)
    except OSError:  # a home that cannot be written: for this process alone
        place = tempfile.mkdtemp(prefix="attnres-repro-")
        kept = Path(place) / kept.name
    made = Path(place) / "made.so"
    command = [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(place)
        line = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
        raise Unavailable(f"{compiler} cannot compile it ({line.strip()})")
    os.replace(made, kept)  # whole or not at all, whoever else makes it at the same time
    if Path(place) != kept.parent:
        shutil.rmtree(place)
    return kept


def _processor() -> str:
    """What tells processors apart for which code is generated."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "".join(next((line for line in lines if line.startswith(key)), "") for key in wanted)
