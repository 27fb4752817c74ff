# mypy: allow-untyped-defs
"""The merge of Algorithm 1, backward: the gradient of the partial sum, and the message to the history.

What the history's mix needs of this read is the upstream gradient g, the lse of the whole read and
delta = g . h; no gradient of `prior` is made (README.md). With the sublayer's RMSNorm fused, h is computed
again and g is written for the history.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.triton import rows
from repro.ops.triton.launch import TYPES, launch, recording
from repro.ops.triton.merge import check_merge
from repro.ops.triton.specialisation import Specialisation
from repro.ops.triton.sums import sum_partials


@triton.jit
def merge_backward_kernel(
    p_upstream,
    upstream_outer,
    upstream_inner,
    p_grad_total,
    total_outer,
    total_inner,
    p_prior,
    prior_outer,
    prior_inner,
    p_value,
    value_outer,
    value_inner,
    p_query,
    p_gain,
    p_z,
    p_inverse,
    p_lse,
    p_grad_value,
    p_delta,
    p_grad_query,
    p_grad_mixed,
    p_grad_gain,
    num_rows,
    inner_size,
    ACT: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    NORM_EPS: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
):
    CHANNELS: tl.constexpr = WIDTH // HEADS
    o_head = tl.arange(0, H)
    o_channel = tl.arange(0, C)
    # [1, H, C]
    m_width = (o_head < HEADS)[None, :, None] & (o_channel < CHANNELS)[None, None, :]
    o_width = (o_head * CHANNELS)[None, :, None] + o_channel[None, None, :]
    query = tl.load(p_query + o_width, mask=m_width, other=0.0).to(WIDE)
    grad_query = tl.zeros([R, H, C], WIDE)
    if p_gain is not None:
        gain = tl.load(p_gain + o_width, mask=m_width, other=0.0).to(WIDE)
        grad_gain = tl.zeros([R, H, C], WIDE)

    for block in range(tl.program_id(0), tl.cdiv(num_rows, R), tl.num_programs(0)):
        o_row = (tl.zeros([R], tl.int64) + block) * R + tl.arange(0, R)
        m_row = o_row < num_rows
        mask = m_row[:, None, None] & m_width
        o_dense = (o_row * WIDTH)[:, None, None] + o_width
        # [R, H]
        m_heads = m_row[:, None] & (o_head < HEADS)[None, :]
        o_heads = (o_row * HEADS)[:, None] + o_head[None, :]
        if SPLIT:
            i_outer, i_inner = o_row // inner_size, o_row % inner_size
        else:
            i_outer, i_inner = tl.zeros_like(o_row), o_row

        o_start = i_outer * upstream_outer + i_inner * upstream_inner
        upstream = tl.load(p_upstream + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
        o_start = i_outer * value_outer + i_inner * value_inner
        value = tl.load(p_value + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
        z = tl.load(p_z + o_heads, mask=m_heads, other=0.0)
        rest = tl.full([R, H], 1.0, WIDE)
        if ACT == "softmax":
            weight = tl.exp(z - tl.load(p_lse + o_heads, mask=m_heads, other=0.0))
            rest -= weight
        else:
            weight = 1.0 / (1.0 + tl.exp(-z))

        if ACT == "softmax" or p_gain is not None:
            o_start = i_outer * prior_outer + i_inner * prior_inner
            prior = tl.load(p_prior + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
        if p_gain is not None:
            mixed = rest[:, :, None] * prior + weight[:, :, None] * value
            square = tl.sum(tl.sum(mixed * mixed, 2), 1)[:, None, None] / WIDTH
            # An empty row has no size; its gradient is masked, and so must the root be.
            square = tl.where(m_row[:, None, None], square + tl.full([1, 1, 1], NORM_EPS, WIDE), 1.0)
            inverse_norm = tl.rsqrt(square)
            grad_gain += upstream * mixed * inverse_norm
            upstream = upstream * gain
            along = tl.sum(tl.sum(upstream * mixed, 2), 1)[:, None, None]
            upstream = (upstream - mixed * (along * inverse_norm * inverse_norm / WIDTH)) * inverse_norm
            tl.store(p_grad_mixed + o_dense, upstream, mask=mask)

        product = tl.sum(upstream * value, 2)
        if ACT == "softmax":
            # From prior and p, not from h: that is rounded, and g . p - delta cancels.
            before = tl.sum(upstream * prior, 2)
            delta = rest * before + weight * product
            grad_z = weight * rest * (product - before)
        else:
            delta = tl.zeros([R, H], WIDE)
            grad_z = weight * (1.0 / (1.0 + tl.exp(z))) * product
        tl.store(p_delta + o_heads, delta, mask=m_heads)

        grad = weight[:, :, None] * upstream
        if GROUPS > 0:
            if GROUPS == 1:
                inverse = tl.load(p_inverse + o_row[:, None], mask=m_row[:, None], other=0.0)
                back = tl.sum(grad_z * z, 1)[:, None]
            else:
                inverse = tl.load(p_inverse + o_heads, mask=m_heads, other=0.0)
                back = grad_z * z
            grad_z = grad_z * inverse
            back = back * inverse * inverse / (WIDTH // GROUPS)
            grad -= back[:, :, None] * value
        grad += grad_z[:, :, None] * query
        grad_query += grad_z[:, :, None] * value
        if p_grad_total is not None:
            o_start = i_outer * total_outer + i_inner * total_inner
            p_start = p_grad_total + (o_start[:, None, None] + o_width)
            grad += tl.load(p_start, mask=mask, other=0.0).to(WIDE)
        tl.store(p_grad_value + o_dense, grad, mask=mask)

    o_partial = tl.program_id(0).to(tl.int64) * WIDTH + o_width
    tl.store(p_grad_query + o_partial, tl.sum(grad_query, 0)[None, :, :], mask=m_width)
    if p_gain is not None:
        tl.store(p_grad_gain + o_partial, tl.sum(grad_gain, 0)[None, :, :], mask=m_width)


def merge_backward(
    grad_h: Tensor,
    grad_total: Tensor | None,
    prior: Tensor,
    p: Tensor,
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    h: Tensor | None,
    act: str,
    heads: int,
    groups: int,
    *,
    gain: Tensor | None = None,
    norm_eps: float = 0.0,
) -> tuple[Tensor, ...]:
    """Gradients of `merge_forward`: of the partial sum p, and so of both partial and output.

    grad_h: [..., D], of h, or with gain of the normed h.  grad_total: [..., D], what later readers of the
    sum send back.  h: not read; other backends may take delta from it.
    Returns grad_p [..., D] (grad_total included), delta [..., H] (zeros for sigmoid), grad_query [D] in
    float32 or wider; with gain also grad_gain [D] and the gradient of h [..., D] that goes to the history.
    """
    check_merge(prior, None, p, query, gain, act, heads, groups)
    width, wide = p.shape[-1], z.dtype
    grad_p = rows.empty(p.shape, p.dtype, p)
    delta = rows.empty(z.shape, wide, p)
    grad_mixed = None if gain is None else rows.empty(p.shape, p.dtype, p)
    if p.numel() == 0:
        zeros = torch.zeros(width, dtype=wide, device=p.device)
        first = (grad_p, delta, zeros)
        return first if grad_mixed is None else (*first, zeros.clone(), grad_mixed)
    view = rows.as_rows([grad_h, prior, p, *([] if grad_total is None else [grad_total])])
    tile = rows.row_tile(width, heads, per_thread=8)
    programs = rows.num_partials(view.num, tile.rows)
    grad_query = rows.empty((programs, width), wide, p)
    grad_gain = None if gain is None else rows.empty((programs, width), wide, p)
    launch(
        merge_backward_kernel,
        (programs,),
        tile.num_warps,
        p_upstream=view.tensors[0],
        upstream_outer=view.outer[0],
        upstream_inner=view.inner[0],
        p_grad_total=None if grad_total is None else view.tensors[3],
        total_outer=0 if grad_total is None else view.outer[3],
        total_inner=0 if grad_total is None else view.inner[3],
        p_prior=view.tensors[1],
        prior_outer=view.outer[1],
        prior_inner=view.inner[1],
        p_value=view.tensors[2],
        value_outer=view.outer[2],
        value_inner=view.inner[2],
        p_query=query.contiguous(),
        p_gain=None if gain is None else gain.contiguous(),
        p_z=z,
        p_inverse=inverse,
        p_lse=lse,
        p_grad_value=grad_p,
        p_delta=delta,
        p_grad_query=grad_query,
        p_grad_mixed=grad_mixed,
        p_grad_gain=grad_gain,
        num_rows=view.num,
        inner_size=view.inner_size,
        ACT=act,
        WIDTH=width,
        HEADS=heads,
        GROUPS=groups,
        NORM_EPS=norm_eps,
        SPLIT=view.split,
        WIDE=TYPES[wide],
        R=tile.rows,
        H=tile.heads,
        C=tile.channels,
    )
    if grad_gain is None or grad_mixed is None:
        return grad_p, delta, sum_partials(grad_query)
    return grad_p, delta, sum_partials(grad_query), sum_partials(grad_gain), grad_mixed


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """What the backward pass of a merge compiles, plain and with the sublayer's norm.

    sources: not used, a merge has two.
    """
    value, query = torch.empty(4096, width, dtype=dtype, device="meta"), torch.empty(width, device="meta")
    z = torch.empty(4096, 1, device="meta")
    with recording() as recorded:
        for gain in (None, query):
            merge_backward(
                value,
                value,
                value,
                value,
                query,
                z,
                z,
                z,
                value,
                "softmax",
                1,
                1,
                gain=gain,
                norm_eps=1e-8,
            )
    yield from recorded
