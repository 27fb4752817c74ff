"""``python -m repro.convert``: start AttnRes from a trained PreNorm run, and adapt it beside PreNorm itself.

    python -m repro.convert run=runs/quick/prenorm/<id> arm=block_s4
    python -m repro.convert run=runs/quick/prenorm/<id> arm=block_s4+full method=exact+keep_eps steps=100
    python -m repro.convert scale=quick                every finished PreNorm run of the scale, for the item

Any other word is a setting of the adaptation: optim.lr=1e-3, schedule=wsd, runtime.threads=1, trainer=gpu.
Done runs are returned from the cache, interrupted ones go on. Exit code 2 and one line for bad input, 1 for a
run that failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from repro.errors import ConfigError, DataError
from repro.runs.places import project_root, shown

BASELINE = "prenorm"
#: Settings of the command: key -> (default, what it may be).
SETTINGS: dict[str, tuple[str, str]] = {
    "run": ("", "a finished run of PreNorm with its checkpoint, as runs/<scale>/prenorm/<id>"),
    "scale": ("", "a file of conf/scale: all of its finished PreNorm runs, instead of run"),
    "setting": ("", "prefix of a setting id, where a scale holds several"),
    "arm": ("block_s4+full", "arms joined by +, of conf/arm"),
    "method": ("exact+keep_eps", "exact, keep_eps, or both joined by +"),
    "steps": ("auto", "steps of adaptation; auto: a quarter of the run's"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert and adapt; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        for key, (default, allowed) in SETTINGS.items():
            print(f"  {key}={default}".ljust(26) + allowed)
        return 0

    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from repro.train.refusal import one_line

    own = {key: default for key, (default, _) in SETTINGS.items()}
    own |= {key: value for key, _, value in (word.partition("=") for word in words) if key in own}
    overrides = [word for word in words if word.partition("=")[0] not in own]
    try:
        return _run(own, overrides, words)
    except (ConfigError, DataError) as error:
        line = str(error)
    except (HydraException, OmegaConfBaseException) as error:
        line = one_line(error, overrides)
    print(f"error: {line}", file=sys.stderr)
    return 2


def _run(own: dict[str, str], overrides: list[str], words: list[str]) -> int:
    from omegaconf import OmegaConf

    from repro.convert.adapt import Conversion, check_overrides
    from repro.probe.trained import open_trained
    from repro.runs import remember_command
    from repro.train.process import prepare, use_threads
    from repro.train.sweep import register

    if bool(own["run"]) == bool(own["scale"]):
        raise ConfigError("run", own["run"], "a run directory, or scale=<name> for all of a scale")
    check_overrides(overrides)
    register()
    prepare()
    remember_command(["python", "-m", "repro.convert", *words])
    places = {"root": None, "runs": "runs", "data": "data"}
    places |= OmegaConf.to_container(OmegaConf.from_dotlist(overrides)).get("paths") or {}  # type: ignore[union-attr,arg-type]
    root = Path(places["root"] or project_root())
    failed = 0
    for directory in _parents(own, root / str(places["runs"])):
        trained = open_trained(directory, root / str(places["data"]), say=_say)
        steps = _steps(own["steps"], trained.run.status.step)
        plan = [(BASELINE, "exact")]
        plan += [(arm, method) for arm in own["arm"].split("+") for method in own["method"].split("+")]
        made: list[Conversion] = [  # all are checked before one is trained
            Conversion(trained, arm=arm, method=method, steps=steps, overrides=overrides, say=_say)
            for arm, method in dict.fromkeys(plan)
        ]
        for conversion in made:
            use_threads(conversion.config.runtime.threads)
            outcome = conversion.adapt()
            failed += outcome.status == "failed"
            config = conversion.config
            told = "already there" if outcome.cached else outcome.message
            name = f"{config.arm.name}, {config.start.method}, seed {config.seed}"
            print(f"{name} | {outcome.status}: {told} | {shown(outcome.directory)}", flush=True)
    return int(failed > 0)


def _steps(setting: str, trained: int) -> int:
    if setting == "auto":
        return max(1, trained // 4)
    if not setting.isdecimal() or int(setting) < 1:
        raise ConfigError("steps", setting, "auto, or a whole number of at least 1")
    return int(setting)


def _parents(own: dict[str, str], runs: Path) -> list[Path]:
    """The run asked for, or the finished PreNorm runs of a scale that have a checkpoint here."""
    if own["run"]:
        return [Path(own["run"])]
    from analysis.selection import with_checkpoint

    how = f"arm={BASELINE} scale={own['scale']}"
    return with_checkpoint(runs, own["scale"], (BASELINE,), own["setting"] or None, how)


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
