"""What each setting may be: checked whole before anything is prepared, so that a refused run leaves nothing.

A key of these nodes without a rule is unknown, and refused too: added with `+` it would change the identity
of a run and nothing else. The nodes `arm`, `model`, `schedule` and `data` are checked by what they build.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from repro.depth.base import SINGLE_READS, pick_backend
from repro.errors import ConfigError
from repro.runs import SEMANTICS

Rule = tuple[Callable[[Any], bool], str]


def _is_whole(value: Any, low: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(low: int, also: str = "") -> Rule:
    return (
        lambda v: _is_whole(v, low) or v == also != ""
    ), f"{also and also + ', or '}a whole number of at least {low}"


def _number(low: float, high: float = math.inf, note: str = "") -> Rule:
    bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to below {high:g}"
    return (lambda v: _is_number(v) and low <= v < high), f"a number {bounds}{note}"


def _one_of(*choices: Any) -> Rule:
    return (lambda v: any(v is c or (v == c and type(v) is type(c)) for c in choices)), "one of " + ", ".join(
        map(str, choices)
    )


_TEXT: Rule = (lambda v: isinstance(v, str) and v != ""), "a name that is not empty"
_BETAS: Rule = (
    lambda v: isinstance(v, list) and len(v) == 2 and all(_is_number(b) and 0 <= b < 1 for b in v),
    "two numbers from 0 to below 1, e.g. [0.9,0.95]",
)
_SWITCH: Rule = (lambda v: isinstance(v, bool)), "true or false"
_COMPILE: Rule = (
    lambda v: isinstance(v, bool | dict),
    "true, false, or keyword arguments of torch.compile",
)
_PROGRESS: Rule = (
    lambda v: v is None or (_is_number(v) and v >= 0),
    "null (silent), or a number of at least 0",
)
_GROUP: Rule = (
    lambda v: v is None or (isinstance(v, str) and v != ""),
    "a name, or null for the experiment of the command",
)
_ROOT: Rule = (
    lambda v: v is None or isinstance(v, str),
    "a directory, or null for the project's root",
)

RULES: dict[str, Rule] = {
    "seed": _whole(0),
    "init_seed": _whole(0),
    "data_seed": _whole(0),
    # fp16 would need loss scaling, whose skipped updates contradict "step k has seen batch k".
    "precision": _one_of("32-true", "bf16-mixed", "64-true"),
    "semantics": ((lambda v: v == SEMANTICS), f"{SEMANTICS}, the meaning that this code gives a config"),
    "budget.tokens": _whole(1),
    "budget.batch_size": _whole(1),
    "budget.context": _whole(1),
    "budget.grad_clip": _number(0, note=" (0: gradients are not clipped)"),
    "optim.name": _one_of("adamw", "muon"),
    "optim.lr": ((lambda v: _is_number(v) and v > 0), "a positive number"),
    "optim.betas": _BETAS,
    "optim.eps": _number(0),
    "optim.weight_decay": _number(0),
    "optim.momentum": _number(0, 1),
    "evaluation.num_snapshots": _whole(1),
    "evaluation.subset_tokens": _whole(1),
    "evaluation.log_every": _whole(1),
    "trainer.accelerator": _one_of("cpu", "gpu"),
    "trainer.devices": _whole(1, "auto"),
    "trainer.strategy": _one_of("auto", "ddp_spawn"),
    "runtime.depth_execution": _TEXT,
    "runtime.backend": _TEXT,
    "runtime.compile": _COMPILE,
    "runtime.threads": _whole(1, "auto"),
    "runtime.accumulate": _whole(1),
    "runtime.checkpoint_seconds": _number(0, note=" (0: after every step)"),
    "runtime.force": _SWITCH,
    "runtime.progress_seconds": _PROGRESS,
    "logger.mode": _one_of("offline", "online", "disabled"),
    "logger.project": _TEXT,
    "logger.group": _GROUP,
    "paths.root": _ROOT,
    "paths.runs": _TEXT,
    "paths.data": _TEXT,
    "paths.results": _TEXT,
    "paths.compiled": _TEXT,
}  # fmt: skip
NODES = ("budget", "optim", "evaluation", "trainer", "runtime", "logger", "paths")


def check(config: DictConfig) -> None:
    """Raise ConfigError for the first setting that cannot be, or that does not exist."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    rules = {key: rule for key, rule in RULES.items() if key != "optim.momentum" or _uses_momentum(plain)}
    for node in NODES:
        settings = plain.get(node)
        if not isinstance(settings, dict):
            raise ConfigError(node, settings, "a mapping, as in its YAML")
        known = [key.removeprefix(f"{node}.") for key in rules if key.startswith(f"{node}.")]
        for name, value in settings.items():
            if name not in known:
                raise ConfigError(f"{node}.{name}", value, f"no such setting; {node} has {', '.join(known)}")
    for key, (holds, allowed) in rules.items():
        node, _, name = key.rpartition(".")
        value = (plain[node] if node else plain).get(name)
        if not holds(value):
            raise ConfigError(key, value, allowed)
    budget, devices, accumulate = plain["budget"], plain["trainer"]["devices"], plain["runtime"]["accumulate"]
    if plain["trainer"]["strategy"] == "auto" and devices != 1:
        raise ConfigError("trainer.devices", devices, "1, or trainer.strategy=ddp_spawn for several")
    if budget["tokens"] < budget["batch_size"] * budget["context"]:
        raise ConfigError("budget.tokens", budget["tokens"], "at least budget.batch_size * budget.context")
    processes = devices if isinstance(devices, int) else 1
    if budget["batch_size"] % (accumulate * processes):
        allowed = f"a divisor of budget.batch_size={budget['batch_size']}"
        allowed += f" / trainer.devices={devices}" if processes > 1 else ""
        raise ConfigError("runtime.accumulate", accumulate, allowed)


def check_device(config: DictConfig) -> None:
    """Raise ConfigError where this machine lacks the devices that the run asks for."""
    gpu = config.trainer.accelerator == "gpu"
    pick_backend(config.runtime.backend, "cuda" if gpu else "cpu")
    if config.precision == "64-true" and config.runtime.backend in SINGLE_READS:
        allowed = f"32-true with runtime.backend={config.runtime.backend}, which computes in float32"
        raise ConfigError("precision", config.precision, allowed)
    if not gpu:
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found == 0:
        raise ConfigError(
            "trainer.accelerator", "gpu", "cpu on this machine, where no GPU is found (trainer=cpu)"
        )
    if isinstance(config.trainer.devices, int) and config.trainer.devices > found:
        raise ConfigError("trainer.devices", config.trainer.devices, f"at most {found}, the GPUs found here")


def _uses_momentum(plain: dict[str, Any]) -> bool:
    return isinstance(plain.get("optim"), dict) and plain["optim"].get("name") == "muon"
