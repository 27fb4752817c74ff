"""Relatives of AttnRes that change keys, logits or weights: how tests make them, and their definitions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.attnres_keys import LowRankKeys
from repro.depth.attnres_logits import RecencyBias, Temperature
from repro.depth.attnres_weights import Entmax, Sparsemax, TopK
from repro.ops.sparse import entmax15, sparsemax
from tests.passes import WIDTH
from tests.toy import default_dtype

Scheme = type[AttnRes]
PROJECTED = ("projected", "projected_per_read")


def make(scheme: Scheme, num_sublayers: int, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


#: one set of options of each kind
ONE_OF_EACH: list[tuple[Scheme, dict[str, Any]]] = [
    (LowRankKeys, {"rank": 2}),
    (LowRankKeys, {"rank": 2, "keys": "projected"}),
    (LowRankKeys, {"rank": 2, "keys": "projected", "norm_over": "rank"}),
    (RecencyBias, {}),
    (Temperature, {}),
    (TopK, {"top_k": 2}),
    (Sparsemax, {}),
    (Entmax, {}),
]


def expected_logits(mixer: Any, l: int, sources: list[Tensor], query: Tensor | None) -> list[Tensor]:
    """The logit of each source at read l, [B, T, H], written out from the docstrings; newest source last."""
    found = []
    gain = 1 if mixer.key_gains is None else mixer.key_gains[l]
    query = mixer.queries[l] if query is None else query
    if isinstance(mixer, Temperature):
        query = query / mixer.log_temperatures[l].exp()
    for i, source in enumerate(sources):

        def unit(x: Tensor) -> Tensor:
            if not mixer.key_norm:
                return x
            groups = mixer.heads if mixer._norm["head_norm"] else 1
            cut = x.unflatten(-1, (groups, -1))
            return (cut / (cut.square().mean(-1, keepdim=True) + mixer.eps).sqrt()).flatten(-2)

        if isinstance(mixer, LowRankKeys):
            P = torch.eye(mixer.width, dtype=torch.float64)[: mixer.rank]
            if mixer.low_rank != "sliced":
                P = mixer.projection if mixer.low_rank == "projected" else mixer.projection[l]
            key = unit(source) @ P.T if mixer.norm_over == "width" else unit(source @ P.T)
        else:
            key = unit(source)
        logit = (key * gain * query).unflatten(-1, (mixer.heads, -1)).sum(-1)
        distance = len(sources) - 1 - i
        if isinstance(mixer, RecencyBias):
            if mixer.bias == "distance":
                logit = logit + (mixer.biases[distance - 1] if distance else 0)
            elif mixer.bias == "latest":
                logit = logit + (0 if distance else mixer.biases[l])
            else:
                logit = logit - mixer.slope * distance
        found.append(logit)
    return found


def expected_weights(mixer: Any, logits: Tensor) -> Tensor:
    """Weights of logits [S, B, T, H]."""
    if isinstance(mixer, TopK):
        ranks = (logits.unsqueeze(1) < logits.unsqueeze(0)).sum(1)  # how many are larger
        exponentials = logits.exp() * (ranks < mixer.top_k)
        return exponentials / exponentials.sum(0)
    if isinstance(mixer, Sparsemax | Entmax):
        return sparsemax(logits) if isinstance(mixer, Sparsemax) else entmax15(logits)
    if mixer.act == "softmax":
        return logits.exp() / logits.exp().sum(0)
    weights = 1 / (1 + torch.exp(-logits))
    return weights / weights.sum(0) if mixer.act == "sigmoid_normalized" else weights


def expected_reads(mixer: Any, embedding: Tensor, outputs: list[Tensor], block_size: int) -> list[Tensor]:
    complete, partial, reads, mixed = [embedding], [], [], embedding
    for l in range(len(outputs) + 1):
        sources = [*complete, *([torch.stack(partial).sum(0)] if partial else [])]
        query = None
        if mixer.query != "learned":
            origin = sources[-1] if mixer.query == "latest_source" else mixed
            unit = origin / (origin.square().mean(-1, keepdim=True) + mixer.eps).sqrt() / mixer.width**0.5
            query = unit @ mixer.query_projections[l].T
        weights = expected_weights(mixer, torch.stack(expected_logits(mixer, l, sources, query)))
        values = torch.stack(sources).unflatten(-1, (mixer.heads, -1))
        mixed = (weights.unsqueeze(-1) * values).sum(0).flatten(-2)
        reads.append(mixed)
        if l < len(outputs):
            partial.append(outputs[l])
            if (l + 1) % block_size == 0 or l + 1 == len(outputs):
                complete, partial = [*complete, torch.stack(partial).sum(0)], []
    return reads
