"""What meta.json says of the machine and the code: enough to interpret a speed or a last digit, and no more.

No host name, user name, path or token is recorded, and no environment variable but our own `COMMAND`.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from repro.runs.identity import SECRET_KEY

PACKAGES = (
    "torch",
    "triton",
    "lightning",
    "hydra-core",
    "omegaconf",
    "numpy",
    "tokenizers",
    "fla-core",
    "liger-kernel",
)
# Set by the process that started a sweep and inherited by its workers, whose own command says nothing.
COMMAND = "REPRO_COMMAND"
_PLACE = re.compile(r"(?<![\w.])[/~][^\s,=\]}'\"]*/[^\s,=\]}'\"]*")
_REPOSITORY = Path(__file__).resolve().parents[2]


def host_description() -> dict[str, Any]:
    """Processor, cores, memory (bytes), operating system, Python and the versions of installed libraries."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        memory = None
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Versions of the installed libraries that can change numbers or speeds (read, not imported)."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def git_state() -> dict[str, Any]:
    """Commit of this source tree and whether it differs from it; both None outside a checkout.

    Files under results/ do not count as a difference: runs write there.
    """
    top = _git("rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != _REPOSITORY:
        return {"sha": None, "dirty": None}
    changes = _git("status", "--porcelain", "--", ".", ":(exclude)results")
    return {"sha": _git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def command_line(arguments: Sequence[str] | None = None) -> str:
    """A command as it may be recorded: by default the remembered one, else the one that started this process.

    Of absolute and home paths only the last component is kept; logger settings and secrets are left out.
    """
    words = (os.environ.get(COMMAND, "").split() or sys.orig_argv) if arguments is None else arguments
    return " ".join(_PLACE.sub(_last_component, word) for word in words if not _is_private(word))


def remember_command(arguments: Sequence[str] | None = None) -> None:
    """Makes a command (by default the one that started this process) that of this process and its workers."""
    os.environ[COMMAND] = command_line(sys.orig_argv if arguments is None else arguments)


def _last_component(place: re.Match[str]) -> str:
    return place.group().rstrip("/").rpartition("/")[2]


def _is_private(word: str) -> bool:
    key = word.partition("=")[0].lstrip("+~")
    return "=" in word and (key.startswith("logger.") or bool(SECRET_KEY.fullmatch(key.rpartition(".")[2])))


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except (OSError, UnicodeDecodeError):
        pass
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    # A hook sets GIT_DIR and the like for another repository; the lock-free form never writes the index.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(_REPOSITORY), *arguments],
            capture_output=True,
            text=True,
            timeout=20,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
