"""One pass through a mixer with sublayers that cost nothing, its memory traffic counted.

Kernels are counted access by access (`counting`), torch's operators by their inputs and outputs (`aten`),
autograd's own additions among them. What a sublayer itself reads and writes is left out: its output and the
gradient of its input appear from nowhere, as Table 1 has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from repro.bench.aten import AtenTraffic
from repro.bench.counting import Traffic, counting
from repro.depth.base import DepthMixer


@dataclass(frozen=True)
class Pass:
    """Traffic of a forward and of a backward pass over `tokens` tokens of width `width`."""

    forward: Traffic
    backward: Traffic
    tokens: int
    width: int
    itemsize: int  # bytes per element of an activation


class _Sublayer(torch.autograd.Function):
    """Any input -> the given output; any gradient -> the given gradient of the input. Not charged."""

    @staticmethod
    def forward(ctx: Any, mode: AtenTraffic, mixed: Tensor, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.mode, ctx.gradient = mode, gradient
        with mode.pause():
            return output.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        with ctx.mode.pause():
            return None, ctx.gradient.clone(), None, None


def drive(mixer: DepthMixer, tokens: int, dtype: torch.dtype, seed: int = 0) -> Pass:
    """Forward and backward of all reads and writes on random activations [1, tokens, D].

    Queries are drawn too: at their initial zero some gradients vanish. Leading axes are two, so that an
    activation has three axes and a matrix of parameters two (`accounts.kind` relies on it).
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    num, width = mixer.num_sublayers, mixer.width
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(draw(*parameter.shape))
    values, gradients = (
        [draw(1, tokens, width).to(dtype) for _ in range(num + 1)],
        [draw(1, tokens, width).to(dtype) for _ in range(num + 1)],
    )
    embedding = values[0].requires_grad_()
    with counting() as forward, AtenTraffic(forward.bytes) as mode:
        state = mixer.begin(embedding)
        for l in range(num):
            mixed, state = mixer.read(state, l)
            output = _Sublayer.apply(mode, mixed, values[l + 1], gradients[l])
            state = mixer.write(state, l, output)
        final = mixer.finish(state)
    assert final.shape == embedding.shape
    with counting() as backward, mode:
        mode.bytes = backward.bytes
        # Not .backward(): what a leaf adds to its gradient is the optimiser's business.
        torch.autograd.grad(final, [embedding, *mixer.parameters()], gradients[num])
    return Pass(forward, backward, tokens, width, values[0].element_size())
