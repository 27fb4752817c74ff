"""The depth-mixing matrix of Fig. 9, h_l = sum_i M[l, i] v_i, of any scheme, through the protocol alone.

v_0 is the embedding and v_i what sublayer i - 1 wrote. The sublayers run on real activations; each thing
written is a leaf of the graph, and the entry M[l, i] is the derivative of read l in v_i while the weights of
the scheme count as constants (`DepthMixer.frozen`). Row L is the output read; the paper's matrix is the rest.

The entry is a number per token and head where a scheme weighs whole vectors (or channel groups). Where a
channel has a weight of its own (`DepthMixer.per_channel`: a gate, the gain of a norm), the entry is the mean
over channels, or there is one for each on request. Where a scheme maps between channels, the entry is the
mean of the diagonal, and `residual` says how far the matrix is from reproducing the reads.

A norm of the state is linear while its root mean square counts as a constant, whose inverse is thus a weight.
Where an attention sublayer reads several tensors (`repro.depth.inputs`), the row is that of its value input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from repro.depth.base import DepthMixer
from repro.depth.inputs import Output, Read, output_tensor, value_input, with_tensor

#: (sublayer index, what it reads) -> what it writes, [B, T, D] both or as `repro.depth.inputs` says
Sublayers = Callable[[int, Read], Output]


class DepthMatrix(NamedTuple):
    """weights: [L + 1 reads, L + 1 written, H, B, T], zero above the diagonal; D in place of H for channels.

    residual: max |sum_i M[l, i] v_i - read| / max |read| over all reads; rounding where the scheme mixes
    whole vectors (or channel groups, or channels) linearly, given its weights.
    """

    weights: Tensor
    residual: float


def depth_matrix(
    mixer: DepthMixer, embedding: Tensor, sublayers: Sublayers, channels: bool = False
) -> DepthMatrix:
    """M of every token of embedding [B, T, D], in its dtype; float64 gives ranks a clear edge.

    channels: an entry for each channel, not only for each head.
    """
    L, width = mixer.num_sublayers, mixer.width
    groups = width if channels or mixer.per_channel else mixer.depth_heads
    kept = width if channels else mixer.depth_heads
    tokens = embedding.shape[:-1]
    weights = embedding.new_zeros(L + 1, L + 1, kept, *tokens)
    # Signs average to the diagonal of a map between channels, and find a diagonal map exactly; the same signs
    # for all tokens, so that a map which is the same for all gives them one entry.
    draw = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (width,), generator=draw).mul(2).sub(1).to(embedding)
    written = [embedding.detach().requires_grad_()]
    residual = 0.0
    with _frozen(mixer), torch.enable_grad():
        state = mixer.begin(written[0])
        for l in range(L + 1):
            if l < L:
                read, state = mixer.read(state, l)
            else:
                read = mixer.finish(state)
            x = value_input(read)
            entries = _entries(x, written, signs, groups)
            weights[l, : l + 1] = entries.unflatten(-1, (kept, -1)).mean(-1).movedim(-1, 1)
            residual = max(residual, _residual(x, written, entries))
            if l < L:
                with torch.no_grad():
                    output = sublayers(l, read)
                written.append(output_tensor(output).detach().to(embedding.dtype).requires_grad_())
                state = mixer.write(state, l, with_tensor(output, written[-1]))
    return DepthMatrix(weights, residual)


def _entries(read: Tensor, written: Sequence[Tensor], signs: Tensor, groups: int) -> Tensor:
    """A row of the matrix, [written, B, T, groups of channels]."""
    found = torch.autograd.grad((read * signs).sum(), written, retain_graph=True, allow_unused=True)
    gradients = torch.stack([torch.zeros_like(read) if g is None else g for g in found])
    return (gradients * signs).unflatten(-1, (groups, -1)).mean(-1)


@torch.no_grad()
def _residual(read: Tensor, written: Sequence[Tensor], entries: Tensor) -> float:
    groups = entries.shape[-1]
    values = torch.stack([v.detach() for v in written]).unflatten(-1, (groups, -1))
    difference = (entries.unsqueeze(-1) * values).sum(0).flatten(-2) - read
    return (difference.abs().max() / read.abs().max()).item()


@contextmanager
def _frozen(mixer: DepthMixer) -> Iterator[None]:
    """Weights as constants, read by read: every scheme offers that execution, with the same numbers."""
    before = mixer.frozen, mixer.execution
    mixer.frozen, mixer.execution = True, "per_read"
    try:
        yield
    finally:
        mixer.frozen, mixer.execution = before
