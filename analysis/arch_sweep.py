"""The architecture sweep of Fig. 7, planned: a shape and tokens per cell, at fixed parameters and compute.

A cell is (d / L_b, H / L_b): width and attention heads per transformer block. The planner searches integer
shapes of our decoder, gives the MLP the width that meets the parameters, and as many whole batches of tokens
as meet the compute; what integers leave over is reported. Letters: d width, L_b transformer blocks, H heads,
m MLP width. The paper's own shapes are not stated; ``paper_shape`` solves them from its architecture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

SHAPE_KEYS = {
    "model.width": "width",
    "model.num_transformer_blocks": "num_transformer_blocks",
    "model.num_heads": "num_heads",
    "model.mlp_width": "mlp_width",
    "budget.tokens": "tokens",
}


@dataclass(frozen=True)
class Cell:
    """One place of the grid: d / L_b and H / L_b."""

    width_per_block: float
    heads_per_block: float

    @property
    def name(self) -> str:
        """As in ``conf/grid/<scale>-<name>.yaml``; heads per block in thousandths, to avoid a dot."""
        return f"d{self.width_per_block:g}-h{round(1000 * self.heads_per_block)}"


@dataclass(frozen=True)
class Shape:
    """What a cell trains; the keys of a config that it sets are ``SHAPE_KEYS``."""

    width: int
    num_transformer_blocks: int
    num_heads: int
    mlp_width: int
    tokens: int


@dataclass(frozen=True)
class Grid:
    """Cells and what is held fixed in all of them.

    parameters: of the model without embedding and head; flops: of training PreNorm, by ``flops_per_token``;
    mlp_ratio: m / d aimed at.  vocab_size, context and batch_size are those of the scale.
    """

    width_per_block: tuple[float, ...]
    heads_per_block: tuple[float, ...]
    parameters: float
    flops: float
    mlp_ratio: float
    vocab_size: int
    context: int
    batch_size: int

    def cells(self) -> list[Cell]:
        """All cells, heads per block changing slowest."""
        return [Cell(w, h) for h, w in product(self.heads_per_block, self.width_per_block)]


@dataclass(frozen=True)
class Plan:
    """A cell with its shape; errors are relative to what was aimed at, 0.01 is 1 %."""

    cell: Cell
    shape: Shape
    parameters_error: float
    flops_error: float
    width_error: float
    heads_error: float
    mlp_error: float


def parameters(shape: Shape) -> int:
    """Parameters of our PreNorm decoder without embedding and head: matrices and norm gains."""
    d, m, blocks = shape.width, shape.mlp_width, shape.num_transformer_blocks
    return blocks * (4 * d * d + 3 * d * m + 2 * d) + d


def flops_per_token(shape: Shape, vocab_size: int, context: int) -> float:
    """Training FLOPs per token of our PreNorm decoder, the account of ``Decoder.flops_per_token``.

    2 per weight of every matrix and the head, 2 T d per attention, d per residual addition; times three.
    """
    d, m, blocks = shape.width, shape.mlp_width, shape.num_transformer_blocks
    weights = blocks * (4 * d * d + 3 * d * m) + vocab_size * d
    return 3.0 * (2.0 * weights + blocks * 2.0 * context * d + 2 * blocks * d)


def plan(grid: Grid, cell: Cell) -> Plan:
    """The integer shape nearest to a cell: least sum of squared log errors of d / L_b, H / L_b and m / d.

    d is a multiple of 2 H (rotary needs an even head size).
    """
    # d^3 = ratio * N / (4 + 3 m/d) in real numbers; integers are searched around it.
    centre = (cell.width_per_block * grid.parameters / (4 + 3 * grid.mlp_ratio)) ** (1 / 3)
    best: tuple[float, Plan] | None = None
    blocks_range = _around(centre / cell.width_per_block)
    for blocks, heads in product(blocks_range, _around(cell.heads_per_block * centre / cell.width_per_block)):
        for width in (w for w in _around(centre) if w % (2 * heads) == 0):
            rest = grid.parameters - width - blocks * (4 * width**2 + 2 * width)
            mlp_width = round(rest / (3 * width * blocks))
            if mlp_width < 1:
                continue
            candidate = _planned(grid, cell, width, blocks, heads, mlp_width)
            errors = (candidate.width_error, candidate.heads_error, candidate.mlp_error)
            score = sum(math.log1p(error) ** 2 for error in errors)
            if best is None or score < best[0]:
                best = score, candidate
    if best is None:
        raise ValueError(f"no shape for d / L_b = {cell.width_per_block}, H / L_b = {cell.heads_per_block}")
    return best[1]


def _planned(grid: Grid, cell: Cell, width: int, blocks: int, heads: int, mlp_width: int) -> Plan:
    batch = grid.batch_size * grid.context
    shape = Shape(width, blocks, heads, mlp_width, batch)
    per_token = flops_per_token(shape, grid.vocab_size, grid.context)
    tokens = max(1, round(grid.flops / per_token / batch)) * batch
    return Plan(
        cell,
        Shape(width, blocks, heads, mlp_width, tokens),
        parameters_error=parameters(shape) / grid.parameters - 1,
        flops_error=per_token * tokens / grid.flops - 1,
        width_error=width / blocks / cell.width_per_block - 1,
        heads_error=heads / blocks / cell.heads_per_block - 1,
        mlp_error=mlp_width / width / grid.mlp_ratio - 1,
    )


def _around(value: float) -> range:
    return range(max(1, int(value / 1.5)), int(value * 1.5) + 2)


# The paper's models: KDA and MLA attention 3 : 1, head size 128, mixture of experts with 8 + 1 of 256 active.
PAPER_PARAMETERS, PAPER_FLOPS, PAPER_CONTEXT, PAPER_MLP_RATIO = 2.3e8, 6.5e19, 8192, 0.45
HEAD, EXPERTS, ACTIVE = 128, 256, 9


@dataclass(frozen=True)
class PaperShape:
    """L_b, d, H in real numbers that meet the paper's parameters, and tokens that meet its compute."""

    num_transformer_blocks: float
    width: float
    num_heads: float
    tokens: float

    def rounded_error(self) -> float:
        """Relative error in parameters once L_b, d and H are rounded."""
        rounded = (round(self.num_transformer_blocks), round(self.width), round(self.num_heads))
        return paper_parameters(*rounded) / PAPER_PARAMETERS - 1


def paper_parameters(blocks: float, width: float, heads: float) -> float:
    """Activated parameters without embedding (account inferred from Table 2); a quarter of blocks MLA."""
    kda = 4 * width * heads * HEAD + 2 * (width * HEAD + HEAD * heads * HEAD) + width * heads
    mla = width * heads * 192 + width * 576 + 512 * heads * 256 + heads * HEAD * width
    moe = ACTIVE * 3 * width * PAPER_MLP_RATIO * width + width * EXPERTS
    return blocks * (0.75 * kda + 0.25 * mla + moe)


def paper_flops_per_token(blocks: float, width: float, heads: float) -> float:
    """Training FLOPs per token: 6 per parameter, MLA over half the context, KDA in chunks of 64."""
    attention = 6 * PAPER_CONTEXT * heads * 192 * 0.25 * blocks
    kda = 3 * heads * (6 * HEAD**2 + 3 * 64 * HEAD + 64**2) * 0.75 * blocks
    return 6 * paper_parameters(blocks, width, heads) + attention + kda


def paper_shape(cell: Cell) -> PaperShape:
    """The shape of one of the paper's cells, by bisection on L_b (parameters grow with it)."""
    low, high = 1.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        found = paper_parameters(middle, cell.width_per_block * middle, cell.heads_per_block * middle)
        low, high = (middle, high) if found < PAPER_PARAMETERS else (low, middle)
    blocks, width, heads = low, cell.width_per_block * low, cell.heads_per_block * low
    return PaperShape(blocks, width, heads, PAPER_FLOPS / paper_flops_per_token(blocks, width, heads))
