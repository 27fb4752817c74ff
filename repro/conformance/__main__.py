"""`python -m repro.conformance`: run every implementation and write the table.

    python -m repro.conformance install        make .venv-peers and install the peers into it
    python -m repro.conformance                all; writes results/published/conformance.{csv,md}
    python -m repro.conformance --only fla     those with this in their name; prints, writes nothing

Exit code 1 where an implementation of this suite fails a case; peers never decide it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from repro.conformance import adapters, compare, install, run, table
from repro.conformance.compare import Verdict
from repro.conformance.run import Outcome
from repro.runs.meta import host_description


def machine() -> str:
    host = host_description()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton"))
    return f"{host['cpu']}, {host['usable_cores']} cores, {host['os']}, Python {host['python']}, {versions}"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m repro.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("action", nargs="?", choices=("run", "install"), default="run")
    parser.add_argument("--only", default="", help="run implementations with this in their name, print only")
    parser.add_argument(
        "--peers", type=Path, default=run.ROOT / ".venv-peers", help="environment of the peers"
    )
    parser.add_argument("--out", type=Path, default=run.ROOT / "results" / "published")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one implementation")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    asked = arguments(argv)
    if asked.action == "install":
        for pin in install.install(asked.peers):
            print(f"not to be had here: {pin}")
        return 0
    python = install.python_of(asked.peers)
    peers = str(python) if python.exists() else sys.executable
    results = []
    for module, adapter in run.adapters(adapters.MODULES):
        if asked.only not in adapter.name:
            continue
        python_of = sys.executable if adapter.distribution == table.OURS else peers
        outcome = run.run(module, adapter, python_of, asked.timeout)
        results.append((outcome, compare.judge(outcome)))
        print(table.summary(results[-1]), flush=True)
    if not asked.only:
        table.write(results, asked.out, machine(), "make conformance")
        print(f"\nwritten: {asked.out.name}/conformance.md and conformance.csv")
    return int(any(wrong(*result) for result in results if result[0].adapter.distribution == table.OURS))


def wrong(outcome: Outcome, verdicts: Sequence[Verdict]) -> bool:
    """Whether one of ours fails a case, or stops for another reason than a package that is not installed."""
    if outcome.stopped.startswith("not installed"):
        return False
    return bool(outcome.stopped) or any(v.status in ("fail", "raised") for v in verdicts)


if __name__ == "__main__":
    sys.exit(main())
