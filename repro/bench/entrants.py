"""Who is measured against PreNorm, and at which depths and widths.

An entrant is an arm computed one way. Standard: 16 transformer blocks of width 128 on 16 x 128 tokens, where
every way to compute Block (S = 4) and Full is compared; only the defaults go through the other sweeps.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from hydra import compose
from omegaconf import DictConfig

from repro.train import settings
from repro.train.step_time import BASELINE

FLA = "fla"
SWEEPS = ("standard", "depth", "width", "compiled")


@dataclass(frozen=True)
class Entrant:
    """An arm of `conf/arm`, with what `runtime` selects for it."""

    arm: str
    execution: str = "auto"
    backend: str = "auto"

    @property
    def name(self) -> str:
        return f"{self.arm}:{self.execution}:{self.backend}"


@dataclass(frozen=True)
class Setting:
    """One race: its entrants, PreNorm first, at a depth in transformer blocks and a width."""

    sweep: str
    blocks: int
    width: int
    entrants: tuple[Entrant, ...]
    compiled: bool = False

    @property
    def mode(self) -> str:
        return "compiled" if self.compiled else "eager"

    @property
    def title(self) -> str:
        return f"{self.sweep}: {self.blocks} blocks, width {self.width}, {self.mode}"


DEFAULTS = (Entrant(BASELINE), Entrant("block_s4"), Entrant("full"))


def fla_is_installed() -> bool:
    return importlib.util.find_spec(FLA) is not None


def all_entrants() -> tuple[Entrant, ...]:
    """PreNorm; Block and Full as in Fig. 2, by each execution, by default, and by fla where installed."""
    ways = [("per_read", "reference"), ("per_read", "eager"), ("score_on_write", "eager")]
    ways += [("two_phase", "eager"), ("auto", "auto")]
    ways += [("per_read", FLA)] if fla_is_installed() else []
    return (Entrant(BASELINE), *(Entrant(arm, *way) for arm in ("block_s4", "full") for way in ways))


def planned(sweeps: Sequence[str] = SWEEPS) -> list[Setting]:
    """The races of these sweeps; the depths end at 64 transformer blocks, which are 128 sublayers."""
    found = {
        "standard": [Setting("standard", 16, 128, all_entrants())],
        "depth": [Setting("depth", blocks, 128, DEFAULTS) for blocks in (8, 16, 32, 64)],
        "width": [Setting("width", 16, width, DEFAULTS) for width in (64, 128, 256)],
        "compiled": [Setting("compiled", 16, 128, DEFAULTS, compiled=True)],
    }
    return [setting for sweep in sweeps for setting in found[sweep]]


def configuration(setting: Setting, entrant: Entrant, overrides: Sequence[str] = ()) -> DictConfig:
    """The checked config of one entrant; `overrides` come last. Needs an initialised Hydra."""
    shape = {
        "width": setting.width,
        "num_transformer_blocks": setting.blocks,
        "num_heads": max(setting.width // 16, 1),
        "mlp_width": -(-8 * setting.width // 24) * 8,  # 8/3 of the width, up to a multiple of 8
    }
    config = compose(
        "train",
        overrides=[
            "scale=cpu_wide",
            *(f"model.{key}={value}" for key, value in shape.items()),
            f"arm={entrant.arm}",
            "runtime.compile=false",  # the race compiles what it times by itself
            *overrides,
            f"runtime.depth_execution={entrant.execution}",
            f"runtime.backend={entrant.backend}",
        ],
    )
    settings.check(config)
    settings.check_device(config)
    return config
