"""The fast torch path, forward and backward written out: for CPU, and any device without a fused kernel.

Saved for backward are references to the sources and a few scalars per source and token; keys, stacks and
weighted sources are recomputed. At small widths the cost is operator overhead and passes over memory, so
a single read is a chain of in-place multiply-adds over the sources (which stay in cache), and several
reads of one history are one batched product. Layouts are those of `reference`; scalars keep the source
axis first, where softmax is vectorised. Gradients are of first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.ops.history import key_groups
from repro.ops.precision import full_precision
from repro.ops.reference import compute_dtype, fold, split_heads


def spread(scalars: Tensor, width: int) -> Tensor:
    """[..., H] -> [..., D], each head's scalar over its channels (H = 1: left to broadcasting)."""
    heads = scalars.shape[-1]
    if heads == 1:
        return scalars
    return scalars.unsqueeze(-1).expand(*scalars.shape, width // heads).flatten(-2)


def head_sums(x: Tensor, heads: int) -> Tensor:
    """[..., D] -> [..., H]."""
    return x.sum(-1, keepdim=True) if heads == 1 else split_heads(x, heads).sum(-1)


def _head_indicator(like: Tensor, heads: int) -> Tensor:
    """[D, H], one where a channel belongs to a head."""
    return torch.eye(heads, dtype=like.dtype, device=like.device).repeat_interleave(
        like.shape[-1] // heads, 0
    )


def dots(values: Sequence[Tensor], grad: Tensor, heads: int) -> Tensor:
    """Products of gradient and each source summed over each head: [S, ..., H]; one scratch for all."""
    scratch = torch.empty_like(grad)
    if heads == 1:
        return torch.stack([torch.mul(value, grad, out=scratch).sum(-1, keepdim=True) for value in values])
    indicator = _head_indicator(grad, heads)  # a product with ones is faster than sums over few channels
    return torch.stack([torch.matmul(torch.mul(value, grad, out=scratch), indicator) for value in values])


def inverse_rms(source: Tensor, groups: int, eps: float) -> Tensor:
    """1 / RMS of [..., D] over the whole width (groups = 1) or per head: [..., groups]."""
    grouped = split_heads(source, groups)
    norm = torch.linalg.vector_norm(grouped, dim=-1)
    return norm.square().div_(grouped.shape[-1]).add_(eps).rsqrt_()


def norm_pullback(grad: Tensor, source: Tensor, inverse: Tensor, product: Tensor) -> Tensor:
    """Add in place what the key norm sends back: -source / RMS^2 times the mean of gradient . logit.

    product: [..., H], sum over queries of gradient times logit; inverse: [..., 1 or H].
    """
    groups = inverse.shape[-1]
    if groups == 1 and product.shape[-1] > 1:
        product = product.sum(-1, keepdim=True)
    size = source.shape[-1] // groups
    return grad.addcmul_(source, spread(product * inverse.square(), source.shape[-1]), value=-1.0 / size)


def _weigh(act: str, logits: Tensor) -> Tensor:
    """Weights of logits [S, ...]."""
    if act == "softmax":
        return torch.softmax(logits, 0)
    weights = torch.sigmoid(logits)
    return weights / weights.sum(0) if act == "sigmoid_normalized" else weights


def _weigh_backward(act: str, grad: Tensor, weights: Tensor, logits: Tensor | None) -> Tensor:
    """Gradient of the logits, given that of the weights."""
    if act == "sigmoid":
        return grad * weights * (1 - weights)
    centred = grad - (grad * weights).sum(0)
    if act == "softmax":
        return weights * centred
    assert logits is not None
    return weights * centred * torch.sigmoid(-logits)


def chain(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Weighted sum of [..., D] by [S, ..., H], one source after the other."""
    width = sources[0].shape[-1]
    mixed = sources[0] * spread(weights[0], width)
    for source, weight in zip(sources[1:], weights[1:], strict=True):
        mixed.addcmul_(source, spread(weight, width))
    return mixed


class _Read(torch.autograd.Function):
    """One read, scores and mix together; the query is [D], or [..., D] where it depends on the input."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        query, act, heads, groups, eps, *sources = arguments  # one tuple, as in `phases`
        wide = compute_dtype(query, *sources)
        values, folded = [source.to(wide) for source in sources], query.to(wide)
        # [D, H]: a learned query is a matrix with each head's channels in a column of its own.
        by_head = folded.unsqueeze(-1) * _head_indicator(folded, heads) if query.dim() == 1 else None
        inverses: list[Tensor] = []
        logits = []
        for value in values:
            logit = head_sums(value * folded, heads) if by_head is None else torch.matmul(value, by_head)
            if groups:
                inverses.append(inverse_rms(value, groups, eps))
                logit = logit * inverses[-1]
            logits.append(logit)
        z = torch.stack(logits)  # [S, ..., H]
        weights = _weigh(act, z)
        ctx.act, ctx.num_sources = act, len(sources)
        ctx.save_for_backward(query, z, weights, *sources, *inverses)
        return chain(values, weights).to(sources[0].dtype), weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_weights: Tensor) -> tuple[Tensor | None, ...]:
        query, z, weights, *rest = ctx.saved_tensors
        sources, inverses = rest[: ctx.num_sources], rest[ctx.num_sources :]
        with full_precision(grad.device):
            heads, wide, width = z.shape[-1], z.dtype, grad.shape[-1]
            grad, folded = grad.to(wide), query.to(wide)
            values = [source.to(wide) for source in sources]
            products = dots(values, grad, heads).add_(grad_weights)
            grad_logits = _weigh_backward(ctx.act, products, weights, z)
            grad_query = torch.zeros_like(folded)
            grad_sources = []
            for i, value in enumerate(values):
                grad_logit = grad_logits[i]
                raw = spread(grad_logit * inverses[i] if inverses else grad_logit, width)
                back = (grad * spread(weights[i], width)).addcmul_(folded.expand_as(grad), raw)
                if inverses:
                    norm_pullback(back, value, inverses[i], grad_logit * z[i])
                grad_sources.append(back.to(sources[i].dtype))
                if query.dim() > 1:
                    grad_query.addcmul_(value, raw)
                elif heads == 1:
                    grad_query += torch.matmul(raw.reshape(-1), value.reshape(-1, width))
                else:
                    grad_query += (raw * value).reshape(-1, width).sum(0)
        return grad_query.to(query.dtype), None, None, None, None, *grad_sources


def depth_mix(
    sources: Sequence[Tensor],
    query: Tensor,
    *,
    key_weight: Tensor | None = None,
    key_norm: bool = True,
    act: str = "softmax",
    heads: int = 1,
    head_norm: bool = False,
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    """As `reference.depth_mix`."""
    groups = key_groups(key_norm, heads, head_norm)
    mixed, weights = _Read.apply(fold(query, key_weight), act, heads, groups, eps, *sources)
    return mixed, weights.movedim(-1, 1)
