"""Fast-AttnRes: CUDA kernels in bfloat16."""

from __future__ import annotations

from torch import Tensor

from repro.conformance.adapter import Adapter, Read


def mix(read: Read) -> tuple[Tensor, None]:
    from attnres import attnres

    return attnres(read.sources, read.query, eps=read.eps), None


ADAPTERS = (
    Adapter(
        "fast-attnres",
        "fast-attnres",
        "attnres.attnres",
        mix=mix,
        gain="none",
        eps="argument, positive",
        max_sources=129,
        dtype="bfloat16",
        interpreter=True,
    ),
)
