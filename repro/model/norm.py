"""RMSNorm as a module of the decoder: the function of `repro.ops.norm` with a learned gain."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repro.depth.base import tagged
from repro.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """Normalises the last axis, [..., D] -> [..., D], in fp32 or wider.

    eps is added to the mean square. It is a confound of this paper, since averaging over depth shrinks
    the stream by the number of sources: keep it small (default: 1e-8).
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = tagged(torch.ones(width), "norm")
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
