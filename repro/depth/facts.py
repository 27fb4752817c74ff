"""What a residual scheme says about itself in Table 5, and what its state costs, measured by walking it.

A scheme states its facts once, as `DepthMixer.FACTS`; what depends on its options it adds in `facts()`.
Counts are not stated but taken: parameters from the module, state from a walk through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from repro.depth.inputs import AttentionInputs, AttentionOutput

if TYPE_CHECKING:
    from repro.depth.base import DepthMixer

FIXED, STATIC, DYNAMIC = WEIGHTS = ("fixed", "static", "dynamic")


@dataclass(frozen=True)
class SchemeFacts:
    """A row of Table 5.

    system: name of the row, the paper's where it has one.  weight: `fixed` (nothing learned), `static`
    (learned, the same for every token) or `dynamic` (depends on activations).  source: what a read draws on.
    update: the rule in plain text; update_tex: in TeX.  links: where the scheme is defined, arXiv ids.
    """

    system: str
    weight: str
    source: str
    update: str
    update_tex: str
    links: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.weight not in WEIGHTS:
            raise ValueError(f"weight {self.weight!r} is not one of {WEIGHTS}")


def num_parameters(mixer: DepthMixer) -> int:
    """Parameters of the scheme; norms of the decoder that it does without are not subtracted."""
    return sum(parameter.numel() for parameter in mixer.parameters())


def state_per_token(make: Callable[[int], DepthMixer], width: int) -> tuple[int, int]:
    """(activations, scalars) of the state per token where it is largest between two steps of `per_read`.

    make: the mixer of a width; it is walked at `width` and at twice that. Activations are in units of d.
    Queries and weights that travel in the state do not grow with the tokens and so are not counted.
    """
    narrow, wide = (_elements_per_token(make(size)) for size in (width, 2 * width))
    best = (0, 0)
    for a, b in zip(narrow, wide, strict=True):
        activations, rest = divmod(b - a, width)
        if rest:
            raise ValueError(f"state grows by {b - a} elements from width {width} to {2 * width}")
        best = max(best, (activations, a - activations * width))
    return best


def _elements_per_token(mixer: DepthMixer) -> list[int]:
    """Elements of the state that one more token costs, after each begin, read and write."""
    one, two = _state_sizes(mixer, 1), _state_sizes(mixer, 2)
    return [b - a for a, b in zip(one, two, strict=True)]


@torch.no_grad()
def _state_sizes(mixer: DepthMixer, tokens: int) -> list[int]:
    draw = torch.Generator().manual_seed(0)
    mixer.execution = "per_read"

    def activation() -> Tensor:
        return torch.randn(1, tokens, mixer.width, generator=draw)

    state = mixer.begin(activation())
    sizes = [_size(state)]
    for l in range(mixer.num_sublayers):
        read, state = mixer.read(state, l)
        sizes.append(_size(state))
        keeps = isinstance(read, AttentionInputs) and read.keep_values
        output = AttentionOutput(activation(), activation()) if keeps else activation()
        state = mixer.write(state, l, output)
        sizes.append(_size(state))
    return sizes


def _size(state: Any) -> int:
    """Elements of the distinct tensors in a state."""
    return sum({(x.data_ptr(), x.shape): x.numel() for x in _tensors(state)}.values())


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict):
        yield from _tensors(tuple(state.values()))
    elif isinstance(state, list | tuple) and not isinstance(state, torch.Size):
        for part in state:
            yield from _tensors(part)
