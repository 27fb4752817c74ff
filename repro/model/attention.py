"""Causal multi-head attention with rotary positions (the token axis; depth is `repro.depth`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from repro.depth.base import tagged
from repro.depth.inputs import AttentionInputs, AttentionOutput, Output, Read
from repro.errors import ConfigError
from repro.ops.matmul import linear


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
        cos, sin = self._tables(x.shape[-2], x.dtype)
        return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, 3, H, head size] -> query and key, rotated, and value, each [B, H, T, head size]."""
        if torch.compiler.is_compiling():  # fused there, and gradients written into slices are not traced
            query, key, value = (part.transpose(1, 2) for part in qkv.unbind(2))
            return self(query), self(key), value
        cos, sin = self._tables(qkv.shape[1], qkv.dtype)
        return _Split.apply(qkv, cos[:, None, None], sin[:, None, None])

    def _tables(self, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin [T, head size]."""
        if tokens > self.cos.shape[0]:
            raise ConfigError(
                "budget.context", tokens, f"at most {self.cos.shape[0]}, the context of this model"
            )
        return self.cos[:tokens].to(dtype), self.sin[:tokens].to(dtype)


class _Split(torch.autograd.Function):
    """Three gradients are written into one tensor: slices of it would each be padded with zeros and added."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        pair = qkv[:, :, :2]
        half = qkv.shape[-1] // 2
        rotated = torch.addcmul(pair * cos, pair.roll(half, dims=-1), sin)
        query, key = rotated.permute(2, 0, 3, 1, 4)
        return query, key, qkv[:, :, 2].transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        query, key, value = (grad.transpose(1, 2) for grad in grads)
        batch, tokens, heads, size = query.shape
        back = query.new_empty(batch, tokens, 3, heads, size)
        back[:, :, 2] = value
        cos, sin = cos[:, 0], sin[:, 0]
        for slot, grad in enumerate((query, key)):
            # The transpose of a roll by half the head size is the same roll.
            torch.mul(grad, cos, out=back[:, :, slot]).add_((grad * sin).roll(size // 2, dims=-1))
        return back, None, None


class CausalAttention(nn.Module):
    """Softmax attention over earlier tokens, [B, T, D] -> [B, T, D].

    Query, key and value matrices are separate parameters, so that Muon orthogonalises each alone,
    and are joined into one product in the forward pass. `AttentionInputs` may ask for more.
    """

    def __init__(self, width: int, num_heads: int, rotary: Rotary) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.rotary = rotary
        self.query, self.key, self.value, self.output = (
            tagged(torch.empty(width, width), "matrix") for _ in range(4)
        )

    def forward(self, x: Read) -> Output:
        if isinstance(x, AttentionInputs):
            return self._of_inputs(x)
        return self._attend(*self.rotary.split(self._joined(x)))

    def _of_inputs(self, x: AttentionInputs) -> Output:
        if x.key is None and x.value is None:
            qkv = self._joined(x.query)
        else:
            qkv = self._apart(*(x.query if part is None else part for part in x[:3]))
        query, key, values = self.rotary.split(qkv)
        mixed = values
        if x.mix is not None:
            mixed = values * x.mix.own.to(values.dtype) + x.mix.values * x.mix.earlier.to(values.dtype)
        output = self._attend(query, key, mixed)
        return AttentionOutput(output, values) if x.keep_values else output

    def _joined(self, x: Tensor) -> Tensor:
        """Query, key and value of one input in one product, [B, T, 3, H, head size]."""
        batch, tokens, width = x.shape
        joined = torch.cat([self.query, self.key, self.value])
        return linear(x, joined).view(batch, tokens, 3, self.num_heads, width // self.num_heads)

    def _apart(self, *inputs: Tensor) -> Tensor:
        """The same of an input for each."""
        parts = [linear(x, w) for x, w in zip(inputs, (self.query, self.key, self.value), strict=True)]
        return torch.stack(parts, dim=2).unflatten(-1, (self.num_heads, -1))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """[B, H, T, head size] of each -> [B, T, D]."""
        batch, tokens, width = query.shape[0], query.shape[2], self.output.shape[1]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return linear(mixed.transpose(1, 2).reshape(batch, tokens, width), self.output)
