"""Single reads by published kernels: flash-linear-attention's `attnres` and Liger-Kernel's `attn_res`.

What they can compute is in `packages`; they compute it in float32. Weights are what the packages compute on
the way to the mix; no gradient flows through them. Imported only where such a backend is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.ops.packages import PACKAGES, check, refusal
from repro.ops.reference import compute_dtype


def _fla(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Fused on a GPU; elsewhere its plain operation, which the fused one refuses to replace."""
    from fla.ops.attnres import fused_attnres, naive_attnres

    # Both want contiguous sources, the fused one from an address that 16 divides.
    rows = [source.contiguous() for source in sources]
    rows = [row.clone() if row.storage_offset() * row.element_size() % 16 else row for row in rows]
    operation = fused_attnres if sources[0].is_cuda else naive_attnres
    mixed, weights = operation(query, rows, gain, rms_eps=eps, return_weights=True)
    return mixed, weights.detach()


def _liger(sources: Sequence[Tensor], query: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Of a stack of the sources. Gradients of query and gain are summed in an order that varies on a GPU."""
    stack = torch.stack(list(sources))
    mixed, weights = _Liger.apply(stack, query, gain, eps)  # type: ignore[no-untyped-call]
    return mixed, weights.T.reshape(stack.shape[:-1])


class _Liger(torch.autograd.Function):
    """As LigerAttnResFunction, which keeps the weights to itself."""

    @staticmethod
    def forward(ctx: Any, stack: Tensor, query: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from liger_kernel.ops.attn_res import attn_res_forward

        mixed, rows, weights, inverse = attn_res_forward(stack, query, gain, eps)
        ctx.save_for_backward(rows, query, gain, weights, inverse)
        ctx.shape, ctx.eps = stack.shape, eps
        ctx.mark_non_differentiable(weights)
        return mixed, weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        from liger_kernel.ops.attn_res import attn_res_backward

        grad_stack, grad_query, grad_gain = attn_res_backward(
            grad.contiguous(), *ctx.saved_tensors, eps=ctx.eps
        )
        return grad_stack.view(ctx.shape), grad_query, grad_gain, None


def _read(name: str, operation: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """`reference.depth_mix` by an operation on sources, query, gain and eps."""

    @torch.compiler.disable  # fla's dispatch is compiled anew for each of its functions
    def depth_mix(
        sources: Sequence[Tensor],
        query: Tensor,
        *,
        key_weight: Tensor | None = None,
        key_norm: bool = True,
        act: str = "softmax",
        heads: int = 1,
        head_norm: bool = False,  # with one head the same norm
        eps: float = 1e-8,
    ) -> tuple[Tensor, Tensor]:
        check(name, sources[0].device.type)
        reason = refusal(name, act=act, heads=heads, key_norm=key_norm, token_query=query.dim() > 1)
        if reason is None and compute_dtype(*sources, query, key_weight) != torch.float32:
            reason = f"{PACKAGES[name][0]} has no float64, it computes in float32"
        if reason is not None:
            raise ValueError(f"backend {name!r} cannot compute this read: {reason}")
        query = query.float()
        gain = torch.ones_like(query) if key_weight is None else key_weight.float()
        mixed, weights = operation(sources, query.contiguous(), gain.contiguous(), eps)
        return mixed, weights.unsqueeze(1)

    return depth_mix


READS = {"fla": _read("fla", _fla), "liger": _read("liger", _liger)}
