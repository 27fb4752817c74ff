"""Entry of every training run and sweep: ``python -m repro.train arm=block_s4 scale=quick seed=1``.

It only assembles: Hydra composes the config, `repro.train.job` does the work, and this file turns what can
go wrong into one line and an exit code (0 a result, 1 a failed run, 2 a setting that cannot be used).
"""

from __future__ import annotations

import os
import sys

from repro.train import resources


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code; also callable from other programs."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    multirun = "-m" in arguments or "--multirun" in arguments
    launchers = [a.partition("=")[2] for a in arguments if a.startswith("hydra/launcher=")]
    if multirun and any(launcher != "basic" for launcher in launchers):
        resources.limit_threads(1)  # inherited by the workers; must come before torch is imported
    if any(launcher.endswith("_local") for launcher in launchers):
        os.environ[resources.SLOTS] = "1"
    return _run(arguments, multirun)


def _run(arguments: list[str], multirun: bool) -> int:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from repro.errors import ConfigError, DataError
    from repro.train import job, sweep
    from repro.train.paths import config_directory

    sweep.register()
    ledger = sweep.open_ledger() if multirun else None
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["repro.train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, to be told in one line
    code, job.exit_code = 0, 0
    try:
        hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")(job.run)()
        code = job.exit_code
    except (ConfigError, DataError) as error:
        code = _refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        code = _refuse(_one_line(error))
    except KeyboardInterrupt:
        print("interrupted; start the same command again to go on", file=sys.stderr)
        code = 130
    finally:
        sys.argv = before[0]
        if before[1] is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        finished = sweep.close_ledger(ledger, report=code == 0) if ledger else 0
    return code or finished


def _refuse(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2


def _one_line(error: Exception) -> str:
    """Hydra's message without its layout: the key, and what it may be."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("full_key", "object_type", "Set the env"))]
    if len(lines) > 1 and lines[0].startswith(("Could not find", "In '")):
        start = next((i for i, line in enumerate(lines) if line.startswith("Could not find")), 0)
        choices = [c for c in lines[start + 1 :] if not c.endswith(":")]
        key, _, value = lines[start].removeprefix("Could not find ").strip("'").rpartition("/")
        return f"{key}={value}: one of {', '.join(choices)}"
    return " ".join(lines) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
