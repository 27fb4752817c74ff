"""Several weighted sums of one history, in plain torch operations. Letters as in `phases`; n sources.

At small widths the cost is operator overhead and passes over memory. One read is a chain of in-place
multiply-adds over its sources; several reads of one history are one batched product over the stacked
sources, faster than chains from a few sources on, the copy included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from repro.ops.eager import chain, dots, head_sums, spread
from repro.ops.reference import compute_dtype

#: Products of a history, sources times reads, from which one batched product beats chains (measured).
BATCHED_FROM = 8


def _batched(num_sources: int, reads: int, heads: int) -> bool:
    return heads == 1 and reads > 1 and num_sources * reads >= BATCHED_FROM


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """n tensors [..., D] side by side per token, [tokens, n, D]: rows a large power of two apart are slow."""
    return torch.stack([tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors], 1)


def _rows(scalars: Tensor) -> Tensor:
    """[n, ..., Q] -> [tokens, n, Q], a view of scalars that lie side by side per token."""
    return scalars.movedim(0, -2).reshape(-1, scalars.shape[0], scalars.shape[-1])


def _slots(tensors: Sequence[Tensor | None]) -> Tensor | None:
    """[tokens, n, D] without a copy, where the tensors are the first slots of one such stack; else None."""
    first = tensors[0]
    if torch.compiler.is_compiling() or first is None or first.dim() < 2 or first.stride(-1) != 1:
        return None
    width, row = first.shape[-1], first.stride(-2)
    for n, outer, inner in zip(first.shape[1:-1], first.stride()[:-2], first.stride()[1:-1], strict=True):
        if outer != n * inner:  # not one row after the other
            return None
    step = width * first.element_size()
    for i, tensor in enumerate(tensors):
        if (
            tensor is None
            or tensor.stride() != first.stride()
            or tensor.data_ptr() != first.data_ptr() + i * step
            or tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
        ):
            return None
    tokens = first.numel() // width
    if row < len(tensors) * width:
        return None
    return first.as_strided((tokens, len(tensors), width), (row, width, 1))


def mix_forward(
    sources: Sequence[Tensor],
    z: Tensor,
    priors: Sequence[Tensor],
    prior_lse: Tensor | None,
    act: str,
    dtype: torch.dtype | None,
) -> tuple[list[Tensor], Tensor]:
    """Q mixes [..., D] of n sources by z [n, ..., Q, H] on top of priors, and their lse [..., Q, H]."""
    wide = compute_dtype(z, *sources)
    z = z.to(wide)
    prior_weight: Tensor | None = None
    if act == "softmax":
        top = z.amax(0) if prior_lse is None else torch.maximum(z.amax(0), prior_lse)
        weights = torch.exp_(z - top)
        total = weights.sum(0)
        if prior_lse is not None:
            prior_weight = torch.exp_(prior_lse - top)
            total += prior_weight
            prior_weight /= total
        weights /= total
        lse = total.log_().add_(top)
    else:
        weights = torch.sigmoid(z) if act == "sigmoid" else z
        lse = torch.zeros_like(z[0])
    values = [source.to(wide) for source in sources]
    reads, heads, width = z.shape[-2], z.shape[-1], values[0].shape[-1]
    out = dtype or wide
    if _batched(len(values), reads, heads):
        products = torch.bmm(_rows(weights.squeeze(-1)).mT, _stacked(values))
        together = products.view(*z.shape[1:-1], width).unbind(-2)
        for q, prior in enumerate(priors):
            if prior_weight is None:
                together[q].add_(prior)
            else:
                together[q].addcmul_(prior, prior_weight[..., q, :])
        return [part.to(out) for part in together], lse
    outputs = []
    for q in range(reads):
        own = weights.select(-2, q)
        if not priors:
            outputs.append(chain(values, own).to(out))
        elif prior_weight is None:
            outputs.append(chain(values, own).add_(priors[q]).to(out))
        elif len(values) == 1:
            outputs.append(torch.lerp(priors[q].to(wide), values[0], spread(own[0], width)).to(out))
        else:
            mixed = priors[q] * spread(prior_weight.select(-2, q), width)
            for value, weight in zip(values, own, strict=True):
                mixed.addcmul_(value, spread(weight, width))
            outputs.append(mixed.to(out))
    return outputs, lse


def mix_backward(
    grads: Sequence[Tensor],
    lse: Tensor,
    delta: Tensor,
    continued: Sequence[bool],
    priors: Sequence[Tensor | None],
    prior_lse: Tensor | None,
    grad_lse: Tensor | None,
    sources: Sequence[Tensor],
    z: Tensor,
    act: str,
    grads_in: Sequence[Tensor | None],
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradients of the sources on top of grads_in, of the logits, and delta [..., Q, H].

    lse, delta: of the whole reads. Where a read ends here (not continued), delta is computed, from the
    products with sources and prior and not with the read itself, which may have been rounded; grad_lse is
    then what its own lse receives.
    """
    wide, heads, reads, width = z.dtype, z.shape[-1], z.shape[-2], grads[0].shape[-1]
    weights = torch.exp_(z - lse) if act == "softmax" else torch.sigmoid(z) if act == "sigmoid" else z
    upstream = [grad.to(wide) for grad in grads]
    values = [source.to(wide) for source in sources]
    if _batched(len(values), reads, heads):
        flat = _stacked(upstream)
        products = torch.bmm(_stacked(values), flat.mT).view(*z.shape[1:-2], len(values), reads, 1)
        products = products.movedim(-3, 0)
        coefficients = _rows(weights.squeeze(-1))
        slots = _slots(grads_in)
        own_parts = (
            torch.bmm(coefficients, flat) if slots is None else torch.baddbmm(slots, coefficients, flat)
        ).unbind(1)
        if slots is not None:
            grads_in = [None] * len(values)
        back = [
            part.view(values[0].shape).to(source.dtype)
            if grad is None
            else (part.view(grad.shape) + grad).to(source.dtype)
            for part, grad, source in zip(own_parts, grads_in, sources, strict=True)
        ]
    else:
        products = torch.stack([dots(values, grad, heads) for grad in upstream], -2)
        back = []
        for source, weight, grad_in in zip(sources, weights, grads_in, strict=True):
            by_read = [spread(weight.select(-2, q), width) for q in range(reads)]
            if grad_in is None:
                part = upstream[0] * by_read[0]
            else:
                part = torch.addcmul(grad_in.to(wide), upstream[0], by_read[0])
            for grad, coefficient in zip(upstream[1:], by_read[1:], strict=True):
                part.addcmul_(grad, coefficient)
            back.append(part.to(source.dtype))
    if act == "softmax":
        if not all(continued):
            delta = _completed(delta, continued, priors, prior_lse, lse, upstream, products, weights)
        if grad_lse is not None:
            delta = delta - grad_lse
        grad_z = products.sub_(delta).mul_(weights)
    else:
        grad_z = products if act == "linear" else products.mul_(weights * (1 - weights))
    return back, grad_z, delta


def _completed(
    delta: Tensor,
    continued: Sequence[bool],
    priors: Sequence[Tensor | None],
    prior_lse: Tensor | None,
    lse: Tensor,
    upstream: Sequence[Tensor],
    products: Tensor,
    weights: Tensor,
) -> Tensor:
    """delta with those of the reads that end here: the weighted sum of products with sources and prior."""
    own = (products * weights).sum(0)
    parts = []
    for q, (goes_on, prior) in enumerate(zip(continued, priors, strict=True)):
        part = delta[..., q, :] if goes_on else own[..., q, :]
        if prior is not None:
            assert prior_lse is not None
            share = torch.exp(prior_lse[..., q, :] - lse[..., q, :])
            part = torch.addcmul(part, head_sums(upstream[q] * prior, lse.shape[-1]), share)
        parts.append(part)
    return torch.stack(parts, -2)
