"""Every Triton operation against float64: outputs and all gradients, of inputs that have the tested dtype.

Errors are max |a - b| / max |b|. What has the dtype of the activations, and gradients, may be off by four
roundings of that dtype (bfloat16) or by 1e-5 (float32); logits and their log-sum-exp are float32 numbers
whatever the activations are, and are held to 1e-5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.bench.gpu_data import Draw
from repro.bench.supervised import Row
from repro.ops import reference
from repro.ops.history import History, Norm
from repro.ops.triton.merge import merge_forward
from repro.ops.triton.merge_backward import merge_backward
from repro.ops.triton.mix import mix_forward
from repro.ops.triton.mix_backward import mix_backward
from repro.ops.triton.read import read_forward
from repro.ops.triton.read_backward import read_backward
from repro.ops.triton.score import score_forward
from repro.ops.triton.score_backward import score_backward

LIMITS = {"bfloat16": 2.0**-6, "float32": 1e-5}
LOGIT_LIMIT = 1e-5
EPS = 1e-8
Results = dict[str, Tensor]


class Check(NamedTuple):
    """An operation and its definition on the same inputs, results by name.

    ours: given the exact results, of which a phase takes what a later one would hand it (None: anything).
    """

    ours: Callable[[Results | None], Results]
    exact: Callable[[], Results]


class Kind(NamedTuple):
    """Options that the operations share.  groups: RMS per key, 1 or one per head."""

    act: str = "softmax"
    heads: int = 1

    @property
    def norm(self) -> Norm:
        return Norm(self.heads, self.heads, EPS)


def _leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double().requires_grad_() for tensor in tensors]


def read(draw: Draw, kind: Kind, num: int) -> Check:
    sources, query, grad = draw.streams(num), draw.query(), draw.stream()
    act, heads, norm = kind.act, kind.heads, kind.norm

    def ours(_: Results | None) -> Results:
        mixed, z, inverse, lse = read_forward(sources, query, act, *norm)
        saved = (mixed, sources, query, z, inverse, lse, act, heads, norm.groups)
        grads, grad_query = read_backward(grad, None, *saved)
        found = {"mix": mixed, "logits": z, "source gradients": torch.stack(grads)}
        return found | {"query gradient": grad_query} | ({"lse": lse} if act == "softmax" else {})

    def exact() -> Results:
        *values, vector = _leaves(*sources, query)
        options: dict[str, Any] = {"act": act, "heads": heads, "head_norm": heads > 1, "eps": EPS}
        mixed, _ = reference.depth_mix(values, vector, **options)
        z = torch.stack([reference.score(v, vector.unsqueeze(0), norm)[0].squeeze(-2) for v in values])
        *grads, grad_query = torch.autograd.grad(mixed, [*values, vector], grad.double())
        found = {"mix": mixed, "logits": z, "source gradients": torch.stack(grads)}
        lse = {"lse": torch.logsumexp(z, 0)} if act == "softmax" else {}
        return found | {"query gradient": grad_query} | lse

    return Check(ours, exact)


def score(draw: Draw, kind: Kind, queries: int) -> Check:
    source, addend, vectors = draw.stream(), draw.stream(), draw.query(queries)
    grad_z, grad_in, norm = draw.scalars(queries, kind.heads), draw.stream(), kind.norm

    def ours(_: Results | None) -> Results:
        z, inverse, total = score_forward(source, addend, vectors, *norm)
        saved = (total, vectors, z, inverse, norm.heads, norm.groups)
        grad, grad_queries = score_backward(grad_z, grad_in, *saved)
        return {"sum": total, "logits": z, "source gradients": grad, "query gradient": grad_queries}

    def exact() -> Results:
        total, queries = _leaves((source.double() + addend.double()).to(source.dtype), vectors)
        z, _ = reference.score(total, queries, norm)
        upstream = (grad_z.double(), grad_in.double())
        grad, grad_queries = torch.autograd.grad([z, total], [total, queries], upstream)
        return {"sum": total, "logits": z, "source gradients": grad, "query gradient": grad_queries}

    return Check(ours, exact)


def mix(draw: Draw, kind: Kind, num: int, reads: int, ends: bool) -> Check:
    """ends: reads that end here, on top of a prior; else a history whose reads go on, with a message each."""
    sources, z, grads_in = draw.streams(num), draw.logits(num, reads, kind.heads), draw.streams(num)
    grads, before = draw.streams(reads), draw.streams(reads) if ends else []
    before_lse = draw.scalars(reads, kind.heads) if ends and kind.act == "softmax" else None

    def ours(wanted: Results | None) -> Results:
        outputs, lse = mix_forward(sources, z, before, before_lse, kind.act)
        delta = lse if wanted is None or "delta" not in wanted else wanted["delta"].to(lse.dtype)
        priors: list[Tensor | None] = [*before] or [None] * reads
        whole = (lse, delta, [not ends] * reads, priors, before_lse, None)
        back, grad_z, delta = mix_backward(grads, *whole, sources, z, kind.act, grads_in)
        found = {"mix": torch.stack(outputs), "source gradients": torch.stack(back), "logit gradient": grad_z}
        return found | ({"lse": lse, "delta": delta} if kind.act == "softmax" else {})

    def exact() -> Results:
        *values, logits = _leaves(*sources, z)
        nothing = z.new_zeros(*z.shape[1:-2], kind.heads)  # a sigmoid does not look at it
        priors = [
            History(mixed.double(), (nothing if before_lse is None else before_lse[..., q, :]).double(), None)
            for q, mixed in enumerate(before)
        ]
        options: dict[str, Any] = {"act": kind.act, "dtype": None, "continued": [False] * reads}
        histories, _ = reference.mix(values, logits.unbind(0), priors, **options)
        outputs = [history.mixed for history in histories]
        upstream = [grad.double() for grad in grads]
        *back, grad_z = torch.autograd.grad(outputs, [*values, logits], upstream)
        back = [grad + added.double() for grad, added in zip(back, grads_in, strict=True)]
        products = [
            (grad * output).unflatten(-1, (kind.heads, -1)).sum(-1)
            for grad, output in zip(upstream, outputs, strict=True)
        ]
        found = {"mix": torch.stack(outputs), "source gradients": torch.stack(back), "logit gradient": grad_z}
        lse = torch.stack([history.lse for history in histories], -2)
        return found | ({"lse": lse, "delta": torch.stack(products, -2)} if kind.act == "softmax" else {})

    return Check(ours, exact)


def merge(draw: Draw, kind: Kind, normed: bool) -> Check:
    """normed: with the sublayer's RMSNorm in the same kernel."""
    prior, partial_sum, output, prior_lse = *draw.streams(3), draw.scalars(kind.heads)
    query, gain = draw.query(), draw.normal(draw.width) if normed else None
    grad, grad_total, norm, act = draw.stream(), draw.stream(), kind.norm, kind.act
    options: dict[str, Any] = {"gain": gain, "norm_eps": EPS}
    with_delta = act == "softmax" and gain is None  # through a norm g . h is zero but for its eps

    def ours(_: Results | None) -> Results:
        mixed, total, z, inverse, lse = merge_forward(
            prior, prior_lse, partial_sum, output, query, act, *norm, **options
        )
        saved = (prior, total, query, z, inverse, lse, mixed, act, norm.heads, norm.groups)
        back, delta, grad_query, *of_norm = merge_backward(grad, grad_total, *saved, **options)
        found = {"read": mixed, "sum": total, "logits": z, "source gradients": back}
        found |= {"query gradient": grad_query} | ({"lse": lse} if act == "softmax" else {})
        found |= {"delta": delta} if with_delta else {}
        return found | dict(zip(("gain gradient", "read gradient"), of_norm, strict=False))

    def exact() -> Results:
        rounded = (partial_sum.double() + output.double()).to(output.dtype)
        total, vector, scale = _leaves(rounded, query, query if gain is None else gain)
        logits, _ = reference.score(total, vector.unsqueeze(0), norm)
        history = History(prior.double(), prior_lse.double(), None)
        rest: dict[str, Any] = {"act": act, "dtype": None, "continued": [False]}
        ((mixed, lse, _),), _ = reference.mix([total], [logits], [history], **rest)
        size = torch.rsqrt(mixed.square().mean(-1, keepdim=True) + EPS)
        read = mixed if gain is None else mixed * size * scale
        upstream = [grad.double(), grad_total.double()]
        wanted = [total, vector, mixed, scale]
        back, grad_query, grad_mixed, grad_gain = torch.autograd.grad(
            [read, total], wanted, upstream, allow_unused=True
        )
        found = {"read": read, "sum": total, "logits": logits.squeeze(-2), "source gradients": back}
        found |= {"query gradient": grad_query}
        found |= {"lse": lse} if act == "softmax" else {}
        if with_delta:
            found["delta"] = (grad_mixed * mixed).unflatten(-1, (norm.heads, -1)).sum(-1)
        return found | ({} if gain is None else {"gain gradient": grad_gain, "read gradient": grad_mixed})

    return Check(ours, exact)


#: What is checked, by name; a number is that of sources or queries.
CHECKS: dict[str, Callable[[Draw, Kind, int], Check]] = {
    "read": read,
    "score": score,
    "mix of a history": partial(mix, reads=16, ends=False),
    "mix on priors": partial(mix, reads=2, ends=True),
    "merge": lambda draw, kind, _: merge(draw, kind, False),
    "merge and norm": lambda draw, kind, _: merge(draw, kind, True),
}


def error(found: Tensor, wanted: Tensor) -> float:
    """max |a - b| / max |b|; 0 where both are exactly zero, NaN where a number is none."""
    if found.shape != wanted.shape:
        raise ValueError(f"shape {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    difference = (found.detach().double() - wanted.detach()).abs().max().item()
    size = wanted.detach().abs().max().item()
    if difference == 0:
        return 0.0
    return difference / size if size > 0 else math.inf


def measure(
    name: str, device: str, dtype: str, lead: tuple[int, ...], width: int, num: int, kind: Kind
) -> Iterator[Row]:
    """Error of every result of one operation, beside its limit."""
    check = CHECKS[name](Draw(device, dtype, lead, width), kind, num)
    wanted = check.exact()
    for result, value in check.ours(wanted).items():
        yield {
            "operation": name,
            "backend": "triton",
            "direction": "backward" if "gradient" in result or result == "delta" else "forward",
            "dtype": dtype,
            "width": width,
            "sources": num,
            "quantity": f"error of {result}",
            "value": error(value, wanted[result]),
            "limit": LOGIT_LIMIT if result in ("logits", "lse") else LIMITS[dtype],
        }
