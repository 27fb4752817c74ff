"""Implementations with planted faults, for tests/test_conformance.py: one switch each, and one without."""

from __future__ import annotations

import os
import signal
from functools import partial

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace


def mix(fault: str, read: Read) -> tuple[Tensor, Tensor]:
    """A read of one head in plain torch; `fault` spoils one thing."""
    stack = torch.stack(read.sources)
    keys = stack * torch.rsqrt(stack.square().mean(-1, keepdim=True) + read.eps)
    if fault == "keys not normalised" or not read.key_norm:
        keys = stack
    query = read.query.detach() if fault == "query without gradient" else read.query
    logits = keys @ (query if read.gain is None else query * read.gain)
    if fault == "scaled by 1/sqrt(d)":
        logits = logits * stack.shape[-1] ** -0.5
    if fault == "tokens share weights":
        logits = logits.mean(-1, keepdim=True).expand_as(logits)
    weights = logits.softmax(0)
    values = keys if fault == "values normalised" else stack
    mixed = (weights[..., None] * values).sum(0)
    return mixed + float("nan") if fault == "not finite" else mixed, weights


def walk(fault: str, setup: Setup) -> Trace:
    """A walk per read, as in Fig. 2; `fault` spoils one thing."""
    blocks, partial_sum = [setup.embedding], None
    seen, values = [], []
    for l in range(len(setup.outputs) + 1):
        shift = {"boundary one late": 1, "boundary one early": -1}.get(fault, 0)
        if l > shift and (l - shift) % setup.block_size == 0 and partial_sum is not None:
            blocks, partial_sum = [*blocks, partial_sum], None
        sources = blocks if partial_sum is None else [*blocks, partial_sum]
        if fault == "placeholder" and partial_sum is None:
            sources = [*blocks, torch.zeros_like(setup.embedding)]
        last = l == len(setup.outputs)
        if fault == "plain sum at the end" and last:
            sources = [torch.stack(sources).sum(0)]
        if fault == "cumulative":
            sources = [torch.stack(sources[: n + 1]).sum(0) for n in range(len(sources))]
        seen.append(sources)
        read = Read(
            [s[None, None] for s in sources], setup.queries[l], setup.gains[l], "softmax", True, 1, setup.eps
        )
        values.append(mix("", read)[0].reshape(-1))
        if not last:
            output = setup.outputs[l]
            partial_sum = output if partial_sum is None else partial_sum + output
            if fault == "embedding in the first block" and l == 0:
                partial_sum = partial_sum + setup.embedding
    return Trace(seen, values, len(setup.queries), fault != "queries not zero")


def crash(read: Read) -> tuple[Tensor, Tensor]:
    if len(read.sources) == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    return mix("", read)


def only_even(setup: Setup) -> Trace:
    if setup.block_size % 2:
        raise NotExpressible("even block sizes only")
    raise RuntimeError("no such\nkernel")


READ_FAULTS = (
    "keys not normalised",
    "query without gradient",
    "scaled by 1/sqrt(d)",
    "tokens share weights",
    "values normalised",
    "not finite",
)
WALK_FAULTS = (
    "boundary one late",
    "boundary one early",
    "placeholder",
    "plain sum at the end",
    "cumulative",
    "embedding in the first block",
    "queries not zero",
)
ADAPTERS = (
    *(Adapter(f, "torch", "mix", mix=partial(mix, f), raw_keys=True) for f in (*READ_FAULTS, "right read")),
    *(
        Adapter(f, "torch", "walk", walk=partial(walk, f), dtype="float64")
        for f in (*WALK_FAULTS, "right walk")
    ),
    Adapter("gain in the query", "torch", "mix", mix=partial(mix, ""), gain="none"),
    Adapter("dies", "torch", "crash", mix=crash, raw_keys=True),
    Adapter("raises", "torch", "only_even", walk=only_even),
    Adapter("missing", "no-such-distribution-at-all", "mix", mix=partial(mix, "")),
)
