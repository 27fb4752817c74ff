# mypy: allow-untyped-defs, disable-error-code="assignment,misc"
"""Gradients of one source and of the R queries that scored it, in one pass over the source.

A program of `score_backward_kernel` owns a chunk of one head's channels and a share of the rows: it keeps
the queries' gradient in registers, takes one block of rows after another and writes the source's gradient
on the way. The shares are added up afterwards, in one order. Derivation in README.md. Letters as in score.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.addressing import row_start
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.score import ScoreTile, dot_precision, in_parts, query_parts
from repro.ops.triton.specialisation import Specialisation
from repro.ops.triton.sums import sum_partials


@triton.jit
def score_scalars_kernel(
    p_grad_z, s_m, s_r, s_h, p_z, p_inverse, p_raw, p_shrink, num_rows, num_queries,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, PARTS: tl.constexpr, WIDE: tl.constexpr,
    B_ROWS: tl.constexpr, B_LOGITS: tl.constexpr,
):  # fmt: skip
    """Gradients of q . v as [PARTS, H, M, R], whose sum they are, from those of the logits [M, R, H].

    And [M, G], by which the norm shrinks the source's gradient (nothing without norm, p_inverse None).
    """
    SHARED: tl.constexpr = HEADS // max(GROUPS, 1)
    group = tl.program_id(1)
    row = tl.program_id(0).to(tl.int64) * B_ROWS + tl.arange(0, B_ROWS)
    m_row = row < num_rows
    if p_inverse is not None:
        inverse = tl.load(p_inverse + row * GROUPS + group, mask=m_row, other=0.0).to(WIDE)
    else:
        inverse = tl.full([B_ROWS], 1.0, WIDE)
    # [rows, logits]
    b_product = tl.zeros([B_ROWS, B_LOGITS], WIDE)
    for begin in range(0, num_queries * SHARED, B_LOGITS):
        o = begin + tl.arange(0, B_LOGITS)
        mask = m_row[:, None] & (o < num_queries * SHARED)[None, :]
        if SHARED == 1:  # spelled out, so that neighbouring logits are loaded together
            query, head = o[None, :], group.to(tl.int64)
        else:
            query, head = (o // SHARED)[None, :], (group * SHARED + o % SHARED).to(tl.int64)[None, :]
        p_from = p_grad_z + row[:, None] * s_m + query * s_r + head * s_h
        b_raw = tl.load(p_from, mask=mask, other=0.0).to(WIDE)
        if p_inverse is not None:
            b_z = tl.load(p_z + (row[:, None] * num_queries + query) * HEADS + head, mask=mask, other=0.0)
            b_product += b_raw * b_z.to(WIDE)
            b_raw *= inverse[:, None]
        for part in tl.static_range(PARTS):
            p_to = p_raw + ((part * HEADS + head) * num_rows + row[:, None]) * num_queries + query
            b_part = b_raw.to(p_to.dtype.element_ty)
            tl.store(p_to, b_part, mask=mask)
            b_raw -= b_part.to(WIDE)
    if p_inverse is not None:
        shrink = tl.sum(b_product, axis=1) * inverse * inverse / (WIDTH // GROUPS)
        tl.store(p_shrink + row * GROUPS + group, shrink, mask=m_row)


@triton.jit
def score_backward_kernel(
    p_source, s_outer, s_inner, p_grad_in, s_in_outer, s_in_inner, p_raw, s_part, s_h, s_m, p_shrink,
    p_queries, s_query_part, p_grad_source, p_grad_queries, num_rows, num_queries, inner_size, num_blocks,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
    B_ROWS: tl.constexpr, B_QUERIES: tl.constexpr, B_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Gradient of the source [M, D], and each share's part of the queries' [shares, R, D].

    raw: [PARTS, H, M, R].  queries: [PARTS or more, R, D].  num_blocks: blocks of rows in a share.
    """
    HEAD_WIDTH: tl.constexpr = WIDTH // HEADS
    CHUNKS: tl.constexpr = (HEAD_WIDTH + B_CHANNELS - 1) // B_CHANNELS
    head = tl.program_id(0) // CHUNKS
    share = tl.program_id(1)
    o_head = tl.program_id(0) % CHUNKS * B_CHANNELS + tl.arange(0, B_CHANNELS)
    m_channel = (o_head < HEAD_WIDTH)[None, :]
    o_channel = (head * HEAD_WIDTH + o_head)[None, :]
    query = tl.arange(0, B_QUERIES)
    m_query = query < num_queries
    o_query = query.to(tl.int64)[:, None] * WIDTH + o_channel
    m_queries = m_query[:, None] & m_channel
    # [queries, channels]
    queries = ()
    for part in tl.static_range(PARTS):
        b_query = tl.load(p_queries + part * s_query_part + o_query, mask=m_queries, other=0.0)
        queries = queries + (b_query,)  # noqa: RUF005, tuples of tiles know no unpacking
    b_grad_query = tl.zeros([B_QUERIES, B_CHANNELS], WIDE)
    for block in range(num_blocks):
        row = (share * num_blocks + block).to(tl.int64) * B_ROWS + tl.arange(0, B_ROWS)
        m_row = row < num_rows
        mask = m_row[:, None] & m_channel
        # [rows, channels]
        o_source = row_start(row, inner_size, s_outer, s_inner, SPLIT)[:, None] + o_channel
        b_source = tl.load(p_source + o_source, mask=mask, other=0.0)
        b_value = b_source.to(WIDE)
        b_back = tl.zeros([B_ROWS, B_CHANNELS], WIDE)
        for part in tl.static_range(PARTS):
            # [rows, queries]
            p_part = p_raw + part * s_part + head.to(tl.int64) * s_h + row[:, None] * s_m + query[None, :]
            b_raw = tl.load(p_part, mask=m_row[:, None] & m_query[None, :], other=0.0)
            if b_back.dtype == tl.float64:
                b_back += tl.sum(b_raw[:, :, None] * queries[0][None, :, :], axis=1)
                b_grad_query += tl.sum(b_raw[:, :, None] * b_value[:, None, :], axis=0)
            elif PARTS == 1:
                b_back = tl.dot(b_raw, queries[0], b_back, input_precision=PRECISION)
                b_grad_query = tl.dot(tl.trans(b_raw), b_value, b_grad_query, input_precision=PRECISION)
            else:
                # The product of two last parts is below what is kept.
                for other in tl.static_range(PARTS - part):
                    b_back = tl.dot(b_raw, queries[other], b_back)
                b_grad_query = tl.dot(tl.trans(b_raw), b_source, b_grad_query)
        if GROUPS > 0:
            group = head if GROUPS > 1 else 0
            shrink = tl.load(p_shrink + row * GROUPS + group, mask=m_row, other=0.0)
            b_back -= shrink[:, None] * b_value
        if p_grad_in is not None:
            o_in = row_start(row, inner_size, s_in_outer, s_in_inner, SPLIT)[:, None] + o_channel
            b_back += tl.load(p_grad_in + o_in, mask=mask, other=0.0).to(WIDE)
        p_back = p_grad_source + row[:, None] * WIDTH + o_channel
        tl.store(p_back, b_back.to(p_back.dtype.element_ty), mask=mask)
    p_share = p_grad_queries + (share.to(tl.int64) * num_queries * WIDTH + o_query)
    tl.store(p_share, b_grad_query, mask=m_queries)


def backward_tile(num_queries: int, head_width: int, raw: Tensor) -> ScoreTile:
    """All queries at once up to 512 (256 unless bfloat16), and fewer channels and rows for it.

    raw: as the kernel takes it.
    """
    if raw.dtype == torch.float64:
        return ScoreTile(16, 16, 16, 4, 1)
    # float32 is cut in parts in registers.
    most = 512 if raw.element_size() == 2 else 256
    queries = min(max(rows.next_power_of_2(num_queries), 16), most)
    channels = min(max(16 * most // queries, 16), 128 if queries <= 16 else 64)
    channels = min(channels, max(rows.next_power_of_2(head_width), 16))
    return ScoreTile(min(max(8 * most // queries, 16), 64), queries, channels, 8, 2)


def score_backward(
    grad_z: Tensor,
    grad_in: Tensor | None,
    source: Tensor,
    queries: Tensor,
    z: Tensor,
    inverse: Tensor,
    heads: int,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """What logits with gradient [..., R, H] send to their source [..., D] and queries [R, D].

    grad_in: [..., D] to add, or None.  source: what was scored (the sum, where there was an addend).
    z, inverse: from `score_forward`.  Returns the source's gradient in its dtype, and the queries' in
    float32 or wider, the same bits in every run.
    """
    check_device(source)
    rows.check("score", [source])
    wide = compute_dtype(source, queries, z)
    num_queries, width = queries.shape
    grad_source = rows.empty(source.shape, source.dtype, source)
    if source.numel() == 0:
        return grad_source, torch.zeros_like(queries, dtype=wide)
    shape = (source.numel() // width, num_queries, heads)
    parts = 2 if in_parts(source.dtype, wide) else 1
    raw = rows.empty((parts, heads, *shape[:2]), source.dtype if parts > 1 else wide, source)
    shrink = rows.empty((shape[0], groups), wide, source) if groups else None
    inverse = inverse.contiguous() if groups else None
    _scalars(grad_z.reshape(shape), z.contiguous(), inverse, width, raw, shrink)
    carried, grad_queries = grad_in, []
    for group in rows.chunks(num_queries, backward_tile(num_queries, width // heads, raw).queries):
        into = grad_source if group.stop == num_queries else rows.empty(source.shape, wide, source)
        first = shrink if group.start == 0 else None
        part = query_parts(queries[group], source.dtype, wide)
        grad_queries.append(_launch_group(source, carried, raw[..., group], first, part, into))
        carried = into
    return grad_source, grad_queries[0] if len(grad_queries) == 1 else torch.cat(grad_queries)


def _scalars(
    grad_z: Tensor, z: Tensor, inverse: Tensor | None, width: int, raw: Tensor, shrink: Tensor | None
) -> None:
    """Fills raw [parts, H, M, R] and shrink [M, G] from grad_z [M, R, H]."""
    num_rows, num_queries, heads = grad_z.shape
    groups = 0 if shrink is None else shrink.shape[1]
    logits = min(rows.next_power_of_2(num_queries * heads // max(groups, 1)), 64)
    block = min(2048 // logits, 128)
    launch(
        score_scalars_kernel,
        (-(-num_rows // block), max(groups, 1)),
        4,
        p_grad_z=grad_z,
        **dict(zip(("s_m", "s_r", "s_h"), grad_z.stride(), strict=True)),
        p_z=z,
        p_inverse=inverse,
        p_raw=raw,
        p_shrink=shrink,
        num_rows=num_rows,
        num_queries=num_queries,
        WIDTH=width,
        HEADS=heads,
        GROUPS=groups,
        PARTS=len(raw),
        WIDE=TYPES[z.dtype],
        B_ROWS=block,
        B_LOGITS=logits,
    )


def _launch_group(
    source: Tensor,
    grad_in: Tensor | None,
    raw: Tensor,
    shrink: Tensor | None,
    queries: Tensor,
    into: Tensor,
) -> Tensor:
    """One pass over the source for at most 512 queries: fills `into`, returns the queries' gradient [R, D].

    raw: [parts, H, M, R].  shrink: [M, G], None without norm.  queries: [parts or more, R, D].
    """
    num_parts, heads, num_rows, num_queries = raw.shape
    width = source.shape[-1]
    wide = torch.float64 if raw.dtype == torch.float64 else torch.float32
    tile = backward_tile(num_queries, width // heads, raw)
    num_chunks = heads * -(-(width // heads) // tile.channels)
    num_tiles = -(-num_rows // tile.rows)
    num_blocks = -(-num_tiles // max(1, rows.NUM_PARTIALS // num_chunks))
    shares = -(-num_tiles // num_blocks)
    partial = rows.empty((shares, num_queries, width), wide, source)
    view = rows.as_rows([source] if grad_in is None else [source, grad_in])
    launch(
        score_backward_kernel,
        (num_chunks, shares),
        tile.num_warps,
        num_stages=tile.num_stages,
        p_source=view.tensors[0],
        s_outer=view.outer[0],
        s_inner=view.inner[0],
        p_grad_in=None if grad_in is None else view.tensors[1],
        s_in_outer=view.outer[-1],
        s_in_inner=view.inner[-1],
        p_raw=raw,
        **dict(zip(("s_part", "s_h", "s_m"), raw.stride(), strict=False)),
        p_shrink=shrink,
        p_queries=queries,
        s_query_part=queries.stride(0),
        p_grad_source=into,
        p_grad_queries=partial,
        num_rows=num_rows,
        num_queries=num_queries,
        inner_size=view.inner_size,
        num_blocks=num_blocks,
        WIDTH=width,
        HEADS=heads,
        GROUPS=0 if shrink is None else shrink.shape[1],
        PARTS=num_parts,
        PRECISION=dot_precision(),
        SPLIT=view.split,
        WIDE=TYPES[wide],
        B_ROWS=tile.rows,
        B_QUERIES=tile.queries,
        B_CHANNELS=tile.channels,
    )
    return sum_partials(partial)


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """A source that 16 and 128 reads have scored, other gradients added; `sources` does not matter here."""
    source = torch.empty(16384, width, dtype=dtype, device="meta")
    wide = compute_dtype(source)
    with recording() as found:
        for num_queries in (16, 128):
            queries = torch.empty(num_queries, width, dtype=wide, device="meta")
            z = torch.empty(16384, num_queries, 1, dtype=wide, device="meta")
            score_backward(z, source, source, queries, z, z[:, 0], 1, 1)
    yield from found
