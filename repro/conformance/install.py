"""An environment of their own for the peers, `.venv-peers`, which borrows torch and triton from this one.

What this interpreter has installed is visible in it, so every peer meets the torch and triton under test,
and the suite's own environment stays as it is. Peers are installed from exact pins without their
dependencies: no resolver can bring a second torch. One that cannot be had becomes a line of the table.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PINS = Path(__file__).with_name("peers.txt")


def pins() -> list[str]:
    lines = (line.partition("#")[0].strip() for line in PINS.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def install(folder: Path) -> list[str]:
    """Make the environment where it is missing and install what is pinned; returns what could not be had."""
    python = python_of(folder)
    if not python.exists():
        venv.create(folder, with_pip=True)
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (Path(site) / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--retries", "1"]
    done = subprocess.run([*pip, *pins()], stdout=sys.stderr, stderr=subprocess.DEVNULL)
    if done.returncode == 0:
        return []
    return [pin for pin in pins() if subprocess.run([*pip, pin], stdout=sys.stderr).returncode]
