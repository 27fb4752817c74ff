"""The compute axis of a scaling curve, a named choice: ``digitised``, ``6nd`` or ``account``.

- ``digitised``  the places of the stars in the paper's Fig. 4 (published numbers only);
- ``6nd``        6 N D, N activated parameters without embeddings, D tokens;
- ``account``    the FLOPs of every product. For the paper's models an estimate that meets the stars to 0.4 %:
                 6 N D, MLA's scores and values over the causal half, and KDA's state and chunk products
                 (FLOPs per head and token as Kimi Linear gives them). For runs here, the FLOPs per token
                 that a run recorded: the head, attention and the arm's own mixing included.

6 N D is 21 to 27 % short of the stars, and by another factor at each size, so a multiple of compute depends
on it.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from analysis.scaling import Array

Number = TypeVar("Number", float, Array)

PFLOPS_DAY = 1e15 * 86400  # FLOPs of one PFLOP/s-day
TFLOP = 1e12

NAMES = {"digitised": "digitised stars", "6nd": "6ND", "account": "FLOP account"}
_CONTEXT, _HEAD, _MLA_HEAD, _CHUNK = 8192, 128, 192, 64


def six_nd(parameters: Number, tokens: Number) -> Number:
    """FLOPs of training, 6 N D."""
    return 6.0 * parameters * tokens


def paper_account(parameters: Array, tokens: Array, num_transformer_blocks: Array, heads: Array) -> Array:
    """FLOPs of training of the paper's models [n]: one block in four (rounded up) is MLA, the others KDA."""
    mla = np.ceil(num_transformer_blocks / 4)
    kda = num_transformer_blocks - mla
    attention = 6.0 * _CONTEXT * heads * _MLA_HEAD * mla
    state = 3.0 * heads * (6 * _HEAD**2 + 3 * _CHUNK * _HEAD + _CHUNK**2) * kda
    return tokens * (6.0 * parameters + attention + state)
