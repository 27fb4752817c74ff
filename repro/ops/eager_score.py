"""Logits of one source against many reads at once, in plain torch operations. Letters as in `phases`."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.ops.eager import inverse_rms, norm_pullback
from repro.ops.matmul import product
from repro.ops.reference import compute_dtype, split_heads


def score_forward(
    source: Tensor, addend: Tensor | None, queries: Tensor, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Logits [..., R, H], inverse RMS [..., groups], and source + addend where there is an addend."""
    total = source if addend is None else source + addend
    dtype = compute_dtype(total, queries)
    value, wide = total.to(dtype), queries.to(dtype)
    if heads == 1 and len(queries) == 1:
        # A matrix-vector product runs on one thread, at a third of this speed.
        logits = (value * wide[0]).sum(-1, keepdim=True).unsqueeze(-1)
    elif heads == 1:
        rows = value.reshape(-1, value.shape[-1])
        logits = product(rows, wide).view(*value.shape[:-1], len(queries), 1)
    else:
        logits = torch.einsum("...hd,rhd->...rh", split_heads(value, heads), split_heads(wide, heads))
    inverse = None
    if groups:
        inverse = inverse_rms(value, groups, eps)
        logits.mul_(inverse.unsqueeze(-2))
    return logits, inverse, None if addend is None else total


def score_backward(
    grad: Tensor,
    grad_in: Tensor | None,
    source: Tensor,
    queries: Tensor,
    logits: Tensor,
    inverse: Tensor | None,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """Gradient of the source on top of grad_in, and of the queries [R, D]."""
    dtype = logits.dtype
    value, wide = source.to(dtype), queries.to(dtype)
    raw = grad if inverse is None else grad * inverse.unsqueeze(-2)
    width, rows = value.shape[-1], value.reshape(-1, value.shape[-1])
    if heads == 1:
        flat = raw.reshape(-1, raw.shape[-2])
        if grad_in is None:
            back = flat @ wide
        else:
            back = torch.addmm(grad_in.reshape(-1, width).to(dtype), flat, wide)
        grad_queries = flat.T @ rows
    else:
        back = torch.einsum("...rh,rhd->...hd", raw, split_heads(wide, heads)).reshape(-1, width)
        if grad_in is not None:
            back += grad_in.reshape(-1, width)
        by_head = split_heads(rows, heads)
        grad_queries = torch.einsum("trh,thd->rhd", raw.reshape(-1, *raw.shape[-2:]), by_head).flatten(-2)
    back = back.view(value.shape)
    if inverse is not None:
        norm_pullback(back, value, inverse, (grad * logits).sum(-2))
    return back.to(source.dtype), grad_queries
