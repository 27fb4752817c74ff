"""Causal multi-head attention with rotary positions (the token axis; depth is `repro.depth`)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.depth.base import tagged
from repro.errors import ConfigError


class Rotary(nn.Module):
    """Rotary position tables for one head size, shared by all attention sublayers (no parameters)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_size: int, context: int, base: float) -> None:
        super().__init__()
        if head_size % 2:
            raise ValueError(f"rotary needs an even head size, not {head_size}")
        # Float64 tables, cast once: the angle of late positions would lose digits in fp32.
        rates = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), rates)
        angles = torch.cat([angles, angles], dim=-1)
        half = head_size // 2
        sign = torch.cat([-torch.ones(half), torch.ones(half)]).double()
        self.register_buffer("cos", angles.cos().to(torch.get_default_dtype()), persistent=False)
        # The sign of the rotation is folded in, so that applying it needs one roll and no negation.
        self.register_buffer("sin", (angles.sin() * sign).to(torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate [..., T, head size] by position; same shape and dtype."""
        tokens, half = x.shape[-2], x.shape[-1] // 2
        if tokens > self.cos.shape[0]:
            raise ConfigError(
                "budget.context", tokens, f"at most {self.cos.shape[0]}, the context of this model"
            )
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        return x * cos + x.roll(half, dims=-1) * sin


class CausalAttention(nn.Module):
    """Softmax attention over earlier tokens, [B, T, D] -> [B, T, D].

    Query, key and value matrices are separate parameters, so that Muon orthogonalises each alone,
    and are joined into one product in the forward pass.
    """

    def __init__(self, width: int, num_heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.rotary = rotary
        self.query, self.key, self.value, self.output = (
            tagged(torch.empty(width, width), "matrix") for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        joined = torch.cat([self.query, self.key, self.value])
        qkv = F.linear(x, joined).view(batch, tokens, 3, self.num_heads, width // self.num_heads)
        qk, value = qkv[:, :, :2].permute(2, 0, 3, 1, 4), qkv[:, :, 2].transpose(1, 2)
        query, key = self.rotary(qk).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return F.linear(mixed.transpose(1, 2).reshape(batch, tokens, width), self.output)
