# mypy: allow-untyped-defs, disable-error-code="assignment"
"""Q weighted sums of the same sources in one pass: the forward of Algorithm 1, line 3, and of local reads.

Two kernels: `weigh_kernel` (mix_scalars.py) turns logits into weights and lse, `mix_kernel` sums the sources.
A program of the latter owns a few rows and a chunk of one head's channels; it keeps the Q sums in registers,
so that every chunk of a source is loaded once for all queries. Derivation in README.md. Letters: n sources,
Q queries, H heads, D width, "..." any leading axes, M rows (their product).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.addressing import compact, member, row_start, shared, stride_of
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.mix_scalars import SCALARS, weigh_kernel
from repro.ops.triton.specialisation import Specialisation

#: Queries whose sums one program keeps in registers; more are mixed in groups, each reading the sources.
MAX_QUERIES = 32


@triton.jit
def mix_kernel(
    p_sources, s_outer, s_inner, p_weights, s_n, s_m, s_q, s_h, p_priors, s_prior_outer, s_prior_inner,
    p_prior_weights, p_outputs, num_rows, inner_size,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, SPLIT: tl.constexpr, WIDE: tl.constexpr,
    B_ROWS: tl.constexpr, B_CHANNELS: tl.constexpr, STEPS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Outputs [M, D] of each query: weights times sources, and (weighted or as it is) the query's prior."""
    HEAD_WIDTH: tl.constexpr = WIDTH // HEADS
    CHUNKS: tl.constexpr = (HEAD_WIDTH + B_CHANNELS - 1) // B_CHANNELS
    chunk = tl.program_id(0) % (HEADS * CHUNKS)
    row = (tl.program_id(0) // (HEADS * CHUNKS)).to(tl.int64) * B_ROWS + tl.arange(0, B_ROWS)
    m_row = row < num_rows
    o_head = (chunk % CHUNKS) * B_CHANNELS + tl.arange(0, B_CHANNELS)
    o_channel = ((chunk // CHUNKS) * HEAD_WIDTH + o_head)[None, :]
    mask = m_row[:, None] & (o_head < HEAD_WIDTH)[None, :]
    o_weight = row * s_m + (chunk // CHUNKS) * s_h
    sums = ()
    for q in tl.static_range(len(p_outputs)):
        if len(p_priors) > 0:
            start = row_start(row, inner_size, shared(s_prior_outer, q), shared(s_prior_inner, q), SPLIT)
            # [rows, channels]
            b_sum = tl.load(p_priors[q] + start[:, None] + o_channel, mask=mask, other=0.0).to(WIDE)
            if p_prior_weights is not None:
                b_weight = tl.load(p_prior_weights + o_weight + q * s_q, mask=m_row, other=0.0)
                b_sum *= b_weight.to(WIDE)[:, None]
        else:
            b_sum = tl.zeros([B_ROWS, B_CHANNELS], WIDE)
        sums = sums + (b_sum,)  # noqa: RUF005, tuples of tiles know no unpacking
    for step in range(STEPS):
        for j in tl.static_range(UNROLL):
            outer, inner = stride_of(s_outer, step, j, UNROLL), stride_of(s_inner, step, j, UNROLL)
            start = row_start(row, inner_size, outer, inner, SPLIT)
            valid = mask & (step * UNROLL + j < len(p_sources))
            p_source = member(p_sources, step, j, UNROLL) + start[:, None] + o_channel
            b_source = tl.load(p_source, mask=valid, other=0.0).to(WIDE)
            m_weight = m_row & (step * UNROLL + j < len(p_sources))
            grown = ()
            for q in tl.static_range(len(p_outputs)):
                b_weight = tl.load(p_weights + o_weight + q * s_q, mask=m_weight, other=0.0).to(WIDE)
                grown = grown + (sums[q] + b_weight[:, None] * b_source,)  # noqa: RUF005
            sums = grown
            p_weights += s_n
    for q in tl.static_range(len(p_outputs)):
        p_output = p_outputs[q] + row[:, None] * WIDTH + o_channel
        tl.store(p_output, sums[q].to(p_output.dtype.element_ty), mask=mask)


class MixTile(NamedTuple):
    """Block of rows and of one head's channels, warps, and the number of such blocks in a row."""

    rows: int
    channels: int
    num_warps: int
    num_chunks: int


def mix_tile(width: int, heads: int, num_queries: int, itemsize: int, wide: torch.dtype) -> MixTile:
    """One warp per row, with loads of 16 bytes per thread where Q tiles of that size fit its registers."""
    per_thread = max(16 // itemsize, 1)
    most = 160 if wide == torch.float32 else 80
    while per_thread > 1 and num_queries * per_thread > most:
        per_thread //= 2
    channels = min(32 * per_thread, rows.next_power_of_2(width // heads))
    num_chunks = heads * -(-(width // heads) // channels)
    return MixTile(4 * 32 * per_thread // channels, channels, 4, num_chunks)


def unrolling(num_sources: int, num_queries: int, most: int) -> tuple[int, int]:
    """Steps of the loop over sources, and sources of a step: about `most` products with queries in code."""
    steps = -(-num_sources * num_queries // most)
    unroll = -(-num_sources // steps)
    return -(-num_sources // unroll), unroll


def grid_of(num_rows: int, tile: MixTile) -> tuple[int]:
    """Programs of a launch over rows and chunks; ValueError where a grid cannot hold them."""
    num = -(-num_rows // tile.rows) * tile.num_chunks
    if num > rows.MAX_ROWS:
        raise ValueError(f"mix: {num_rows} rows need {num} programs, a grid holds {rows.MAX_ROWS}")
    return (num,)


def mix_forward(
    sources: Sequence[Tensor],
    z: Tensor,
    priors: Sequence[Tensor] = (),
    prior_lse: Tensor | None = None,
    act: str = "softmax",
    dtype: torch.dtype | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Weighted sums of n sources [..., D] by logits z [n, ..., Q, H], one per query.

    priors: Q tensors [..., D], or none; under softmax a prior stands for the worth prior_lse [..., Q, H] of
    logits, otherwise it is added.  act: softmax, sigmoid, linear (the logits are the weights).  dtype: of
    the outputs, by default that of the sources.
    Returns Q outputs [..., D], and lse [..., Q, H] in float32 or wider (zeros unless softmax).
    """
    check_device(sources[0])
    rows.check("mix", sources)
    num_queries, heads = z.shape[-2:]
    num_rows = math.prod(sources[0].shape[:-1])
    wide = compute_dtype(*sources, z, *priors)
    outputs = [
        rows.empty(sources[0].shape, dtype or sources[0].dtype, sources[0]) for _ in range(num_queries)
    ]
    lse = rows.empty(z.shape[1:], wide, z)
    if num_rows == 0:
        return outputs, lse
    logits = z.reshape(len(sources), num_rows, num_queries, heads)
    weights, prior_weights = logits, None
    if act == "linear":
        lse.zero_()
    else:
        weighted = len(sources) + (prior_lse is not None and act == "softmax")
        table = rows.empty((weighted, *logits.shape[1:]), wide, z)
        _weigh(logits, prior_lse, table, lse, act)
        weights = table[: len(sources)]
        prior_weights = table[len(sources)] if weighted > len(sources) else None
    for group in rows.chunks(num_queries, MAX_QUERIES):
        of_prior = None if prior_weights is None else prior_weights[:, group]
        _mix(sources, weights[:, :, group], priors[group], of_prior, outputs[group], wide)
    return outputs, lse


def _weigh(z: Tensor, prior_lse: Tensor | None, table: Tensor, lse: Tensor, act: str) -> None:
    num = lse.numel()
    launch(
        weigh_kernel,
        (-(-num // SCALARS),),
        4,
        p_z=z,
        **dict(zip(("s_n", "s_m", "s_q", "s_h"), z.stride(), strict=True)),
        p_prior_lse=None if prior_lse is None or act != "softmax" else prior_lse.contiguous(),
        p_weights=table,
        p_lse=lse,
        num=num,
        num_sources=len(z),
        QUERIES=z.shape[2],
        HEADS=z.shape[3],
        ACT=act,
        WIDE=TYPES[lse.dtype],
        BLOCK=SCALARS,
    )


def _mix(
    sources: Sequence[Tensor],
    weights: Tensor,
    priors: Sequence[Tensor],
    prior_weights: Tensor | None,
    outputs: Sequence[Tensor],
    wide: torch.dtype,
) -> None:
    """Launches over at most `rows.MAX_SOURCES` sources each, the sums carried in the wide type."""
    width, heads = sources[0].shape[-1], weights.shape[-1]
    tile = mix_tile(width, heads, len(outputs), sources[0].element_size(), wide)
    parts = rows.chunks(len(sources))
    carry = list(outputs)
    if len(parts) > 1 and outputs[0].dtype != wide:
        carry = [rows.empty(output.shape, wide, output) for output in outputs]
    for part in parts:
        view = rows.as_rows([*sources[part], *priors])
        num = len(sources[part])
        steps, unroll = unrolling(num, len(outputs), 160 if len(outputs) <= 20 else 96)
        into = outputs if part is parts[-1] else carry
        launch(
            mix_kernel,
            grid_of(view.num, tile),
            tile.num_warps,
            p_sources=view.tensors[:num],
            s_outer=compact(view.outer[:num]),
            s_inner=compact(view.inner[:num]),
            p_weights=weights[part],
            **dict(zip(("s_n", "s_m", "s_q", "s_h"), weights.stride(), strict=True)),
            p_priors=view.tensors[num:],
            s_prior_outer=compact(view.outer[num:]),
            s_prior_inner=compact(view.inner[num:]),
            p_prior_weights=prior_weights,
            p_outputs=tuple(into),
            num_rows=view.num,
            inner_size=view.inner_size,
            WIDTH=width,
            HEADS=heads,
            SPLIT=view.split,
            WIDE=TYPES[wide],
            B_ROWS=tile.rows,
            B_CHANNELS=tile.channels,
            STEPS=steps,
            UNROLL=unroll,
        )
        priors, prior_weights = carry, None


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """Phase 1 of a block of 16 sublayers, and one read's local sources merged with its history."""
    rows_, heads = 16384, 1
    history = [torch.empty(rows_, width, dtype=dtype, device="meta") for _ in range(sources)]
    wide = compute_dtype(*history)
    with recording() as found:
        for num_queries in (16, 1):
            z = torch.empty(sources, rows_, num_queries, heads, dtype=wide, device="meta")
            priors = history[:1] if num_queries == 1 else []
            mix_forward(history, z, priors, z[0] if priors else None)
    yield from found
