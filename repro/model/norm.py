"""RMSNorm (Zhang and Sennrich): x / sqrt(mean(x^2) + eps) times a learned gain."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.depth.base import tagged


class RMSNorm(nn.Module):
    """Normalises the last axis, [..., D] -> [..., D], in fp32 or wider.

    eps is added to the mean square. It is a confound of this paper, since averaging over depth shrinks
    the stream by the number of sources: keep it small (design: 1e-8).
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = tagged(torch.ones(width), "norm")
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16):
            return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
