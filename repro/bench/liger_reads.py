"""AttnRes read by read with liger-kernel's operation as it is meant to be called: on a stack of the sources.

For the traffic table only; the package is optional. In the dtype of the activations, unlike backend `liger`,
which computes in float32 for its accuracy.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, tagged
from repro.depth.boundaries import source_plan


class State(NamedTuple):
    """Complete sources, and the partial sum of the open block."""

    sources: tuple[Tensor, ...]
    partial: Tensor | None = None


class LigerReads(DepthMixer):
    """Block (or, with block_size 1, Full) as Fig. 2 writes it."""

    def __init__(self, num_sublayers: int, width: int, block_size: int) -> None:
        super().__init__(num_sublayers, width)
        module: Any = importlib.import_module("liger_kernel.ops.attn_res")
        self.operation = module.LigerAttnResFunction
        self.plan = source_plan(num_sublayers, block_size, None, None, "all")
        self.queries = tagged(torch.zeros(num_sublayers + 1, width), "query")
        self.key_gains = tagged(torch.ones(num_sublayers + 1, width), "gain")

    def begin(self, embedding: Tensor) -> State:
        return State((embedding,))

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        sources = [*state.sources, *([] if state.partial is None else [state.partial])]
        if len(sources) == 1:
            return sources[0], state
        query, gain = self.queries[l], self.key_gains[l]
        return self.operation.apply(torch.stack(sources), query, gain, self.eps), state

    def write(self, state: State, l: int, output: Tensor) -> State:
        partial = output if state.partial is None else state.partial + output
        if l + 1 in self.plan.ends:
            return State((*state.sources, partial))
        return State(state.sources, partial)

    def finish(self, state: State) -> Tensor:
        return self.read(state, self.num_sublayers)[0]
