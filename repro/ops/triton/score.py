# mypy: allow-untyped-defs
"""One source against R queries in one pass over it: logits q . RMSNorm(v), key norm and sum with an addend.

A product of matrices, rows by channels times channels by queries. A program owns a few rows, all queries
(512 at most) and one head; it walks over the head's channels and adds up the squares on the way. Logits are
accurate to float32 whatever the sources' type (`query_parts`). Derivation in README.md. Letters: R queries,
H heads, G root mean squares per row (0, 1 or H), D width, "..." any leading axes, M rows (their product).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.addressing import row_start
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.mix_scalars import SCALARS
from repro.ops.triton.specialisation import Specialisation


@triton.jit
def score_forward_kernel(
    p_source, s_outer, s_inner, p_addend, s_addend_outer, s_addend_inner, p_queries, p_total, p_z, p_inverse,
    p_squares, num_rows, num_queries, inner_size,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, GROUPS: tl.constexpr, EPS: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
    B_ROWS: tl.constexpr, B_QUERIES: tl.constexpr, B_CHANNELS: tl.constexpr,
):  # fmt: skip
    """Logits [M, R, H], inverse RMS [M, G] and source + addend [M, D].

    queries: [PARTS, R, D], whose sum they are.  p_squares: [M, H], given where the norm is over several
    heads; logits are then left without it (`rescale_kernel`).
    """
    HEAD_WIDTH: tl.constexpr = WIDTH // HEADS
    blocks = tl.cdiv(num_queries, B_QUERIES)
    block = tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks % HEADS
    row = (tl.program_id(0) // (blocks * HEADS)).to(tl.int64) * B_ROWS + tl.arange(0, B_ROWS)
    query = block * B_QUERIES + tl.arange(0, B_QUERIES)
    m_row = row < num_rows
    m_query = query < num_queries
    o_source = row_start(row, inner_size, s_outer, s_inner, SPLIT)[:, None]
    b_z = tl.zeros([B_ROWS, B_QUERIES], WIDE)
    b_squares = tl.zeros([B_ROWS, B_CHANNELS], WIDE)
    for begin in range(0, HEAD_WIDTH, B_CHANNELS):
        o_head = begin + tl.arange(0, B_CHANNELS)
        o_channel = head * HEAD_WIDTH + o_head
        mask = m_row[:, None] & (o_head < HEAD_WIDTH)[None, :]
        # [rows, channels]
        b_source = tl.load(p_source + o_source + o_channel[None, :], mask=mask, other=0.0)
        if p_addend is not None:
            o_addend = row_start(row, inner_size, s_addend_outer, s_addend_inner, SPLIT)[:, None]
            b_addend = tl.load(p_addend + o_addend + o_channel[None, :], mask=mask, other=0.0)
            # Rounded before it is scored: the logits are those of what is stored.
            b_source = (b_source.to(WIDE) + b_addend.to(WIDE)).to(b_source.dtype)
            m_first = mask & (block == 0)
            tl.store(p_total + row[:, None] * WIDTH + o_channel[None, :], b_source, mask=m_first)
        b_value = b_source.to(WIDE)
        b_squares += b_value * b_value
        m_part = (o_head < HEAD_WIDTH)[:, None] & m_query[None, :]
        for part in tl.static_range(PARTS):
            # [channels, queries]
            o_query = (part * num_queries + query).to(tl.int64)[None, :] * WIDTH + o_channel[:, None]
            b_query = tl.load(p_queries + o_query, mask=m_part, other=0.0)
            if b_z.dtype == tl.float64:
                b_z += tl.sum(b_value[:, :, None] * b_query.to(WIDE)[None, :, :], axis=1)
            elif PARTS > 1:
                b_z = tl.dot(b_source, b_query, b_z)
            else:
                b_z = tl.dot(b_value, b_query, b_z, input_precision=PRECISION)
    square = tl.sum(b_squares, axis=1)
    if p_squares is not None:
        tl.store(p_squares + row * HEADS + head, square, mask=m_row & (block == 0))
    elif GROUPS > 0:
        inverse = tl.rsqrt(square / HEAD_WIDTH + tl.full([1], EPS, WIDE))
        b_z *= inverse[:, None]
        tl.store(p_inverse + row * GROUPS + head, inverse, mask=m_row & (block == 0))
    p_row = p_z + row[:, None] * num_queries * HEADS
    tl.store(p_row + query[None, :] * HEADS + head, b_z, mask=m_row[:, None] & m_query[None, :])


@triton.jit
def rescale_kernel(
    p_z, p_squares, p_inverse, num, num_queries,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, EPS: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Inverse RMS [M] over all heads from their sums of squares [M, H], and its product with z [M, R, H]."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < num
    row = o // (num_queries * HEADS)
    square = tl.zeros([BLOCK], WIDE)
    for head in range(HEADS):
        square += tl.load(p_squares + row * HEADS + head, mask=mask, other=0.0)
    inverse = tl.rsqrt(square / WIDTH + tl.full([1], EPS, WIDE))
    tl.store(p_z + o, tl.load(p_z + o, mask=mask, other=0.0) * inverse, mask=mask)
    tl.store(p_inverse + row, inverse, mask=mask & (o % (num_queries * HEADS) == 0))


class ScoreTile(NamedTuple):
    """Block of rows, queries and channels of a product, its warps and stages of its pipeline."""

    rows: int
    queries: int
    channels: int
    num_warps: int
    num_stages: int


def score_tile(num_queries: int, dtype: torch.dtype, wide: torch.dtype) -> ScoreTile:
    """All queries at once up to 512, and fewer rows and channels for it; small cubes in float64."""
    if wide == torch.float64:
        return ScoreTile(16, 16, 16, 4, 1)
    queries = min(max(rows.next_power_of_2(num_queries), 16), 512)
    # Anything but bfloat16 is cut in parts in registers.
    most = (128 if queries == 16 else 64) if dtype == torch.bfloat16 else 32
    channels = min(max(4096 // queries, 16), most)
    return ScoreTile(min(64, 8192 // queries), queries, channels, 4 if queries < 512 else 8, 3)


def dot_precision() -> str:
    """How matrix units multiply float32: in three products of their own type, 22 bits and more."""
    return "ieee" if torch.version.hip else "tf32x3"


def in_parts(dtype: torch.dtype, wide: torch.dtype) -> bool:
    """Whether products with the sources are sums of products in the sources' own type.

    Three bfloat16 carry the 24 bits of a float32, and their products with bfloat16 sources are exact.
    float16 has no exponent for this; such sources are multiplied as float32.
    """
    return dtype == torch.bfloat16 and wide == torch.float32


def query_parts(queries: Tensor, dtype: torch.dtype, wide: torch.dtype) -> Tensor:
    """Queries as a sum of tensors of a type that a matrix unit multiplies with the sources: [parts, R, D]."""
    if not in_parts(dtype, wide):
        return queries.to(wide).contiguous().unsqueeze(0)
    rest = queries.float()
    parts = []
    for _ in range(3):
        parts.append(rest.to(dtype))
        rest = rest - parts[-1].float()
    return torch.stack(parts)


def score_forward(
    source: Tensor, addend: Tensor | None, queries: Tensor, heads: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of a source [..., D] (plus addend [..., D]) against queries [R, D] with gains folded in.

    groups: root mean squares of a key, 0 (no key norm), 1 (over the width) or H (over each head's channels).
    Returns z [..., R, H] and inverse [..., G] in float32 or wider, and source + addend in the source's
    dtype, rounded before it is scored (empty without addend).
    """
    check_device(source)
    rows.check("score", [source])
    wide = compute_dtype(source, queries, addend)
    lead, width, num_queries = source.shape[:-1], source.shape[-1], queries.shape[0]
    z = rows.empty((*lead, num_queries, heads), wide, source)
    inverse = rows.empty((*lead, groups), wide, source)
    total = rows.empty((0,) if addend is None else source.shape, source.dtype, source)
    if source.numel() == 0:
        return z, inverse, total
    view = rows.as_rows([source] if addend is None else [source, addend])
    parts = query_parts(queries, source.dtype, wide)
    tile = score_tile(num_queries, source.dtype, wide)
    over_heads = groups == 1 and heads > 1
    squares = rows.empty((view.num, heads), wide, source) if over_heads else None
    num_programs = -(-view.num // tile.rows) * heads * -(-num_queries // tile.queries)
    if num_programs > rows.MAX_ROWS:
        raise ValueError(f"score: {view.num} rows need {num_programs} programs, a grid holds {rows.MAX_ROWS}")
    launch(
        score_forward_kernel,
        (num_programs,),
        tile.num_warps,
        num_stages=tile.num_stages,
        p_source=view.tensors[0],
        s_outer=view.outer[0],
        s_inner=view.inner[0],
        p_addend=None if addend is None else view.tensors[1],
        s_addend_outer=view.outer[-1],
        s_addend_inner=view.inner[-1],
        p_queries=parts,
        p_total=None if addend is None else total,
        p_z=z,
        p_inverse=None if groups == 0 else inverse,
        p_squares=squares,
        num_rows=view.num,
        num_queries=num_queries,
        inner_size=view.inner_size,
        WIDTH=width,
        HEADS=heads,
        GROUPS=groups,
        EPS=eps,
        PARTS=len(parts),
        PRECISION=dot_precision(),
        SPLIT=view.split,
        WIDE=TYPES[wide],
        B_ROWS=tile.rows,
        B_QUERIES=tile.queries,
        B_CHANNELS=tile.channels,
    )
    if over_heads:
        launch(
            rescale_kernel,
            (-(-z.numel() // SCALARS),),
            4,
            p_z=z,
            p_squares=squares,
            p_inverse=inverse,
            num=z.numel(),
            num_queries=num_queries,
            WIDTH=width,
            HEADS=heads,
            EPS=eps,
            WIDE=TYPES[wide],
            BLOCK=SCALARS,
        )
    return z, inverse, total


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """A written source against 16 and 128 reads, with a block's sum; `sources` does not matter here."""
    source = torch.empty(16384, width, dtype=dtype, device="meta")
    with recording() as found:
        for num_queries, addend in ((16, None), (128, source)):
            queries = torch.empty(num_queries, width, dtype=compute_dtype(source), device="meta")
            score_forward(source, addend, queries, 1, 1, 1e-8)
    yield from found
