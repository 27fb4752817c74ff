"""What the schemes of a single state share: it is one tensor, and each sublayer reads it as it is."""

from __future__ import annotations

from torch import Tensor

from repro.depth.base import DepthMixer, State


class SingleState(DepthMixer):
    """The state is the stream h [B, T, D], the embedding at the start; `write`, of a subclass, changes it."""

    def begin(self, embedding: Tensor) -> State:
        return (embedding,)

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        return state[0], state

    def finish(self, state: State) -> Tensor:
        return state[0]

    def stream(self, state: State) -> Tensor | None:
        return state[0]
