"""Entry of every training run and sweep: ``python -m repro.train arm=block_s4 scale=quick seed=1``.

It only assembles: Hydra composes the config, `repro.train.job` does the work, and this file turns what can
go wrong into one line and an exit code (0 a result, 1 a failed run, 2 a setting that cannot be used).
"""

from __future__ import annotations

import os
import sys
import traceback

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
    from concurrent.futures import BrokenExecutor

    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from repro.errors import ConfigError, DataError
    from repro.runs import remember_command
    from repro.train import job, sweep
    from repro.train.paths import config_directory
    from repro.train.refusal import one_line

    sweep.register()
    remember_command(["python", "-m", "repro.train", *arguments])
    before = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = ["repro.train", *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, to be told in one line
    code, job.exit_code = 0, 0
    try:
        hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")(job.run)()
        code = 0 if multirun else job.exit_code
    except (ConfigError, DataError) as error:
        code = _refuse(str(error))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        code = _refuse(one_line(error, arguments))
    except BrokenExecutor:
        print(
            "error: a worker of the sweep was killed; start the same command again to go on", file=sys.stderr
        )
        code = 1
    except Exception:  # a launcher's own error: what became of the runs is told as well
        if not multirun:
            raise
        traceback.print_exc(file=sys.stderr)
        code = 1
    except KeyboardInterrupt as stop:
        print("interrupted; start the same command again to go on", file=sys.stderr)
        code = getattr(stop, "code", 130)
    except SystemExit as stop:  # Hydra's command line: --help, or a flag it does not know
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    finally:
        sys.argv = before[0]
        if before[1] is None:
            os.environ.pop("HYDRA_FULL_ERROR", None)
        unfinished = sweep.close_ledger(report=code in (0, 1))
    return code or unfinished


def _refuse(line: str) -> int:
    print(f"error: {line}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
