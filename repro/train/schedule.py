"""Learning-rate schedules as pure functions of the step: nothing to save, nothing to restore.

Each returns the factor on the peak learning rate for update number `step` (0-based) of `total`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.errors import ConfigError
from repro.model.locate import locate, refuse_unknown


class Schedule:
    """Base of all schedules; their fields are the keys of config group `schedule`."""

    def factor(self, step: int, total: int) -> float:
        """Factor on the peak learning rate for update `step` (0-based) of `total`."""
        raise NotImplementedError


def build_schedule(node: Mapping[str, Any]) -> Schedule:
    """The schedule of config node `schedule`; raises ConfigError naming the key that cannot be."""
    options = dict(node)
    found = locate("schedule._target_", options.pop("_target_", None), Schedule)
    refuse_unknown("schedule", found, options)
    return found(**options)


def _check_fraction(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(f"schedule.{key}", value, "a fraction of all steps or of the peak, from 0 to 1")


@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up, then half a cosine down to `final` times the peak (scaling runs of the paper).

    warmup: fraction of all steps.  final: fraction of the peak at the end.
    """

    warmup: float = 0.05
    final: float = 0.1

    def __post_init__(self) -> None:
        _check_fraction("warmup", self.warmup)
        _check_fraction("final", self.final)

    def factor(self, step: int, total: int) -> float:
        warmup = round(self.warmup * total)
        if step < warmup:
            return (step + 1) / warmup
        progress = min(1.0, (step - warmup) / max(1, total - warmup))
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class WSD(Schedule):
    """Warm-up, stable, decay (the 48B runs): linear warm-up, flat, then linear down to `final`.

    warmup, decay: fractions of all steps.  final: fraction of the peak at the end.
    """

    warmup: float = 0.05
    decay: float = 0.2
    final: float = 0.0

    def __post_init__(self) -> None:
        for key in ("warmup", "decay", "final"):
            _check_fraction(key, getattr(self, key))
        if self.warmup + self.decay > 1:
            raise ConfigError(
                "schedule.decay", self.decay, f"at most 1 - schedule.warmup = {1 - self.warmup:g}"
            )

    def factor(self, step: int, total: int) -> float:
        warmup, decay = round(self.warmup * total), round(self.decay * total)
        if step < warmup:
            return (step + 1) / warmup
        if step < total - decay:
            return 1.0
        left = max(0, total - step) / max(1, decay)
        return self.final + (1 - self.final) * left
