"""A stand-in network for tests of residual schemes: random pre-norm sublayers, a linear map and a tanh each.

Everything is drawn from generators keyed by name, so that two schemes share all that they can share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.depth.base import DepthMixer
from repro.depth.inputs import AttentionOutput, Output, Read, value_input


def normal(name: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that depend on the name alone; the same for any dtype up to rounding."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def sources_of(
    num: int, *shape: int, dtype: torch.dtype = torch.float64, name: str = "source"
) -> list[Tensor]:
    return [normal(f"{name} {i}", *shape, dtype=dtype).requires_grad_() for i in range(num)]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Constructors create their parameters in this dtype (converting later would round 1/3 to fp32 first)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def randomise(mixer: DepthMixer, std: float = 0.3) -> DepthMixer:
    """Add noise keyed by its name to every parameter."""
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            parameter.add_(std * normal(name, *parameter.shape, dtype=parameter.dtype))
    return mixer


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def error(a: Tensor, b: Tensor) -> float:
    """max |a - b| / max |b|."""
    return ((a - b).abs().max() / b.abs().max()).item()


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """max |a - b| <= tolerance * max |b|."""
    assert a.shape == b.shape
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


class Toy:
    """L random sublayers f_l(x) = tanh(W_l x) and a random embedding, [2, 5, width] unless given.

    Of `AttentionInputs` they make tanh(values + query - key), values = W_l value mixed as asked: f_l where
    all three are one tensor.

    The embedding has the standard deviation of a usual initialisation, 0.02, unless `embedding_std` says
    otherwise, so that eps matters as much as in a real model.
    """

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        dtype: torch.dtype = torch.float64,
        embedding_std: float = 0.02,
        output_std: float = 0.02,
        tokens: tuple[int, int] = (2, 5),
    ) -> None:
        self.matrices = [
            (normal(f"sublayer {l}", width, width, dtype=dtype) / width**0.5) for l in range(num_sublayers)
        ]
        self.embedding = (embedding_std * normal("embedding", *tokens, width, dtype=dtype)).requires_grad_()
        self.output_std = output_std

    def run(self, mixer: DepthMixer, *, eps: float = 0.0, final_eps: float | None = None) -> Tensor:
        """What the head would see: the final norm of `finish`; eps of the sublayer norms."""
        return rms_norm(self.walk(mixer, eps=eps)[-1], eps if final_eps is None else final_eps)

    def walk(self, mixer: DepthMixer, *, eps: float = 0.0) -> list[Tensor]:
        """The L reads and what the final norm sees, L + 1 tensors [B, T, D]."""
        state, reads = mixer.begin(self.embedding), []
        for l in range(len(self.matrices)):
            read, state = mixer.read(state, l)
            reads.append(value_input(read))
            state = mixer.write(state, l, self.sublayer(l, read, eps))
        return [*reads, mixer.finish(state)]

    def sublayer(self, l: int, read: Read, eps: float = 0.0) -> Output:
        """What sublayer l makes of a read."""
        if isinstance(read, Tensor):
            return self.output_std * torch.tanh(rms_norm(read, eps) @ self.matrices[l])
        query, key, value = (rms_norm(read.query if x is None else x, eps) for x in read[:3])
        values = own = value @ self.matrices[l]
        if read.mix is not None:
            values = read.mix.own * own + read.mix.earlier * read.mix.values
        output = self.output_std * torch.tanh(values + (query - key))
        return AttentionOutput(output, own) if read.keep_values else output
