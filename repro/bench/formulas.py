"""Width-sized accesses of the two-phase schedules in closed form: Table 1's account, the full one, a bound.

Units: activations of one token (d elements) read or written, summed over the model: divide by L for "per
token and sublayer". Letters: L sublayers, S sublayers per block (Full: reads per group), N = L / S blocks
(groups), I reads of an inner group of Full, k = S / I of them in a group. Derivation: README.md beside the
kernels (repro/ops/triton).
"""

from __future__ import annotations

from typing import NamedTuple


class Term(NamedTuple):
    """One line of an account."""

    label: str
    read: int
    write: int

    @property
    def total(self) -> int:
        return self.read + self.write


def total(terms: list[Term]) -> int:
    return sum(term.total for term in terms)


def paper(full: bool, S: int, N: int) -> list[Term]:
    """Table 1: keys and values counted apart, half of the sources on average, embedding and sums left out."""
    L = S * N
    if full:
        return [
            Term("phase 1: sources of earlier groups, as keys and as values", L * (N - 1), 0),
            Term("phase 1: results", 0, L),
            Term("phase 2: sources of the group, as keys and as values", L * (S - 1), 0),
            Term("phase 2: results", 0, L),
        ]
    return [
        Term("phase 1: N / 2 block sums on average, as keys and as values", N * N, 0),
        Term("phase 1: results", 0, L),
        Term("phase 2: result of phase 1, partial sum, output", 3 * L, 0),
        Term("phase 2: results", 0, L),
    ]


def block_forward(S: int, N: int) -> list[Term]:
    """Every access of Block's forward pass; S >= 2, N >= 2. The output read joins the last block's reads."""
    return [
        Term("score of the embedding", 1, 0),
        Term("a block closes: partial sum and output read, their sum written and scored", 2 * N, N),
        Term("phase 1: embedding and block sums, once as keys and values", (N - 1) * (N + 2) // 2, 0),
        Term("phase 1: results, for every read but those of block 0", 0, (N - 1) * S + 1),
        Term("phase 2, second read of a block: result of phase 1 and one output", 2 * N, N),
        Term(
            "phase 2, later reads: also the partial sum, which is written", 3 * N * (S - 2), 2 * N * (S - 2)
        ),
        Term("output read: last block sum on the result of phase 1", 2, 1),
    ]


def full_forward(S: int, N: int, I: int, most: int) -> list[Term]:
    """Every access of Full's forward pass; S a multiple of I. The output read joins the last groups.

    most: sources of one launch; sums over more go through memory between launches, two accesses each way
    (float32 where activations have two bytes).
    """
    k, L = S // I, S * N
    carried = sum((S + (n == N - 1)) * (-(-(n * S + 1) // most) - 1) for n in range(1, N))
    inner, local = N * (k - 1) * I + (k > 1), N * k * (I - 1) + 1
    return [
        Term("score of every source", L + 1, 0),
        Term("phase 1: embedding and sources of earlier groups", S * N * (N - 1) // 2 + N - 1, 0),
        Term("phase 1: results, for every read but those of group 0", 0, (N - 1) * S + 1),
        Term(f"phase 1: sums carried beyond {most} sources", 2 * carried, 2 * carried),
        Term("inner groups: sources since the group began", N * I * k * (k - 1) // 2, 0),
        Term("inner groups: results of phase 1, read and replaced", inner, inner),
        Term("phase 2: sources since the inner group began", N * k * I * (I - 1) // 2 + I, 0),
        Term("phase 2: result so far, and that of the read", local, local),
    ]


def block_backward(S: int, N: int) -> list[Term]:
    """Least accesses of Block's backward pass: a step reads what it needs and writes its results once."""
    merged, mixed = N * (S - 1), N * (N + 1) // 2
    return [
        Term("phase 2: gradient, partial sum, one of h and o1; gradient of the sum", 4 * merged, merged),
        Term("output read: gradient, last block sum, one of h and o1", 3, 1),
        Term("phase 1: gradients of the reads", S * N + 1, 0),
        Term("phase 1: sources, and their gradients added to (new in the last block)", 2 * mixed - N, mixed),
        Term("scores: every source, and its gradient added to", 2 * (N + 1), N + 1),
    ]


def full_backward(S: int, N: int, I: int) -> list[Term]:
    """Least accesses of Full's backward pass, as for Block."""
    k, L = S // I, S * N
    local, inner = N * k * I * (I - 1) // 2 + I, N * I * k * (k - 1) // 2
    outer = S * N * (N - 1) // 2 + N
    reads = N * k * (I - 1) + 1
    return [
        Term("phase 2: gradients, and one of h and the result before", 2 * reads, 0),
        Term("phase 2: sources since the inner group began, and their gradients", 2 * local - I, local),
        Term("inner groups: gradients of the reads", N * (k - 1) * I + (k > 1), 0),
        Term("inner groups: one of h and the result before, of reads that end here", N * (k - 1), 0),
        Term("inner groups: sources, and their gradients", 2 * inner - (k - 1) * I, inner),
        Term("phase 1: gradients of the reads", L + 1, 0),
        Term("phase 1: sources, and their gradients", 2 * outer - (N - 1) * S - 1, outer),
        Term("scores: every source, and its gradient added to", 2 * (L + 1), L + 1),
    ]


def reconciliation(full: bool, S: int, N: int, I: int, most: int) -> list[Term]:
    """From Table 1's account to the full one, difference by difference; they add up to `*_forward`."""
    L = S * N
    if not full:
        once, exact = N * N // 2, (N - 1) * (N + 2) // 2
        return [
            Term("a source is key and value at once: read once", once - N * N, 0),
            Term("the embedding is a source too; exact number of sources per block", exact - once, 0),
            Term("block 0 has one source and needs no phase 1", 0, -S),
            Term("the first read of a block needs no phase 2", -3 * N, -N),
            Term("the second read of a block has no partial sum to read", -N, 0),
            Term("the partial sum is kept up to date in the same pass: written", 0, N * (S - 2)),
            Term("a block closes: partial sum and output read, block sum written", 2 * N, N),
            Term("score of the embedding", 1, 0),
            Term("output read, phase 1 and phase 2", 2, 2),
        ]
    k = S // I
    each, once = N * S * (S - 1) // 2, N * I * k * (k - 1) // 2 + N * k * I * (I - 1) // 2
    return [
        Term("phase 1: a source is key and value at once: read once", (N - 1) * N // 2 * S - L * (N - 1), 0),
        Term("phase 2: likewise", each - L * (S - 1), 0),
        Term("the embedding is a source too", N - 1, 0),
        Term("group 0 has one source and needs no phase 1", 0, -S),
        Term(
            "phase 2 at two levels: local sources read once per inner group", once - S * (S - 1) // 2 * N, 0
        ),
        *[term for term in full_forward(S, N, I, most) if "carried" in term.label],
        Term("inner groups: results so far read and replaced", N * (k - 1) * I, N * (k - 1) * I),
        Term("phase 2 reads the result so far, which Table 1 leaves out for Full", N * k * (I - 1), 0),
        Term("the first read of an inner group needs no phase 2", 0, -N * k),
        Term("scores when a source is written", L + 1, 0),
        Term("output read, at every level", I + 1 + (k > 1), 2 + (k > 1)),
    ]
