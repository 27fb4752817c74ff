# mypy: allow-untyped-defs, disable-error-code="assignment"
"""Gradients of Q weighted sums of the same sources in one pass over sources and gradients.

A program of `mix_backward_kernel` owns a few rows and a chunk of one head's channels: it keeps the Q
gradients in registers, takes one source after another, writes its gradient once and leaves the products
g . v of its chunk. `mix_scalars_kernel` (mix_scalars.py) adds these over the chunks, in one order, and forms
the gradients of the logits. Derivation in README.md. Letters as in mix.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.reference import compute_dtype
from repro.ops.triton import rows
from repro.ops.triton.addressing import compact, member, row_start, shared, stride_of
from repro.ops.triton.launch import TYPES, check_device, launch, recording
from repro.ops.triton.mix import MAX_QUERIES, grid_of, mix_tile, unrolling
from repro.ops.triton.mix_scalars import SCALARS, mix_scalars_kernel, side_by_side, weight
from repro.ops.triton.specialisation import Specialisation


@triton.jit
def mix_backward_kernel(
    p_sources, s_outer, s_inner, p_grads, s_grad_outer, s_grad_inner,
    p_priors, s_prior_outer, s_prior_inner, p_grads_in, s_in_outer, s_in_inner,
    p_z, s_n, s_m, s_q, s_h, p_lse, p_products, s_products, p_of_prior, p_grad_sources, num_rows, inner_size,
    WIDTH: tl.constexpr, HEADS: tl.constexpr, QUERIES: tl.constexpr, PRIORS: tl.constexpr, ACT: tl.constexpr,
    SPLIT: tl.constexpr, WIDE: tl.constexpr, B_ROWS: tl.constexpr, B_CHANNELS: tl.constexpr,
    STEPS: tl.constexpr, UNROLL: tl.constexpr, PACK: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Gradients of sources [M, D]; products g . v [n, chunks, M, q] and g . prior [chunks, M, q] per chunk.

    QUERIES: of the whole call, of which this launch has q = len(p_grads).  PRIORS: bit i says that prior i
    is given; other entries of p_priors are not read.  PACK: sources whose products are stored together, in
    a tile of 2 ** LEVELS columns.
    """
    HEAD_WIDTH: tl.constexpr = WIDTH // HEADS
    CHUNKS: tl.constexpr = (HEAD_WIDTH + B_CHANNELS - 1) // B_CHANNELS
    chunk = tl.program_id(0) % (HEADS * CHUNKS)
    head = chunk // CHUNKS
    row = (tl.program_id(0) // (HEADS * CHUNKS)).to(tl.int64) * B_ROWS + tl.arange(0, B_ROWS)
    m_row = row < num_rows
    o_head = (chunk % CHUNKS) * B_CHANNELS + tl.arange(0, B_CHANNELS)
    o_channel = (head * HEAD_WIDTH + o_head)[None, :]
    mask = m_row[:, None] & (o_head < HEAD_WIDTH)[None, :]
    o_product = (chunk.to(tl.int64) * num_rows + row) * len(p_grads)
    o_z = row * s_m + head * s_h
    o_pack = tl.arange(0, 2**LEVELS)
    grads = ()
    lses = ()
    for q in tl.static_range(len(p_grads)):
        start = row_start(row, inner_size, shared(s_grad_outer, q), shared(s_grad_inner, q), SPLIT)
        # [rows, channels]
        b_grad = tl.load(p_grads[q] + start[:, None] + o_channel, mask=mask, other=0.0).to(WIDE)
        grads = grads + (b_grad,)  # noqa: RUF005, tuples of tiles know no unpacking
        if ACT == "softmax":
            b_lse = tl.load(p_lse + row * (QUERIES * HEADS) + q * HEADS + head, mask=m_row, other=0.0)
        else:
            b_lse = tl.zeros([B_ROWS], WIDE)
        lses = lses + (b_lse.to(WIDE),)  # noqa: RUF005
        if (PRIORS >> q) & 1:
            start = row_start(row, inner_size, shared(s_prior_outer, q), shared(s_prior_inner, q), SPLIT)
            b_prior = tl.load(p_priors[q] + start[:, None] + o_channel, mask=mask, other=0.0).to(WIDE)
            tl.store(p_of_prior + o_product + q, tl.sum(b_grad * b_prior, axis=1), mask=m_row)
    for step in range(STEPS):
        for j in tl.static_range(UNROLL):
            if j % PACK == 0:
                first = step * UNROLL + j
                products = ()
            m_source = m_row & (step * UNROLL + j < len(p_sources))
            valid = mask & m_source[:, None]
            outer, inner = stride_of(s_outer, step, j, UNROLL), stride_of(s_inner, step, j, UNROLL)
            start = row_start(row, inner_size, outer, inner, SPLIT)
            p_source = member(p_sources, step, j, UNROLL) + start[:, None] + o_channel
            b_source = tl.load(p_source, mask=valid, other=0.0).to(WIDE)
            if len(p_grads_in) > 0:
                outer, inner = stride_of(s_in_outer, step, j, UNROLL), stride_of(s_in_inner, step, j, UNROLL)
                start = row_start(row, inner_size, outer, inner, SPLIT)
                p_grad_in = member(p_grads_in, step, j, UNROLL) + start[:, None] + o_channel
                b_back = tl.load(p_grad_in, mask=valid, other=0.0).to(WIDE)
            else:
                b_back = tl.zeros([B_ROWS, B_CHANNELS], WIDE)
            for q in tl.static_range(len(p_grads)):
                b_z = tl.load(p_z + o_z + q * s_q, mask=m_source, other=0.0).to(WIDE)
                b_back += weight(b_z, lses[q], ACT)[:, None] * grads[q]
                products = products + (tl.sum(grads[q] * b_source, axis=1),)  # noqa: RUF005
            p_back = member(p_grad_sources, step, j, UNROLL) + row[:, None] * WIDTH + o_channel
            tl.store(p_back, b_back.to(p_back.dtype.element_ty), mask=valid)
            p_z += s_n
            # One store for several products: moving them between threads needs the warps to meet.
            if (j + 1) % PACK == 0 or j + 1 == UNROLL:
                b_products = side_by_side(products, LEVELS, B_ROWS, WIDE)
                m_product = (o_pack < len(products)) & (first + o_pack // len(p_grads) < len(p_sources))
                p_product = p_products + (first + o_pack // len(p_grads)).to(tl.int64) * s_products
                p_product = p_product[None, :] + o_product[:, None] + (o_pack % len(p_grads))[None, :]
                tl.store(p_product, b_products, mask=m_row[:, None] & m_product[None, :])


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
    """What Q reads with gradients [..., D] send to n sources [..., D] and logits z [n, ..., Q, H].

    lse, delta: [..., Q, H] of the whole reads; delta is read where a read is continued elsewhere, and
    computed here where not, from the products with its sources and its prior [..., D] (or None) of weight
    exp(prior_lse - lse), and not with the read itself, which may have been rounded.  grad_lse: [..., Q, H],
    taken from delta.  grads_in: for each source a gradient [..., D] to add, or None.
    Returns gradients of the sources in their dtype, of the logits, and delta [..., Q, H] (wide; zeros
    unless softmax).
    """
    check_device(sources[0])
    rows.check("mix", sources)
    first, num_queries, heads = sources[0], len(grads), z.shape[-1]
    wide = compute_dtype(*sources, z, *grads)
    grad_sources = [rows.empty(first.shape, first.dtype, first) for _ in sources]
    grad_z, new_delta = rows.empty(z.shape, wide, z), rows.empty(z.shape[1:], wide, z)
    if first.numel() == 0:
        return grad_sources, grad_z, new_delta
    shape = (first.numel() // first.shape[-1], num_queries, heads)
    logits = z.reshape(len(sources), *shape)
    softmax = act == "softmax"
    scalars = {
        "lse": lse,
        "delta_in": delta,
        "prior_lse": prior_lse if softmax else None,
        "grad_lse": grad_lse if softmax else None,
        "delta": new_delta,
    }
    views = {name: None if x is None else x.reshape(shape).contiguous() for name, x in scalars.items()}
    carried = list(grads_in)
    for group in rows.chunks(num_queries, MAX_QUERIES):
        call = _Group(
            act=act,
            wide=wide,
            grads=grads[group],
            ended=[softmax and not goes_on for goes_on in continued[group]],
            priors=priors[group] if softmax else [None] * len(grads[group]),
            z=logits[:, :, group],
            grad_z=grad_z.view(logits.shape)[:, :, group],
            scalars={name: None if x is None else x[:, group] for name, x in views.items()},
            num_queries=num_queries,
        )
        last = group.stop == num_queries
        into = grad_sources if last else [rows.empty(first.shape, wide, first) for _ in sources]
        _launch_group(call, sources, carried, into)
        carried = list(into)
    return grad_sources, grad_z, new_delta


@dataclass(frozen=True)
class _Group:
    """At most MAX_QUERIES queries of a call; scalars [M, q, H] are views into those of all its queries."""

    act: str
    wide: torch.dtype
    grads: Sequence[Tensor]
    ended: Sequence[bool]
    priors: Sequence[Tensor | None]
    z: Tensor
    grad_z: Tensor
    scalars: dict[str, Any]
    num_queries: int


def _launch_group(
    call: _Group, sources: Sequence[Tensor], grads_in: Sequence[Tensor | None], into: Sequence[Tensor]
) -> None:
    first, heads, size = sources[0], call.z.shape[-1], len(call.grads)
    flags = _bits([prior is not None for prior in call.priors])
    tile = mix_tile(first.shape[-1], heads, size, first.element_size(), call.wide)
    num_rows = call.z.shape[1]
    products = rows.empty((len(sources), tile.num_chunks, num_rows, size), call.wide, first)
    of_prior = rows.empty(products.shape[1:], call.wide, first) if flags else None
    logit_strides = dict(zip(("s_n", "s_m", "s_q", "s_h"), call.z.stride(), strict=True))
    common = {"QUERIES": call.num_queries, "HEADS": heads, "ACT": call.act, "WIDE": TYPES[call.wide]}
    for part in rows.chunks(len(sources)):
        bits = flags if part.start == 0 else 0
        tensors = _tensors(sources[part], call.grads, call.priors if bits else (), grads_in[part])
        steps, unroll = unrolling(len(sources[part]), size, 64)
        pack = min(max(1, 16 // size), unroll)
        launch(
            mix_backward_kernel,
            grid_of(num_rows, tile),
            tile.num_warps,
            **tensors,
            p_z=call.z[part],
            **logit_strides,
            p_lse=call.scalars["lse"],
            p_products=products[part],
            s_products=products.stride(0),
            p_of_prior=of_prior if bits else None,
            p_grad_sources=tuple(into[part]),
            num_rows=num_rows,
            WIDTH=first.shape[-1],
            PRIORS=bits,
            B_ROWS=tile.rows,
            B_CHANNELS=tile.channels,
            STEPS=steps,
            UNROLL=unroll,
            PACK=pack,
            LEVELS=(pack * size - 1).bit_length(),
            **common,
        )
    launch(
        mix_scalars_kernel,
        (-(-num_rows * size // SCALARS), heads),
        4,
        p_products=products,
        s_products=products.stride(0),
        p_of_prior=of_prior,
        p_z=call.z,
        **logit_strides,
        **{f"p_{name}": scalar for name, scalar in call.scalars.items()},
        p_grad_z=call.grad_z,
        s_grad_z=call.grad_z.stride(0),
        num_rows=num_rows,
        num_sources=len(sources),
        CHUNKS=tile.num_chunks // heads,
        GROUP=size,
        ENDED=_bits(call.ended),
        PRIORS=flags,
        BLOCK=SCALARS,
        **common,
    )


def _bits(flags: Sequence[bool]) -> int:
    return sum(1 << q for q, flag in enumerate(flags) if flag)


def _tensors(
    sources: Sequence[Tensor],
    grads: Sequence[Tensor],
    priors: Sequence[Tensor | None],
    grads_in: Sequence[Tensor | None],
) -> dict[str, Any]:
    """Pointers and strides of `mix_backward_kernel`, all tensors with one cut of their leading axes."""
    added: list[Tensor] = []
    if any(grad is not None for grad in grads_in):
        # A row of zeros stands for a missing gradient, so that which are missing compiles nothing anew.
        zeros = sources[0].new_zeros(sources[0].shape[-1]).expand(sources[0].shape)
        added = [zeros if grad is None else grad for grad in grads_in]
    # An entry that is not read repeats the gradient, which is at hand in any case.
    read = [grad if prior is None else prior for grad, prior in zip(grads, priors, strict=bool(priors))]
    view = rows.as_rows([*sources, *grads, *read, *added])
    arguments: dict[str, Any] = {"inner_size": view.inner_size, "SPLIT": view.split}
    begin = 0
    for name, strides, num in (
        ("p_sources", "s", len(sources)),
        ("p_grads", "s_grad", len(grads)),
        ("p_priors", "s_prior", len(read)),
        ("p_grads_in", "s_in", len(added)),
    ):
        part = slice(begin, begin + num)
        arguments[name] = view.tensors[part]
        arguments[f"{strides}_outer"] = compact(view.outer[part])
        arguments[f"{strides}_inner"] = compact(view.inner[part])
        begin += num
    return arguments


def specialisations(width: int, sources: int, dtype: torch.dtype) -> Iterator[Specialisation]:
    """Phase 1 of a block of 16 sublayers, with messages; and the local sources that end one read."""
    num_rows = 16384
    history = [torch.empty(num_rows, width, dtype=dtype, device="meta") for _ in range(sources)]
    wide = compute_dtype(*history)
    with recording() as found:
        for num_queries in (16, 1):
            z = torch.empty(sources, num_rows, num_queries, 1, dtype=wide, device="meta")
            grads, ends = history[:1] * num_queries, num_queries == 1
            priors = history[:1] if ends else [None] * num_queries
            message = (z[0], z[0], [not ends] * num_queries, priors, z[0] if ends else None)
            mix_backward(grads, *message, None, history, z, "softmax", history)
    yield from found
