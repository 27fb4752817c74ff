"""``python -m repro.probe``: what a finished run's checkpoint answers, written into the run's directory.

    python -m repro.probe interventions run=runs/quick/full/<id>    interventions.npz of one run
    python -m repro.probe interventions scale=quick                 of every run that the item shows
    python -m repro.probe downstream scale=quick limit=500          downstream.npz likewise
    python -m repro.probe matrices scale=quick                      depth_matrices.npz, for Fig. 9

Settings are key=value; `python -m repro.probe <probe>` without any lists them. A record that is there already
for the same weights and settings is not made again (force=true does). One line and exit code 2 for bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from repro.errors import ConfigError, DataError
from repro.runs.places import project_root, shown

#: Settings of every probe: key -> (default, what it may be).
COMMON: dict[str, tuple[Any, str]] = {
    "run": (None, "a run directory, as runs/<scale>/<arm>/<id>"),
    "scale": (None, "a file of conf/scale: the runs that the item shows there"),
    "setting": (None, "prefix of a setting id, where a scale holds several"),
    "data": ("data", "folder of the prepared corpora"),
    "device": ("cpu", "a torch device"),
    "force": (False, "true to make a record anew"),
}
OWN: dict[str, dict[str, tuple[Any, str]]] = {
    "interventions": {
        "windows": (16, "validation windows, each one context long; at least 2"),
        "per_read": ("remove+equal_mass", "methods tried on single reads: all, or names joined by +"),
        "seed": (0, "of the random directions and of the order of equal-mass controls"),
    },
    "downstream": {
        "limit": (500, "items of each task, 0 for all"),
        "tasks": ("all", "all, or names joined by +"),
    },
    "matrices": {"tokens": (1024, "validation tokens, in whole windows; at least 1")},
}
#: The experiment whose runs `scale=` stands for.
EXPERIMENTS = {"interventions": "interventions", "downstream": "downstream", "matrices": "fig9"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one probe over one run or many; the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not words or words[0] not in OWN:
            raise ConfigError("probe", words[0] if words else "", f"one of {', '.join(OWN)}")
        if len(words) == 1:
            _describe(words[0])
            return 0
        settings = _settings(words[0], words[1:])
        _run(words[0], settings)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _describe(probe: str) -> None:
    print(f"python -m repro.probe {probe} key=value ...")
    for key, (default, allowed) in {**COMMON, **OWN[probe]}.items():
        print(f"  {key}={default if default is not None else ''}".ljust(30) + allowed)


def _settings(probe: str, words: Sequence[str]) -> dict[str, Any]:
    known = {**COMMON, **OWN[probe]}
    settings = {key: default for key, (default, _) in known.items()}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or key not in known:
            raise ConfigError(key, text, f"no setting of {probe}; there are {', '.join(known)}")
        settings[key] = _value(key, text, *known[key])
    if (settings["run"] is None) == (settings["scale"] is None):
        raise ConfigError("run", settings["run"], "give either run=<directory> or scale=<name>")
    return settings


def _value(key: str, text: str, default: Any, allowed: str) -> Any:
    if isinstance(default, bool):
        if text not in ("true", "false"):
            raise ConfigError(key, text, "true or false")
        return text == "true"
    if isinstance(default, int):
        if not text.isdecimal():
            raise ConfigError(key, text, f"a whole number of at least 0 ({allowed})")
        return int(text)
    return text


def _run(probe: str, settings: dict[str, Any]) -> None:
    from repro.probe import downstream, interventions, matrices
    from repro.train.process import prepare

    prepare()
    probes = {"interventions": interventions, "downstream": downstream, "matrices": matrices}
    record: Callable[..., str] = probes[probe].record
    cache = (
        Path(settings["data"]) if Path(settings["data"]).is_absolute() else project_root() / settings["data"]
    )
    own = {key: settings[key] for key in OWN[probe]}
    for directory in _directories(probe, settings):
        outcome = record(
            directory,
            cache,
            device=settings["device"],
            force=settings["force"],
            say=lambda line: print(f"  {line}", flush=True),
            **own,
        )
        print(f"{shown(directory)}: {outcome}", flush=True)


def _directories(probe: str, settings: dict[str, Any]) -> list[Path]:
    """The run asked for, or those of the probe's experiment that have a checkpoint here."""
    if settings["run"] is not None:
        return [Path(settings["run"])]
    from analysis.selection import CONF, with_checkpoint

    scale, name = settings["scale"], EXPERIMENTS[probe]
    experiment = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    arms = experiment["hydra"]["sweeper"]["params"]["arm"].split(",")
    how = f"-m experiment={name} scale={scale}"
    return with_checkpoint(project_root() / "runs", scale, arms, settings["setting"], how)


if __name__ == "__main__":
    sys.exit(main())
