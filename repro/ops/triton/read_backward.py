# mypy: allow-untyped-defs
"""One read, backward: the gradient of every source in one pass over them, and that of the query.

With Delta = g . h known beforehand, source i needs only itself, the upstream gradient and a few scalars
(README.md): dz = a (g . v - Delta), dv = a g + dz dz/dv. A program takes rows in turn and keeps its share
of the query's gradient in registers; `sum_partials` adds the shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import log_sigmoid
from repro.ops.triton import rows
from repro.ops.triton.launch import TYPES, launch, recording
from repro.ops.triton.read import check_read
from repro.ops.triton.specialisation import Specialisation
from repro.ops.triton.sums import sum_partials


@triton.jit
def read_backward_kernel(
    p_sources,
    source_outer,
    source_inner,
    p_grads,
    p_query,
    query_outer,
    query_inner,
    p_upstream,
    upstream_outer,
    upstream_inner,
    p_mixed,
    mixed_outer,
    mixed_inner,
    p_z,
    p_inverse,
    p_lse,
    p_grad_z,
    p_grad_lse,
    p_grad_query,
    p_keys,
    p_exact,
    num_sources,
    num_rows,
    inner_size,
    ACT: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    ALONE: tl.constexpr,
    CORRECT: tl.constexpr,
    SAME: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
):
    CHANNELS: tl.constexpr = WIDTH // HEADS
    NUM_POINTERS: tl.constexpr = len(p_sources)
    o_head = tl.arange(0, H)
    o_channel = tl.arange(0, C)
    # [1, H, C]
    m_width = (o_head < HEADS)[None, :, None] & (o_channel < CHANNELS)[None, None, :]
    o_width = (o_head * CHANNELS)[None, :, None] + o_channel[None, None, :]
    if not PER_TOKEN:
        query = tl.load(p_query + o_width, mask=m_width, other=0.0).to(WIDE)
    grad_query = tl.zeros([R, H, C], WIDE)

    for block in range(tl.program_id(0), tl.cdiv(num_rows, R), tl.num_programs(0)):
        o_row = (tl.zeros([R], tl.int64) + block) * R + tl.arange(0, R)
        m_row = o_row < num_rows
        mask = m_row[:, None, None] & m_width
        # [R, H]
        m_heads = m_row[:, None] & (o_head < HEADS)[None, :]
        o_heads = (o_row * HEADS)[:, None] + o_head[None, :]
        o_dense = (o_row * WIDTH)[:, None, None] + o_width
        if SPLIT:
            i_outer, i_inner = o_row // inner_size, o_row % inner_size
        else:
            i_outer, i_inner = tl.zeros_like(o_row), o_row

        o_start = i_outer * upstream_outer + i_inner * upstream_inner
        upstream = tl.load(p_upstream + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
        if PER_TOKEN:
            o_start = i_outer * query_outer + i_inner * query_inner
            query = tl.load(p_query + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
            if FIRST:
                grad_query = tl.zeros([R, H, C], WIDE)
            else:
                grad_query = tl.load(p_grad_query + o_dense, mask=mask, other=0.0)
        if ACT != "sigmoid":
            lse = tl.load(p_lse + o_heads, mask=m_heads, other=0.0)
        if ACT != "sigmoid" and not ALONE:
            o_start = i_outer * mixed_outer + i_inner * mixed_inner
            mixed = tl.load(p_mixed + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
            delta = tl.sum(upstream * mixed, 2)
        if p_grad_lse is not None:
            grad_lse = tl.load(p_grad_lse + o_heads, mask=m_heads, other=0.0).to(WIDE)

        # Two sources are on their way while one is used: few rows fit a multiprocessor at a time.
        if SAME:
            o_start = i_outer * source_outer + i_inner * source_inner
        else:
            o_start = i_outer * source_outer[0] + i_inner * source_inner[0]
        o_source = o_start[:, None, None] + o_width
        coming = tl.load(p_sources[0] + o_source, mask=mask, other=0.0)
        later = coming
        if NUM_POINTERS > 1:
            if not SAME:
                o_start = i_outer * source_outer[1] + i_inner * source_inner[1]
                o_source = o_start[:, None, None] + o_width
            later = tl.load(p_sources[1] + o_source, mask=mask & (num_sources > 1), other=0.0)
        o_scalar = o_row
        if CORRECT:
            exact = tl.zeros([R, H], WIDE)
            keys = tl.zeros([R, H, C], WIDE)
            if not FIRST:
                exact = tl.load(p_exact + o_heads, mask=m_heads, other=0.0)
                keys = tl.load(p_keys + o_dense, mask=mask, other=0.0)
        for i in tl.static_range(NUM_POINTERS):
            if i < num_sources:
                value = coming.to(WIDE)
                coming = later
                if i + 2 < NUM_POINTERS:
                    if not SAME:
                        o_start = i_outer * source_outer[i + 2] + i_inner * source_inner[i + 2]
                        o_source = o_start[:, None, None] + o_width
                    m_later = mask & (i + 2 < num_sources)
                    later = tl.load(p_sources[i + 2] + o_source, mask=m_later, other=0.0)

                o_z = (o_scalar * HEADS)[:, None] + o_head[None, :]
                z = tl.load(p_z + o_z, mask=m_heads, other=0.0)
                product = tl.sum(upstream * value, 2)
                if ACT != "softmax":
                    # Both sigmoids from one exponential that cannot overflow.
                    small = tl.exp(-tl.abs(z))
                    sigmoid = tl.where(z < 0, small, 1.0) / (1.0 + small)
                    opposite = tl.where(z < 0, 1.0, small) / (1.0 + small)
                if ACT == "sigmoid":
                    weight = sigmoid
                    grad_z = weight * opposite * product
                else:
                    if ACT == "softmax":
                        weight = tl.exp(z - lse)
                    else:
                        weight = tl.exp(tl.minimum(z, 0.0) - tl.log(1.0 + small) - lse)
                    if ALONE:
                        delta = product
                    grad_z = weight * (product - delta)
                    if p_grad_lse is not None:
                        grad_z += weight * grad_lse
                    if CORRECT:
                        exact += weight * product
                        share = weight
                    if ACT == "sigmoid_normalized":
                        grad_z *= opposite
                        if CORRECT:
                            share = weight * opposite
                if p_grad_z is not None:
                    grad_z += tl.load(p_grad_z + o_z, mask=m_heads, other=0.0).to(WIDE)

                grad = weight[:, :, None] * upstream
                if GROUPS > 0:
                    if GROUPS == 1:
                        inverse = tl.load(p_inverse + o_scalar[:, None], mask=m_row[:, None], other=0.0)
                        back = tl.sum(grad_z * z, 1)[:, None]
                    else:
                        o_group = (o_scalar * GROUPS)[:, None] + o_head[None, :]
                        inverse = tl.load(p_inverse + o_group, mask=m_heads, other=0.0)
                        back = grad_z * z
                    # dz/dv = q / RMS - z v / (n RMS^2)
                    grad_z = grad_z * inverse
                    if CORRECT:
                        share = share * inverse
                    back = back * inverse * inverse / (WIDTH // GROUPS)
                    grad -= back[:, :, None] * value
                grad += grad_z[:, :, None] * query
                grad_query += grad_z[:, :, None] * value
                if CORRECT:
                    keys += share[:, :, None] * value
                tl.store(p_grads[i] + o_dense, grad, mask=mask)
                o_scalar += num_rows
        if CORRECT:
            if LAST:
                grad_query -= (exact - delta)[:, :, None] * keys
            else:
                tl.store(p_exact + o_heads, exact, mask=m_heads)
                tl.store(p_keys + o_dense, keys, mask=mask)
        if PER_TOKEN:
            tl.store(p_grad_query + o_dense, grad_query, mask=mask)

    if not PER_TOKEN:
        p_partial = p_grad_query + tl.program_id(0).to(tl.int64) * WIDTH
        tl.store(p_partial + o_width, tl.sum(grad_query, 0)[None, :, :], mask=m_width)


def _through_weights(grad_weights: Tensor, z: Tensor, lse: Tensor, act: str) -> tuple[Tensor, Tensor | None]:
    """Gradient of the weights [S, ..., H] as that of z and of lse: scalars only, so plain operations."""
    if act == "sigmoid":
        weights = torch.sigmoid(z)
        return grad_weights * weights * (1 - weights), None
    if act == "softmax":
        grad_z = grad_weights * torch.exp(z - lse)
        return grad_z, -grad_z.sum(0)
    grad_z = grad_weights * torch.exp(log_sigmoid(z) - lse)
    return grad_z * torch.sigmoid(-z), -grad_z.sum(0)


def read_backward(
    grad: Tensor,
    grad_weights: Tensor | None,
    mixed: Tensor,
    sources: Sequence[Tensor],
    query: Tensor,
    z: Tensor,
    inverse: Tensor,
    lse: Tensor,
    act: str,
    heads: int,
    groups: int,
    *,
    grad_z: Tensor | None = None,
    grad_lse: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of `read_forward`: of every source, contiguous and in its dtype, and of the query.

    grad: [..., D], of the mixed sources.  mixed, z, inverse, lse: as returned by the forward pass.
    grad_weights: [S, ..., H], of the weights, or grad_z [S, ..., H] and grad_lse [..., H], of what they
    are made of; None where not used. The query's gradient is in float32 or wider, bit-identical from run
    to run, and exactly zero where one source has all the weight by construction.
    """
    check_read(sources, query, act, heads, groups)
    first, num = sources[0], len(sources)
    width, wide = first.shape[-1], z.dtype
    per_token = query.dim() == first.dim() and first.dim() > 1
    alone = num == 1 and act != "sigmoid"
    if grad_weights is not None and not alone:
        grad_z, grad_lse = _through_weights(grad_weights, z, lse, act)
    if first.numel() == 0 or (alone and grad_z is None and grad_lse is None):
        # Of one source the weight is one whatever the query: no rounding may leave a gradient behind.
        zeros = torch.zeros(query.shape, dtype=wide, device=query.device)
        same = grad.to(first.dtype, memory_format=torch.contiguous_format, copy=True)
        return [same, *(same.clone() for _ in sources[1:])], zeros
    grads = [rows.empty(first.shape, first.dtype, first) for _ in sources]
    view = rows.as_rows([*sources, grad, mixed, *([query] if per_token else [])])
    tile = rows.row_tile(width, heads, per_thread=8)
    parts = rows.chunks(num)
    # h is rounded (in float32 too: a sharp query's gradient loses digits), so delta = g . h is not quite the
    # sum of a (g . v). It is good enough for the sources, but what remains of the query's gradient can be
    # smaller; that takes the difference back at the end.
    # Chained launches carry it, which float32 does without.
    correct = wide == torch.float32 and act != "sigmoid" and not alone
    correct = correct and (first.dtype != wide or len(parts) == 1)
    carried = correct and len(parts) > 1
    blocks = -(-view.num // tile.rows)
    if per_token:
        programs = blocks
        grad_query = rows.empty(query.shape, wide, first)
    else:
        programs = rows.num_partials(view.num, tile.rows)
        grad_query = rows.empty((len(parts), programs, width), wide, first)
    keys = rows.empty(first.shape, wide, first) if carried else None
    exact = rows.empty(lse.shape, wide, first) if carried else None
    for i, part in enumerate(parts):
        outer, inner = rows.strides(view.outer[part], view.inner[part])
        launch(
            read_backward_kernel,
            (programs,),
            tile.num_warps,
            p_sources=rows.padded(view.tensors[part]),
            source_outer=outer,
            source_inner=inner,
            p_grads=rows.padded(tuple(grads[part])),
            p_query=view.tensors[num + 2] if per_token else query.contiguous(),
            query_outer=view.outer[num + 2] if per_token else 0,
            query_inner=view.inner[num + 2] if per_token else 0,
            p_upstream=view.tensors[num],
            upstream_outer=view.outer[num],
            upstream_inner=view.inner[num],
            p_mixed=view.tensors[num + 1],
            mixed_outer=view.outer[num + 1],
            mixed_inner=view.inner[num + 1],
            p_z=z[part],
            p_inverse=inverse[part],
            p_lse=lse,
            p_grad_z=None if grad_z is None else grad_z[part].contiguous(),
            p_grad_lse=None if grad_lse is None else grad_lse.contiguous(),
            p_grad_query=grad_query if per_token else grad_query[i],
            p_keys=keys,
            p_exact=exact,
            num_sources=part.stop - part.start,
            num_rows=view.num,
            inner_size=view.inner_size,
            ACT=act,
            WIDTH=width,
            HEADS=heads,
            GROUPS=groups,
            PER_TOKEN=per_token,
            FIRST=i == 0,
            LAST=i + 1 == len(parts),
            ALONE=alone,
            CORRECT=correct,
            SAME=isinstance(outer, int),
            SPLIT=view.split,
            WIDE=TYPES[wide],
            R=tile.rows,
            H=tile.heads,
            C=tile.channels,
        )
    return grads, grad_query if per_token else sum_partials(grad_query.flatten(0, 1))


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """What the backward pass of a read of `sources` sources with key norm and one head compiles."""
    values = [torch.empty(4096, width, dtype=dtype, device="meta") for _ in range(sources)]
    query, z = torch.empty(width, device="meta"), torch.empty(sources, 4096, 1, device="meta")
    with recording() as recorded:
        read_backward(values[0], None, values[0], values, query, z, z, z[0], "softmax", 1, 1)
    yield from recorded
