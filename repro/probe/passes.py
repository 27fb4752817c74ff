"""A forward pass in two halves: once untouched with every state kept, then again from any read on.

Whatever changes at read l leaves the states before it as they were, so an intervention costs the sublayers
from l on and no more. States are immutable, so keeping them copies nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from repro.model.decoder import Decoder
from repro.model.loss import token_losses


@torch.no_grad()
def states_of(decoder: Decoder, tokens: Tensor) -> list[Any]:
    """The mixer's state before each of the L + 1 reads (the last is the output read)."""
    mixer = decoder.mixer
    states = [mixer.begin(F.embedding(tokens, decoder.embedding))]
    for l, sublayer in enumerate(decoder.sublayers):
        x, state = mixer.read(states[-1], l)
        states.append(mixer.write(state, l, sublayer(x)))
    return states


@torch.no_grad()
def losses_from(decoder: Decoder, state: Any, l: int, targets: Tensor) -> Tensor:
    """Loss of every target in nats [B, T], from the state before read l on; 0 where the target is -100."""
    mixer = decoder.mixer
    for k in range(l, mixer.num_sublayers):
        x, state = mixer.read(state, k)
        state = mixer.write(state, k, decoder.sublayers[k](x))
    hidden = decoder.final_norm(mixer.finish(state))
    return token_losses(hidden.flatten(0, 1), decoder.head, targets.flatten()).view_as(targets)


def repeated(state: Any, times: int, batch: int) -> Any:
    """A state whose batch axis is `times` copies of it: tensors [batch, T, D] are repeated, others shared."""
    if isinstance(state, Tensor):
        return state.repeat(times, 1, 1) if state.dim() == 3 and state.shape[0] == batch else state
    if not isinstance(state, tuple):
        return state
    parts = [repeated(part, times, batch) for part in state]
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
