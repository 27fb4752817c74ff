"""The literals of tests/data/attnres_literals.json, computed independently in 50 digits.

26 single reads with all gradients and 6 walks through blocks with source sets. The file gives weights as
[H, S]; our operations return [S, H, ...].
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.phased import AttnResState

_FILE = json.loads((Path(__file__).parent / "data" / "attnres_literals.json").read_text())
MIXES: list[dict[str, Any]] = _FILE["mixes"]
WALKS: list[dict[str, Any]] = _FILE["block_walks"]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def error(value: Tensor, literal: Any, scale: float = 0.0) -> float:
    """max |a - b| / max(max |b|, scale) in float64; 0 where both are exactly zero."""
    reference = torch.tensor(literal, dtype=torch.float64)
    assert value.shape == reference.shape
    difference = (value.detach().double() - reference).abs().max().item()
    size = max(reference.abs().max().item(), scale)
    return difference / size if size > 0 else (0.0 if difference == 0 else float("inf"))


#: Cases whose gradients of query and gain are the rest of a cancellation; see `cancelled_size`.
CANCELLING = ("width_1", "sharp_query")


def cancelled_size(case: dict[str, Any]) -> tuple[float, float]:
    """Size of the terms whose sum is the gradient of the query, and of the gain, from the literals alone.

    These gradients are sum_i w_i (g.v_i - g.o) k_i. In `width_1` all sources are negative, so a normed key is
    -1 up to eps / v^2, and a constant key cancels, since the w_i (g.v_i - g.o) sum to zero: what is left is
    of the size of eps, 1e-6. In `sharp_query` the weights are one-hot up to 1e-29, and so is the rest. No
    arithmetic keeps digits of such a rest: its error is measured against the terms.
    """
    sources = torch.tensor(case["sources"], dtype=torch.float64)
    upstream, query, gain = (
        torch.tensor(case[name], dtype=torch.float64) for name in ("upstream", "query", "key_weight")
    )
    keys = sources
    if case["key_norm"]:
        keys = sources * torch.rsqrt(sources.square().mean(-1, keepdim=True) + case["eps"])
    weights = torch.tensor(case["weights"], dtype=torch.float64).T  # [S, H]
    heads = weights.shape[1]
    products = (sources * upstream).unflatten(-1, (heads, -1)).sum(-1).abs()
    terms = (weights * products).repeat_interleave(sources.shape[1] // heads, -1) * keys.abs()
    return (terms * gain.abs()).sum(0).max().item(), (terms * query.abs()).sum(0).max().item()


def set_read(mixer: AttnRes, l: int, query: Tensor, gain: Tensor) -> None:
    """Give read l a pseudo-query and a key gain; where there is no gain it goes into the query."""
    with torch.no_grad():
        if mixer.key_gains is None:
            mixer.queries[l] = query * gain
        else:
            mixer.queries[l], mixer.key_gains[l] = query, gain


def walk(mixer: AttnRes, embedding: Tensor, outputs: list[Tensor]) -> list[Tensor]:
    """All reads of a scheme whose sublayers write given outputs; the last is what the final norm sees."""
    state: AttnResState = mixer.begin(embedding)
    reads = []
    for l, output in enumerate(outputs):
        x, state = mixer.read(state, l)
        reads.append(x)
        state = mixer.write(state, l, output)
    return [*reads, mixer.finish(state)]
