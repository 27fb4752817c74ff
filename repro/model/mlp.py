"""SwiGLU: down(silu(gate x) * up x), three bias-free matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.depth.base import tagged


class SwiGLU(nn.Module):
    """Gated MLP, [..., D] -> [..., D]; gate and up are joined into one product."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.gate = tagged(torch.empty(mlp_width, width), "matrix")
        self.up = tagged(torch.empty(mlp_width, width), "matrix")
        self.output = tagged(torch.empty(width, mlp_width), "matrix")

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat([self.gate, self.up])).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.output)
