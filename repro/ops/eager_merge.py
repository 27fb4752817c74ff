"""A read of a history and the partial sum, in plain torch operations. Letters as in `phases`."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.ops.eager import head_sums, norm_pullback, spread
from repro.ops.eager_score import score_forward
from repro.ops.reference import compute_dtype


def merge_forward(
    prior: Tensor,
    prior_lse: Tensor,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    act: str,
    heads: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, Tensor]:
    """Read, partial sum (None where it is `output`), its logit and inverse RMS, and lse of the whole read."""
    total = output if partial is None else partial + output
    wide = compute_dtype(total, query, prior)
    value = total.to(wide)
    z, inverse, _ = score_forward(total, None, query.unsqueeze(0), heads, groups, eps)
    z = z.squeeze(-2)  # [..., H]
    width = value.shape[-1]
    if act == "sigmoid":
        mixed, lse = torch.addcmul(prior.to(wide), value, spread(z.sigmoid(), width)), prior_lse
    else:
        lse = torch.logaddexp(prior_lse, z)
        mixed = torch.lerp(prior.to(wide), value, spread(torch.exp(z - lse), width))
    return mixed.to(output.dtype), None if partial is None else total, z, inverse, lse


def merge_backward(
    grad: Tensor,
    grad_total: Tensor | None,
    prior: Tensor | None,
    total: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor | None,
    lse: Tensor,
    mixed: Tensor | None,
    act: str,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the partial sum on top of grad_total, delta [..., H] of the read, gradient of the query.

    Of prior and read (mixed) one is given, from which delta is taken.
    """
    wide = z.dtype
    upstream, value, folded = grad.to(wide), total.to(wide), query.to(wide)
    width = value.shape[-1]
    product = head_sums(upstream * value, heads)
    if act == "sigmoid":
        weight = z.sigmoid()
        delta = torch.zeros_like(z)
        grad_z = product * weight * (1 - weight)
    else:
        weight = torch.exp(z - lse)
        if mixed is not None:
            delta = head_sums(upstream * mixed, heads)
        else:
            assert prior is not None
            delta = torch.lerp(head_sums(upstream * prior, heads), product, weight)
        grad_z = product.sub_(delta).mul_(weight)
    raw = grad_z if inverse is None else grad_z * inverse
    if grad_total is None:
        back = upstream * spread(weight, width)
    else:
        back = torch.addcmul(grad_total.to(wide), upstream, spread(weight, width))
    if heads == 1:
        back.addcmul_(folded.expand_as(back), raw)
        grad_query = raw.reshape(-1) @ value.reshape(-1, width)
    else:
        wide_raw = spread(raw, width)
        back.addcmul_(folded.expand_as(back), wide_raw)
        grad_query = (wide_raw * value).reshape(-1, width).sum(0)
    if inverse is not None:
        norm_pullback(back, value, inverse, grad_z * z)
    return back.to(total.dtype), delta, grad_query
