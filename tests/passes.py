"""Passes of AttnRes with random parameters through given sublayer outputs, and all that comes out of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from tests.gold import walk
from tests.toy import default_dtype, normal, randomise

EXECUTIONS = ("per_read", "score_on_write", "two_phase")
WIDTH = 6


def build(
    num_sublayers: int, width: int = WIDTH, dtype: torch.dtype = torch.float64, **options: Any
) -> AttnRes:
    """With noise of standard deviation 0.5 on every query and gain, keyed by the parameter's name."""
    with default_dtype(dtype):
        mixer = AttnRes(num_sublayers, width, **options)
    return randomised(mixer)


def randomised(mixer: AttnRes) -> AttnRes:
    randomise(mixer, 0.5)
    return mixer


def results(mixer: AttnRes, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """All reads, all recorded weights and all gradients of a random loss over all reads."""
    embedding = normal("embedding", 2, 3, mixer.width, dtype=dtype).requires_grad_()
    outputs = [
        normal(f"output {l}", 2, 3, mixer.width, dtype=dtype).requires_grad_()
        for l in range(mixer.num_sublayers)
    ]
    found: dict[str, Tensor] = {}
    mixer.tap = lambda l, weights: found.__setitem__(f"weights {l}", weights)
    reads = walk(mixer, embedding, outputs)
    mixer.tap = None
    loss = sum((read * normal(f"loss {l}", *read.shape, dtype=dtype)).sum() for l, read in enumerate(reads))
    leaves = {"embedding": embedding, **{f"output {l}": y for l, y in enumerate(outputs)}}
    leaves |= dict(mixer.named_parameters())
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for name, leaf, grad in zip(leaves, leaves.values(), grads, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(leaf) if grad is None else grad
    return found | {f"read {l}": read for l, read in enumerate(reads)}


def same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape, name
        size = max(b[name].abs().max().item(), 1e-3)  # a gradient may be exactly zero
        assert (a[name] - b[name]).abs().max().item() <= tolerance * size, name
