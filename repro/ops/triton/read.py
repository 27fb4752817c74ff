# mypy: allow-untyped-defs
"""One read, forward: sources scored, normalised and summed in one pass over them (Eqs. 2 to 4).

A program holds whole rows in registers and takes one source after another; the softmax is rescaled as it
goes, so every source is loaded once. README.md derives the online softmax and the carried mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.specialisation import Specialisation

ACTS = ("softmax", "sigmoid", "sigmoid_normalized")


@triton.jit
def read_forward_kernel(
    p_sources,
    source_outer,
    source_inner,
    p_query,
    query_outer,
    query_inner,
    p_prior,
    p_prior_lse,
    p_mixed,
    p_z,
    p_inverse,
    p_lse,
    num_sources,
    num_rows,
    inner_size,
    ACT: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    EPS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    SAME: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
):
    CHANNELS: tl.constexpr = WIDTH // HEADS
    NUM_POINTERS: tl.constexpr = len(p_sources)
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    o_head = tl.arange(0, H)
    o_channel = tl.arange(0, C)
    m_row = o_row < num_rows
    # [R, H, C]
    mask = m_row[:, None, None] & (o_head < HEADS)[None, :, None] & (o_channel < CHANNELS)[None, None, :]
    o_width = (o_head * CHANNELS)[None, :, None] + o_channel[None, None, :]
    # [R, H]
    o_lse = (o_row * HEADS)[:, None] + o_head[None, :]
    m_heads = m_row[:, None] & (o_head < HEADS)[None, :]
    if SPLIT:
        i_outer, i_inner = o_row // inner_size, o_row % inner_size
    else:
        i_outer, i_inner = tl.zeros_like(o_row), o_row

    if PER_TOKEN:
        o_query = i_outer * query_outer + i_inner * query_inner
        query = tl.load(p_query + (o_query[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
    else:
        m_width = (o_head < HEADS)[None, :, None] & (o_channel < CHANNELS)[None, None, :]
        query = tl.load(p_query + o_width, mask=m_width, other=0.0).to(WIDE)

    if p_prior is not None:
        acc = tl.load(p_prior + (o_row * WIDTH)[:, None, None] + o_width, mask=mask, other=0.0)
        top = tl.load(p_prior_lse + o_lse, mask=m_heads, other=0.0)
        total = tl.full([R, H], 1.0, WIDE)
    else:
        acc = tl.zeros([R, H, C], WIDE)
        top = tl.full([R, H], float("-inf"), WIDE)
        total = tl.zeros([R, H], WIDE)

    # The next source is on its way while this one is reduced. The branch is on a count known at launch:
    # one compiled form serves several counts, and no accumulation is put off to the end, with all sources
    # in registers until then.
    if SAME:
        o_start = i_outer * source_outer + i_inner * source_inner
    else:
        o_start = i_outer * source_outer[0] + i_inner * source_inner[0]
    o_source = o_start[:, None, None] + o_width
    o_scalar = o_row
    coming = tl.load(p_sources[0] + o_source, mask=mask, other=0.0)
    for i in tl.static_range(NUM_POINTERS):
        if i < num_sources:
            value = coming.to(WIDE)
            if i + 1 < NUM_POINTERS:
                if not SAME:
                    o_start = i_outer * source_outer[i + 1] + i_inner * source_inner[i + 1]
                    o_source = o_start[:, None, None] + o_width
                m_next = mask & (i + 1 < num_sources)
                coming = tl.load(p_sources[i + 1] + o_source, mask=m_next, other=0.0)

            z = tl.sum(value * query, 2)
            if GROUPS > 0:
                square = tl.sum(value * value, 2)
                if GROUPS == 1:
                    square = tl.sum(square, 1)[:, None]
                inverse = tl.rsqrt(square / (WIDTH // GROUPS) + tl.full([1, 1], EPS, WIDE))
                z = z * inverse
                if GROUPS == 1:
                    tl.store(p_inverse + o_scalar[:, None], inverse, mask=m_row[:, None])
                else:
                    o_group = (o_scalar * GROUPS)[:, None] + o_head[None, :]
                    tl.store(p_inverse + o_group, inverse, mask=m_heads)
            tl.store(p_z + (o_scalar * HEADS)[:, None] + o_head[None, :], z, mask=m_heads)
            o_scalar += num_rows

            if ACT == "sigmoid":
                acc += (1.0 / (1.0 + tl.exp(-z)))[:, :, None] * value
            else:
                if ACT == "sigmoid_normalized":
                    z = tl.minimum(z, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(z)))
                new_top = tl.maximum(top, z)
                shrink = tl.exp(top - new_top)
                weight = tl.exp(z - new_top)
                acc = acc * shrink[:, :, None] + weight[:, :, None] * value
                total = total * shrink + weight
                top = new_top

    if ACT != "sigmoid":
        acc = acc * (1.0 / total)[:, :, None]
        tl.store(p_lse + o_lse, top + tl.log(total), mask=m_heads)
    else:
        tl.store(p_lse + o_lse, tl.zeros([R, H], WIDE), mask=m_heads)
    tl.store(p_mixed + (o_row * WIDTH)[:, None, None] + o_width, acc, mask=mask)


def check_read(sources: Sequence[Tensor], query: Tensor, act: str, heads: int, groups: int) -> None:
    """ValueError on what a read's kernels cannot serve."""
    if not sources:
        raise ValueError("sources must be a non-empty list of tensors [..., D]")
    width = sources[0].shape[-1]
    if act not in ACTS:
        raise ValueError(f"act {act!r} is not one of {', '.join(ACTS)}")
    if heads < 1 or width % heads:
        raise ValueError(f"heads must divide the width {width}, got {heads}")
    if groups not in (0, 1, heads):
        raise ValueError(f"groups must be 0, 1 or the number of heads {heads}, got {groups}")
    if query.shape[-1] != width or query.dim() not in (1, sources[0].dim()):
        raise ValueError(f"query must be [{width}] or {list(sources[0].shape)}, got {list(query.shape)}")
    rows.check("sources", sources)
    rows.check("query", [query])
    check_device(sources[0])


def read_forward(
    sources: Sequence[Tensor], query: Tensor, act: str, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One read of S sources [..., D] by a query [D] or [..., D] with its gain folded in.

    act: softmax, sigmoid, sigmoid_normalized.  heads: channel groups H with weights of their own.
    groups: G, number of RMS per source (0: raw keys, 1, or H).
    Returns mixed [..., D] in the sources' dtype; logits z [S, ..., H], 1 / RMS [S, ..., G] and the
    log-sum-exp [..., H] of what is exponentiated (zeros for sigmoid), in float32 or wider. ValueError
    before any launch on what the kernels cannot serve.
    """
    check_read(sources, query, act, heads, groups)
    first = sources[0]
    lead, width, num = first.shape[:-1], first.shape[-1], len(sources)
    wide = compute_dtype(first, query)
    mixed = rows.empty(first.shape, first.dtype, first)
    z = rows.empty((num, *lead, heads), wide, first)
    inverse = rows.empty((num, *lead, groups), wide, first)
    lse = rows.empty((*lead, heads), wide, first)
    if mixed.numel() == 0:
        return mixed, z, inverse, lse
    per_token = query.dim() == first.dim() and first.dim() > 1
    view = rows.as_rows([*sources, query] if per_token else sources)
    tile = rows.row_tile(width, heads, per_thread=16)
    parts = rows.chunks(num)
    carried = rows.empty(first.shape, wide, first) if len(parts) > 1 else None
    for i, part in enumerate(parts):
        outer, inner = rows.strides(view.outer[part], view.inner[part])
        launch(
            read_forward_kernel,
            (-(-view.num // tile.rows),),
            tile.num_warps,
            p_sources=rows.padded(view.tensors[part]),
            source_outer=outer,
            source_inner=inner,
            p_query=view.tensors[num] if per_token else query.contiguous(),
            query_outer=view.outer[num] if per_token else 0,
            query_inner=view.inner[num] if per_token else 0,
            p_prior=carried if i else None,
            p_prior_lse=lse if i else None,
            p_mixed=mixed if i + 1 == len(parts) else carried,
            p_z=z[part],
            p_inverse=inverse[part],
            p_lse=lse,
            num_sources=part.stop - part.start,
            num_rows=view.num,
            inner_size=view.inner_size,
            ACT=act,
            WIDTH=width,
            HEADS=heads,
            GROUPS=groups,
            EPS=eps,
            PER_TOKEN=per_token,
            SAME=isinstance(outer, int),
            SPLIT=view.split,
            WIDE=TYPES[wide],
            R=tile.rows,
            H=tile.heads,
            C=tile.channels,
        )
    return mixed, z, inverse, lse


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """What a read of `sources` sources with key norm and one head compiles."""
    values = [torch.empty(4096, width, dtype=dtype, device="meta") for _ in range(sources)]
    query = torch.empty(width, device="meta")
    with recording() as recorded:
        read_forward(values, query, "softmax", 1, 1, 1e-8)
    yield from recorded
