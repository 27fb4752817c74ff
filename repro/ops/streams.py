"""Reading, mixing and writing n parallel streams per token (hyper-connections), with backward written out.

Streams are [tokens, n, D]. On CPUs these functions are bound by memory, so each makes one pass where plain
autograd would make several and would allocate a temporary of n D numbers per token for each of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def normed_projection(streams: Tensor, weight: Tensor, eps: float) -> Tensor:
    """weight @ RMSNorm(vec x) of every token: [C, tokens] from weight [C, n * D]; the norm has no gain."""
    return _NormedProjection.apply(streams, weight, eps)


def gather(streams: Tensor, weights: Tensor) -> Tensor:
    """sum_m weights[m] x[m] of every token: [tokens, D] from weights [tokens, n]."""
    return _Gather.apply(streams, weights)


def mix_and_add(streams: Tensor, mixing: Tensor, places: Tensor, output: Tensor) -> Tensor:
    """x <- mixing x + places^T output of every token; [tokens, n, n], [tokens, n] and [tokens, D]."""
    return _MixAndAdd.apply(streams, mixing.contiguous(), places, output)


def add(streams: Tensor, places: Tensor, output: Tensor) -> Tensor:
    """x <- x + places^T output of every token; as `mix_and_add` with the identity as mixing."""
    return _Add.apply(streams, places, output)


class _NormedProjection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, weight: Tensor, eps: float) -> Tensor:
        flat = streams.flatten(1)
        mean_square = torch.linalg.vector_norm(flat, dim=-1).square_().div_(flat.shape[1])
        inverse = mean_square.add_(eps).rsqrt_()
        projected = (weight @ flat.T).mul_(inverse)
        ctx.save_for_backward(streams, weight, inverse, projected)
        return projected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        streams, weight, inverse, projected = ctx.saved_tensors
        flat, grad = streams.flatten(1), grads[0]
        # d inverse / d x = - inverse^3 x / (n D), and projected already holds one factor of inverse.
        shrink = (grad * projected).sum(0).mul_(inverse.square()).div_(-flat.shape[1])
        scaled = grad * inverse
        of_streams = (scaled.T @ weight).addcmul_(flat, shrink[:, None])
        return of_streams.view_as(streams), scaled @ flat, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(streams, weights)
        return _weighted_sum(streams, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        streams, weights = ctx.saved_tensors
        grad = grads[0][:, None]
        return grad * weights[:, :, None], torch.bmm(grad, streams.mT)[:, 0]


class _MixAndAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, mixing: Tensor, places: Tensor, output: Tensor) -> Tensor:
        ctx.save_for_backward(streams, mixing, places, output)
        return torch.bmm(mixing, streams).addcmul_(places[:, :, None], output[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        streams, mixing, places, output = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_places = torch.bmm(grad, output[:, :, None])[:, :, 0]
        of_output = _weighted_sum(grad, places)
        return torch.bmm(mixing.mT, grad), torch.bmm(grad, streams.mT), of_places, of_output


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, places: Tensor, output: Tensor) -> Tensor:
        ctx.save_for_backward(places, output)
        return torch.addcmul(streams, places[:, :, None], output[:, None])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places, output = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_places = torch.bmm(grad, output[:, :, None])[:, :, 0]
        return grad, of_places, _weighted_sum(grad, places)


def _weighted_sum(streams: Tensor, weights: Tensor) -> Tensor:
    """A chain of n products, several times faster than a matrix product with one row."""
    total = streams[:, 0] * weights[:, :1]
    for m in range(1, streams.shape[1]):
        total.addcmul_(streams[:, m], weights[:, m : m + 1])
    return total
