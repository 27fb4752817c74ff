"""Depth-mixing matrices in symbols, as in Fig. 9, each with an instance of random weights.

Rows are the reads h_1 to h_L in the paper's count, columns the written v_0 to v_{L-1}:
h_l = sum_i M[l, i] v_i. Products are written as in the paper: gamma^x_{i->l} is that of 1 - g_j over
j = i + 1, ..., l, and A^x_{i->l} that of A_k over k = i + 1, ..., l.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

SEED = 2603


@dataclass(frozen=True)
class Entry:
    """A weight of row `row` (from 1) on the columns first..last (from 0, inclusive), which share it.

    source: index of what is weighed, for its colour.  partial: whether it is a sum still open.
    """

    row: int
    first: int
    last: int
    tex: str
    source: int
    partial: bool = False


@dataclass(frozen=True)
class Form:
    """A scheme's matrix: entries in TeX, and numbers [L, L] with random weights of its kind."""

    name: str
    structure: str
    entries: tuple[Entry, ...]
    numbers: np.ndarray


def standard(L: int) -> Form:
    """The residual sum: all ones."""
    return Form(
        "Standard residual",
        "all ones; 1-semiseparable",
        _lower(L, lambda l, i: "1", one_colour=True),
        np.tril(np.ones((L, L))),
    )


def highway(L: int) -> Form:
    """Scalar gates: rows sum to one (a stick is broken from the newest output on)."""

    def tex(l: int, i: int) -> str:
        gate = "" if i == 0 else f"g_{{{i + 1}}}"
        kept = "" if i + 1 == l else rf"\gamma^{{\times}}_{{{i + 1}\to {l}}}"
        return (gate + kept) or "1"

    g = np.random.default_rng(SEED).uniform(0.1, 0.9, L + 1)
    numbers = np.zeros((L, L))
    for l in range(1, L + 1):
        for i in range(l):
            numbers[l - 1, i] = (g[i + 1] if i else 1.0) * np.prod(1 - g[i + 2 : l + 1])
    return Form("Highway", "1-semiseparable; rows sum to 1", _lower(L, tex), numbers)


def streams(L: int, m: int) -> Form:
    """Hyper-connections with m streams: products of m x m matrices between two vectors."""

    def tex(l: int, i: int) -> str:
        between = "" if i + 1 == l else rf"A^{{\times}}_{{{i + 1}\to {l}}}"
        return rf"\beta_{{{i}}}^{{\top}}{between}\,\alpha_{{{l}}}"

    draw = np.random.default_rng(SEED)
    alpha, beta = draw.uniform(0, 1, (2, L + 1, m))
    mixing = [np.eye(m) + 0.3 * draw.uniform(-1, 1, (m, m)) for _ in range(L + 2)]
    numbers = np.zeros((L, L))
    for i in range(L):
        carried = beta[i]
        for l in range(i + 1, L + 1):
            numbers[l - 1, i] = carried @ alpha[l]
            carried = carried @ mixing[l + 1]
    return Form("(m)HC", "m-semiseparable", _lower(L, tex), numbers)


def full(L: int) -> Form:
    """AttnRes Full: a weight of its own for each read and source (not yet divided by their sum)."""
    numbers = np.tril(np.random.default_rng(SEED).uniform(0.1, 1, (L, L)))
    return Form("AttnRes Full", "dense", _lower(L, lambda l, i: rf"\phi(w_{{{l}}}, k_{{{i}}})"), numbers)


def block(L: int, S: int) -> Form:
    """AttnRes Block: the outputs of a block share a weight; a dashed entry is the partial sum."""
    draw = np.random.default_rng(SEED)
    entries, numbers = [], np.zeros((L, L))
    for l in range(1, L + 1):
        complete = (l - 1) // S
        spans = [(0, 0), *((n * S + 1, n * S + S) for n in range(complete))]
        if (l - 1) % S:
            spans.append((complete * S + 1, l - 1))
        for n, (first, last) in enumerate(spans):
            key = "+".join(f"k_{{{i}}}" for i in range(first, last + 1))
            partial = n > complete
            entries.append(Entry(l, first, last, rf"\phi(w_{{{l}}}, {key})", n, partial))
            numbers[l - 1, first : last + 1] = draw.uniform(0.1, 1)
    return Form(f"AttnRes Block (S = {S})", "outputs of a block share a weight", tuple(entries), numbers)


def forms(L: int, S: int, m: int) -> Sequence[Form]:
    """The matrices of Fig. 9, the standard residual first."""
    return standard(L), highway(L), streams(L, m), full(L), block(L, S)


def _lower(L: int, tex: Callable[[int, int], str], one_colour: bool = False) -> tuple[Entry, ...]:
    return tuple(Entry(l, i, i, tex(l, i), 0 if one_colour else i) for l in range(1, L + 1) for i in range(l))
