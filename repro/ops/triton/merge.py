# mypy: allow-untyped-defs
"""The merge of Algorithm 1, forward: a read of the history joined by the block's partial sum.

In one pass over a row the partial sum takes in the sublayer's output, is scored and merged with the mix of
the history (`prior`, standing for exp(prior_lse) worth of weight), and, if asked, the RMSNorm of the
sublayer that follows is applied, so the mixed stream itself is never stored. Derivation in README.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.specialisation import Specialisation

ACTS = ("softmax", "sigmoid")


@triton.jit
def merge_forward_kernel(
    p_prior,
    prior_outer,
    prior_inner,
    p_partial,
    partial_outer,
    partial_inner,
    p_output,
    output_outer,
    output_inner,
    p_prior_lse,
    p_query,
    p_gain,
    p_mixed,
    p_total,
    p_z,
    p_inverse,
    p_lse,
    num_rows,
    inner_size,
    ACT: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    EPS: tl.constexpr,
    NORM_EPS: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDE: tl.constexpr,
    R: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
):
    CHANNELS: tl.constexpr = WIDTH // HEADS
    o_row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    o_head = tl.arange(0, H)
    o_channel = tl.arange(0, C)
    m_row = o_row < num_rows
    # [1, H, C], [R, H, C]
    m_width = (o_head < HEADS)[None, :, None] & (o_channel < CHANNELS)[None, None, :]
    o_width = (o_head * CHANNELS)[None, :, None] + o_channel[None, None, :]
    mask = m_row[:, None, None] & m_width
    o_dense = (o_row * WIDTH)[:, None, None] + o_width
    # [R, H]
    o_heads = (o_row * HEADS)[:, None] + o_head[None, :]
    m_heads = m_row[:, None] & (o_head < HEADS)[None, :]
    if SPLIT:
        i_outer, i_inner = o_row // inner_size, o_row % inner_size
    else:
        i_outer, i_inner = tl.zeros_like(o_row), o_row

    o_start = i_outer * output_outer + i_inner * output_inner
    value = tl.load(p_output + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
    o_start = i_outer * prior_outer + i_inner * prior_inner
    prior = tl.load(p_prior + (o_start[:, None, None] + o_width), mask=mask, other=0.0).to(WIDE)
    query = tl.load(p_query + o_width, mask=m_width, other=0.0).to(WIDE)
    if p_partial is not None:
        o_start = i_outer * partial_outer + i_inner * partial_inner
        p_start = p_partial + (o_start[:, None, None] + o_width)
        # Rounded before it is scored: the next sublayer sees what was stored.
        total = (value + tl.load(p_start, mask=mask, other=0.0).to(WIDE)).to(p_total.dtype.element_ty)
        tl.store(p_total + o_dense, total, mask=mask)
        value = total.to(WIDE)

    z = tl.sum(value * query, 2)
    if GROUPS > 0:
        square = tl.sum(value * value, 2)
        if GROUPS == 1:
            square = tl.sum(square, 1)[:, None]
        inverse = tl.rsqrt(square / (WIDTH // GROUPS) + tl.full([1, 1], EPS, WIDE))
        z = z * inverse
        if GROUPS == 1:
            tl.store(p_inverse + o_row[:, None], inverse, mask=m_row[:, None])
        else:
            tl.store(p_inverse + o_heads, inverse, mask=m_heads)
    tl.store(p_z + o_heads, z, mask=m_heads)

    if ACT == "softmax":
        prior_lse = tl.load(p_prior_lse + o_heads, mask=m_heads, other=0.0).to(WIDE)
        top = tl.maximum(prior_lse, z)
        lse = top + tl.log(tl.exp(prior_lse - top) + tl.exp(z - top))
        mixed = tl.exp(prior_lse - lse)[:, :, None] * prior + tl.exp(z - lse)[:, :, None] * value
    else:
        lse = tl.zeros([R, H], WIDE)
        mixed = prior + (1.0 / (1.0 + tl.exp(-z)))[:, :, None] * value
    tl.store(p_lse + o_heads, lse, mask=m_heads)

    if p_gain is not None:
        gain = tl.load(p_gain + o_width, mask=m_width, other=0.0).to(WIDE)
        square = tl.sum(tl.sum(mixed * mixed, 2), 1)[:, None, None]
        mixed = mixed * tl.rsqrt(square / WIDTH + tl.full([1, 1, 1], NORM_EPS, WIDE)) * gain
    tl.store(p_mixed + o_dense, mixed, mask=mask)


def check_merge(
    prior: Tensor,
    partial: Tensor | None,
    output: Tensor,
    query: Tensor,
    gain: Tensor | None,
    act: str,
    heads: int,
    groups: int,
) -> None:
    """ValueError on what a merge's kernels cannot serve."""
    width = output.shape[-1]
    if act not in ACTS:
        raise ValueError(f"act {act!r} is not one of {', '.join(ACTS)}")
    if heads < 1 or width % heads:
        raise ValueError(f"heads must divide the width {width}, got {heads}")
    if groups not in (0, 1, heads):
        raise ValueError(f"groups must be 0, 1 or the number of heads {heads}, got {groups}")
    for name, vector in (("query", query), ("gain", gain)):
        if vector is not None and vector.shape != (width,):
            raise ValueError(f"{name} must be [{width}], got {list(vector.shape)}")
    streams = {"prior": prior, "partial": output if partial is None else partial, "output": output}
    for name, stream in streams.items():
        if stream.shape != output.shape:
            shapes = f"{list(stream.shape)} and {list(output.shape)}"
            raise ValueError(f"{name} and output must have one shape, got {shapes}")
        rows.check(name, [stream])
    check_device(output)


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
    *,
    gain: Tensor | None = None,
    norm_eps: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mix of the history merged with the partial sum p = partial + output (output, where that is the sum).

    prior: [..., D], with prior_lse [..., H] (not read for sigmoid).  partial, output: [..., D].  query: [D],
    its gain folded in.  gain: [D], of a following RMSNorm with norm_eps.
    Returns h [..., D] in the output's dtype, or RMSNorm(h) * gain; total [..., D] in that dtype, rounded
    before it is scored (empty without partial); z [..., H], inverse [..., G] and the lse [..., H] of the
    whole read, in float32 or wider. ValueError before any launch on what the kernels cannot serve.
    """
    check_merge(prior, partial, output, query, gain, act, heads, groups)
    lead, width = output.shape[:-1], output.shape[-1]
    wide = compute_dtype(prior, output, query)
    mixed = rows.empty(output.shape, output.dtype, output)
    total = rows.empty((0,) if partial is None else output.shape, output.dtype, output)
    z, lse = (rows.empty((*lead, heads), wide, output) for _ in range(2))
    inverse = rows.empty((*lead, groups), wide, output)
    if mixed.numel() == 0:
        return mixed, total, z, inverse, lse
    view = rows.as_rows([prior, output, *([] if partial is None else [partial])])
    tile = rows.row_tile(width, heads)
    launch(
        merge_forward_kernel,
        (-(-view.num // tile.rows),),
        tile.num_warps,
        p_prior=view.tensors[0],
        prior_outer=view.outer[0],
        prior_inner=view.inner[0],
        p_partial=None if partial is None else view.tensors[2],
        partial_outer=0 if partial is None else view.outer[2],
        partial_inner=0 if partial is None else view.inner[2],
        p_output=view.tensors[1],
        output_outer=view.outer[1],
        output_inner=view.inner[1],
        p_prior_lse=None if act == "sigmoid" else prior_lse.contiguous(),
        p_query=query.contiguous(),
        p_gain=None if gain is None else gain.contiguous(),
        p_mixed=mixed,
        p_total=None if partial is None else total,
        p_z=z,
        p_inverse=inverse,
        p_lse=lse,
        num_rows=view.num,
        inner_size=view.inner_size,
        ACT=act,
        WIDTH=width,
        HEADS=heads,
        GROUPS=groups,
        EPS=eps,
        NORM_EPS=norm_eps,
        SPLIT=view.split,
        WIDE=TYPES[wide],
        R=tile.rows,
        H=tile.heads,
        C=tile.channels,
    )
    return mixed, total, z, inverse, lse


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """What a merge with a running partial sum compiles, plain and with the sublayer's norm.

    sources: not used, a merge has two.
    """
    value, query = torch.empty(4096, width, dtype=dtype, device="meta"), torch.empty(width, device="meta")
    lse = torch.empty(4096, 1, device="meta")
    with recording() as recorded:
        for gain in (None, query):
            merge_forward(value, lse, value, value, query, "softmax", 1, 1, 1e-8, gain=gain, norm_eps=1e-8)
    yield from recorded
