# mypy: allow-untyped-defs, disable-error-code="assignment"
"""What mixes compute of scalars alone: weights from logits, and gradients of logits from products.

Letters as in mix.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: Scalars of one program.
SCALARS = 256


@triton.jit
def weight(z, lse, ACT: tl.constexpr):
    """Weight of a logit; lse is that of the whole read, and only a softmax uses it."""
    if ACT == "softmax":
        a = tl.exp(z - lse)
    elif ACT == "sigmoid":
        a = tl.sigmoid(z)
    else:
        a = z
    return a


@triton.jit
def weigh_kernel(
    p_z, s_n, s_m, s_q, s_h, p_prior_lse, p_weights, p_lse, num, num_sources,
    QUERIES: tl.constexpr, HEADS: tl.constexpr, ACT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights [n (+ 1, the prior's), M, Q, H] and lse [M, Q, H] of logits [n, M, Q, H] of any strides."""
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = o < num
    p_z += (o // (QUERIES * HEADS)) * s_m + (o // HEADS % QUERIES) * s_q + (o % HEADS) * s_h
    p_weights += o
    lse = tl.zeros([BLOCK], WIDE)
    prior = lse
    if ACT == "softmax":
        if p_prior_lse is not None:
            prior = tl.load(p_prior_lse + o, mask=mask, other=0.0).to(WIDE)
            p_first = p_z
            rest = num_sources
        else:
            prior = tl.load(p_z, mask=mask, other=0.0).to(WIDE)
            p_first = p_z + s_n
            rest = num_sources - 1
        largest = prior
        total = tl.full([BLOCK], 1.0, WIDE)
        for _ in range(rest):
            z = tl.load(p_first, mask=mask, other=0.0).to(WIDE)
            above = tl.maximum(largest, z)
            total = total * tl.exp(largest - above) + tl.exp(z - above)
            largest = above
            p_first += s_n
        lse = largest + tl.log(total)
    tl.store(p_lse + o, lse, mask=mask)
    for _ in range(num_sources):
        z = tl.load(p_z, mask=mask, other=0.0).to(WIDE)
        tl.store(p_weights, weight(z, lse, ACT), mask=mask)
        p_z += s_n
        p_weights += num
    if p_prior_lse is not None and ACT == "softmax":
        tl.store(p_weights, tl.exp(prior - lse), mask=mask)


@triton.jit
def side_by_side(vectors, LEVELS: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Up to 2 ** LEVELS vectors [rows] as the columns of one tile, in registers; the rest is zero."""
    level = vectors
    for _ in tl.static_range(len(vectors), 2**LEVELS):
        level = level + (tl.zeros([ROWS], WIDE),)  # noqa: RUF005, tuples of tiles know no unpacking
    for power in tl.static_range(LEVELS):
        pairs = ()
        for k in tl.static_range(2 ** (LEVELS - 1 - power)):
            pairs = pairs + (tl.join(level[k], level[k + 2 ** (LEVELS - 1 - power)]),)  # noqa: RUF005
        level = pairs
    return tl.reshape(level[0], [ROWS, 2**LEVELS])


@triton.jit
def mix_scalars_kernel(
    p_products, s_products, p_of_prior, p_z, s_n, s_m, s_q, s_h, p_lse, p_delta_in, p_prior_lse, p_grad_lse,
    p_grad_z, s_grad_z, p_delta, num_rows, num_sources,
    HEADS: tl.constexpr, CHUNKS: tl.constexpr, QUERIES: tl.constexpr, GROUP: tl.constexpr,
    ENDED: tl.constexpr, PRIORS: tl.constexpr, ACT: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients of logits [n, M, Q, H] and delta [M, Q, H] of one head and GROUP of all QUERIES.

    CHUNKS: of a head.  ENDED: bit i says that delta of query i is to be computed.  PRIORS: as in
    `mix_backward_kernel`.
    """
    head = tl.program_id(1)
    o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = o // GROUP
    q = (o % GROUP).to(tl.int32)
    mask = row < num_rows
    o_product = (head.to(tl.int64) * CHUNKS * num_rows + row) * GROUP + q
    o_scalar = (row * QUERIES + q) * HEADS + head
    p_z += row * s_m + q * s_q + head * s_h
    p_products += o_product
    lse = tl.zeros([BLOCK], WIDE)
    delta = tl.zeros([BLOCK], WIDE)
    if ACT == "softmax":
        lse = tl.load(p_lse + o_scalar, mask=mask, other=0.0).to(WIDE)
        m_ended = mask & (((ENDED >> q) & 1) != 0)
        delta = tl.load(p_delta_in + o_scalar, mask=mask & (m_ended == 0), other=0.0).to(WIDE)
        if ENDED:
            p_product, p_logit = p_products, p_z
            for _ in range(num_sources):
                product = chunk_sum(p_product, num_rows, m_ended, CHUNKS, GROUP, WIDE, BLOCK)
                z = tl.load(p_logit, mask=m_ended, other=0.0).to(WIDE)
                delta += tl.where(m_ended, weight(z, lse, ACT), 0.0) * product
                p_product += s_products
                p_logit += s_n
        if PRIORS:
            m_prior = m_ended & (((PRIORS >> q) & 1) != 0)
            product = chunk_sum(p_of_prior + o_product, num_rows, m_prior, CHUNKS, GROUP, WIDE, BLOCK)
            prior_lse = tl.load(p_prior_lse + o_scalar, mask=m_prior, other=0.0).to(WIDE)
            delta += tl.where(m_prior, tl.exp(prior_lse - lse), 0.0) * product
        if p_grad_lse is not None:
            delta -= tl.load(p_grad_lse + o_scalar, mask=mask, other=0.0).to(WIDE)
    tl.store(p_delta + o_scalar, delta, mask=mask)
    p_grad_z += o_scalar
    for _ in range(num_sources):
        product = chunk_sum(p_products, num_rows, mask, CHUNKS, GROUP, WIDE, BLOCK)
        z = tl.load(p_z, mask=mask, other=0.0).to(WIDE)
        a = weight(z, lse, ACT)
        if ACT == "softmax":
            grad_z = a * (product - delta)
        elif ACT == "sigmoid":
            grad_z = a * (1 - a) * product
        else:
            grad_z = product
        tl.store(p_grad_z, grad_z, mask=mask)
        p_products += s_products
        p_z += s_n
        p_grad_z += s_grad_z


@triton.jit
def chunk_sum(
    p_first, num_rows, mask,
    CHUNKS: tl.constexpr, GROUP: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of a head's partial products, chunk after chunk."""
    total = tl.zeros([BLOCK], WIDE)
    p_next = p_first
    for _ in range(CHUNKS):
        total += tl.load(p_next, mask=mask, other=0.0)
        p_next += num_rows * tl.full([], GROUP, tl.int64)
    return total
