"""The backends of `repro.ops.depth_mix` and the three executions of `repro.depth.attnres`."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from repro import ops
from repro.conformance.adapter import Adapter, Read, Setup, Trace
from repro.depth.attnres import AttnRes
from repro.depth.phased import AttnResState


def mix(backend: str, read: Read) -> tuple[Tensor, Tensor]:
    return ops.depth_mix(
        read.sources,
        read.query,
        key_weight=read.gain,
        key_norm=read.key_norm,
        act=read.act,
        heads=read.heads,
        eps=read.eps,
        backend=backend,
    )


def sources_in(value: Tensor) -> list[Tensor]:
    """Sources of a mix of disjoint tagged ones, as seen from its value alone: channels of one weight.

    Weights that do not add up to one stay in the sources as a factor, so that no literal fits.
    """
    weights = sorted({round(x, 9) for x in value.tolist() if x != 0})
    factor = 1.0 if abs(sum(weights) - 1) < 1e-6 else sum(weights)
    return [((value - weight).abs() < 1e-8).to(value.dtype) * factor for weight in weights]


def walk(execution: str, setup: Setup) -> Trace:
    num_sublayers, width = len(setup.outputs), len(setup.embedding)
    mixer = AttnRes(
        num_sublayers, width, block_size=setup.block_size, eps=setup.eps, execution=execution
    ).double()
    zero = bool((mixer.queries == 0).all())
    with torch.no_grad():
        mixer.queries.copy_(setup.queries)
        assert mixer.key_gains is not None
        mixer.key_gains.copy_(setup.gains)
        state: AttnResState = mixer.begin(setup.embedding)
        values = []
        for l, output in enumerate(setup.outputs):
            value, state = mixer.read(state, l)
            values.append(value)
            state = mixer.write(state, l, output)
        values.append(mixer.finish(state))
    return Trace([sources_in(value) for value in values], values, len(mixer.queries), zero)


ADAPTERS = (
    *(
        Adapter(
            name=f"this suite, {backend}",
            distribution="attnres-repro",
            ran=f"repro.ops.depth_mix(backend={backend!r})",
            mix=partial(mix, backend),
            acts=ops.ACTS,
            heads=True,
            raw_keys=True,
            token_query=True,
            interpreter=backend == "triton",
            needs=("triton",) if backend == "triton" else (),
        )
        for backend in ("reference", "eager", "native", "triton")
    ),
    *(
        Adapter(
            name=f"this suite, {execution}",
            distribution="attnres-repro",
            ran=f"repro.depth.attnres.AttnRes(execution={execution!r})",
            walk=partial(walk, execution),
            dtype="float64",
        )
        for execution in ("per_read", "score_on_write", "two_phase")
    ),
)
