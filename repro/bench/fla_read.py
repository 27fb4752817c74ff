"""AttnRes whose every read is flash-linear-attention's plain `naive_attnres`: a peer as a contestant.

fla-core is optional and imported only when such a mixer is made. Sources are kept as in Fig. 2: complete
blocks and, inside a block, the partial sum.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, tagged
from repro.depth.boundaries import source_plan
from repro.errors import ConfigError


class Sources(NamedTuple):
    """Complete sources, and the sum of the open block where it has begun."""

    complete: tuple[Tensor, ...]
    partial: Tensor | None = None


class FlaAttnRes(DepthMixer):
    """Block or Full AttnRes over `fla.ops.attnres.naive`. block_size: sublayers per block, 1 is Full.

    ConfigError where fla is not installed or cannot be imported.
    """

    output_read = True

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        block_size: int = 1,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__(num_sublayers, width, eps=eps, execution=execution, backend=backend)
        self.plan = source_plan(num_sublayers, block_size, None, None, "all")
        self.queries = tagged(torch.zeros(num_sublayers + 1, width), "query")
        self.key_gains = tagged(torch.ones(num_sublayers + 1, width), "gain")
        self._mix = _naive_attnres()

    def begin(self, embedding: Tensor) -> Sources:
        return Sources((embedding,))

    def read(self, state: Sources, l: int) -> tuple[Tensor, Sources]:
        sources = [*state.complete, *([] if state.partial is None else [state.partial])]
        return self._mix(self.queries[l], sources, self.key_gains[l], rms_eps=self.eps), state

    def write(self, state: Sources, l: int, output: Tensor) -> Sources:
        output = output.to(state.complete[0].dtype)
        partial = output if state.partial is None else state.partial + output
        if l + 1 not in self.plan.ends:
            return state._replace(partial=partial)
        return Sources((*state.complete, partial))

    def finish(self, state: Sources) -> Tensor:
        return self.read(state, self.num_sublayers)[0]

    def source_columns(self, l: int) -> list[int]:
        return self.plan.columns(l)


def _naive_attnres() -> Callable[..., Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no GPU
            return importlib.import_module("fla.ops.attnres.naive").naive_attnres
    except (ImportError, AttributeError) as error:
        raise ConfigError("runtime.backend", "fla", f"needs fla-core 0.6 ({error})") from None
