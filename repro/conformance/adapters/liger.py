"""Liger-Kernel: one Triton kernel over a stack of sources."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, Read


def mix(read: Read) -> tuple[Tensor, Tensor]:
    from liger_kernel.ops.attn_res import LigerAttnResFunction, attn_res_forward

    assert read.gain is not None
    stack = torch.stack(read.sources)
    with torch.no_grad():  # the weights are an output of the forward pass alone
        alpha = attn_res_forward(stack.detach(), read.query.detach(), read.gain.detach(), read.eps)[2]
    mixed = LigerAttnResFunction.apply(stack, read.query, read.gain, read.eps)
    return mixed, alpha.T.unflatten(1, stack.shape[1:-1])


ADAPTERS = (
    Adapter(
        "liger-kernel",
        "liger-kernel",
        "liger_kernel.ops.attn_res.LigerAttnResFunction",
        mix=mix,
        interpreter=True,
    ),
)
