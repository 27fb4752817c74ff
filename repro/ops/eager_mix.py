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

#: Sources of a history from which one batched product for its reads beats chains (measured).
BATCHED_FROM = 6
#: Tokens times width that one step of a batched product's gradient takes: its operands stay in cache.
CHANNELS_AT_ONCE = 2**16


def _batched(num_sources: int, reads: int, heads: int) -> bool:
    return heads == 1 and reads > 1 and num_sources >= BATCHED_FROM


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """n tensors [..., D] side by side per token, [tokens, n, D]: rows a large power of two apart are slow."""
    return torch.stack([tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors], 1)


def _rows(scalars: Tensor) -> Tensor:
    """[n, ..., Q] -> [tokens, n, Q], a view of scalars that lie side by side per token."""
    return scalars.movedim(0, -2).reshape(-1, scalars.shape[0], scalars.shape[-1])


def _batched_backward(
    values: Sequence[Tensor], upstream: Sequence[Tensor], weights: Tensor, grads_in: Sequence[Tensor | None]
) -> tuple[Tensor, list[Tensor]]:
    """Products [tokens, n, Q] of sources and gradients, and gradients of the sources on top of grads_in.

    weights: [tokens, n, Q]. Some tokens at a time, so that stacks and products of one step stay in cache.
    """
    shape, width = values[0].shape, values[0].shape[-1]
    if torch.compiler.is_compiling():  # writing into slices is not traced
        flat = _stacked(upstream)
        parts = [part.view(shape) for part in torch.bmm(weights, flat).unbind(1)]
        back = [a if b is None else a + b for a, b in zip(parts, grads_in, strict=True)]
        return torch.bmm(_stacked(values), flat.mT), back
    sources, grads = ([x.reshape(-1, width) for x in tensors] for tensors in (values, upstream))
    given = [None if grad is None else grad.reshape(-1, width) for grad in grads_in]
    products = torch.empty_like(weights)
    back = [torch.empty_like(source) for source in sources]
    size = max(64, CHANNELS_AT_ONCE // width)
    for cut in (slice(begin, begin + size) for begin in range(0, len(weights), size)):
        flat = torch.stack([grad[cut] for grad in grads], 1)
        torch.bmm(torch.stack([source[cut] for source in sources], 1), flat.mT, out=products[cut])
        for i, part in enumerate(torch.bmm(weights[cut], flat).unbind(1)):
            grad = given[i]
            if grad is None:
                back[i][cut] = part
            else:
                torch.add(part, grad[cut], out=back[i][cut])
    return products, [part.view(shape) for part in back]


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
        wide_in = [None if grad is None else grad.to(wide) for grad in grads_in]
        found, parts = _batched_backward(values, upstream, _rows(weights.squeeze(-1)), wide_in)
        products = found.view(*z.shape[1:-2], len(values), reads, 1).movedim(-3, 0)
        back = [part.to(source.dtype) for part, source in zip(parts, sources, strict=True)]
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
