"""Block AttnRes with other block boundaries: given, at equal parameter counts, or counted as Kimi K3 does.

Only the ends of the blocks differ from `AttnRes`; every source, weight and execution is that of Block. Where
the boundaries are learned see `soft_blocks`. Letters as in `base`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from repro.depth.attnres import AttnRes
from repro.depth.boundaries import (
    SourcePlan,
    check_num_blocks,
    ends_by_fractions,
    ends_by_list,
    ends_by_weight,
    is_whole,
)
from repro.depth.facts import SchemeFacts
from repro.errors import ConfigError

#: Parameters of an attention sublayer in units of D^2: query, key, value and output matrices.
ATTENTION_MATRICES = 4
#: Matrices of an MLP sublayer, each D by its hidden width: gate, up and down.
MLP_MATRICES = 3


def _refuse(options: Mapping[str, Any], *keys: str) -> None:
    """ConfigError where an option of `AttnRes` would set the blocks a second time."""
    for key in keys:
        if options.get(key) is not None:
            raise ConfigError(f"arm.mixer.{key}", options[key], "null where the blocks are set otherwise")


def _end_blocks_at(mixer: AttnRes, ends: Sequence[int]) -> None:
    """Blocks with these ends in place of those that the constructor of `AttnRes` chose."""
    mixer.plan = SourcePlan(tuple(ends))
    mixer._plan_reads()


def _named(facts: SchemeFacts, kind: str, *links: str) -> SchemeFacts:
    """The row of AttnRes with another name, and with links of its own where there are any."""
    return replace(facts, system=f"{facts.system}, {kind}", links=links or facts.links)


class UnevenBlocks(AttnRes):
    """Blocks that end where a list says.

    Either boundaries: numbers of sublayers after which a block ends, ascending, L at most (the last block
    ends there anyway); or fractions: of the depth, between 0 and 1, so that one list serves any L. The list
    [L] is one block, 1, 2, ..., L is Full, and S, 2 S, ... is Block of size S.
    """

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        boundaries: list[int] | None = None,
        fractions: list[float] | None = None,
        **options: Any,
    ) -> None:
        _refuse(options, "block_size", "num_blocks", "window")
        if (boundaries is None) == (fractions is None):
            raise ConfigError("arm.mixer.boundaries", boundaries, "a list, or null where fractions is one")
        if fractions is None:
            ends = ends_by_list(num_sublayers, boundaries)
        else:
            ends = ends_by_fractions(num_sublayers, fractions)
        super().__init__(num_sublayers, width, **options)
        _end_blocks_at(self, ends)

    def facts(self) -> SchemeFacts:
        return _named(super().facts(), "uneven")


class EqualParameterBlocks(AttnRes):
    """Exactly num_blocks blocks of as equal parameter counts as whole sublayers allow.

    An attention sublayer has 4 D^2 parameters, a SwiGLU of hidden width F has 3 D F (norms left out: 2 D in
    both kinds together). A scheme knows the width, not F, so the arm states mlp_ratio = F / D, which only
    has to be near that of the model: boundaries are whole sublayers. At mlp_ratio 4/3 both kinds weigh the
    same, and blocks are those of `num_blocks` in `AttnRes` (but for ties).
    """

    def __init__(
        self, num_sublayers: int, width: int, *, num_blocks: int, mlp_ratio: float = 2.75, **options: Any
    ) -> None:
        _refuse(options, "block_size", "window")
        number = isinstance(mlp_ratio, int | float) and not isinstance(mlp_ratio, bool)
        if not number or not 0 < mlp_ratio < math.inf:
            allowed = "a positive number, model.mlp_width / model.width"
            raise ConfigError("arm.mixer.mlp_ratio", mlp_ratio, allowed)
        check_num_blocks(num_sublayers, num_blocks)
        super().__init__(num_sublayers, width, **options)
        weights = [MLP_MATRICES * mlp_ratio if l % 2 else ATTENTION_MATRICES for l in range(num_sublayers)]
        _end_blocks_at(self, ends_by_weight(num_blocks, weights))

    def facts(self) -> SchemeFacts:
        return _named(super().facts(), "equal parameters")


class K3Blocks(AttnRes):
    """Blocks as Kimi K3's published code forms them (arXiv:2607.24653), sized in transformer blocks.

    There the running sum, the embedding at first, is pushed to the list of blocks and reset where the index
    of a transformer block, from 0, is a multiple of `transformer_blocks`; a sublayer mixes the list and the
    running sum, or reads the running sum alone while the list is empty; the output read mixes the list and
    the last running sum, which is never pushed. Every read so sees the embedding, the complete blocks, and
    what the open block has: the sources of Block of 2 * transformer_blocks sublayers, a short last block
    included, and this class is that. K3 gives the key norm the model's eps of 1e-5; here it is that of
    `model.norm_eps`, as for every arm.
    """

    def __init__(self, num_sublayers: int, width: int, *, transformer_blocks: int, **options: Any) -> None:
        _refuse(options, "block_size", "num_blocks", "window")
        if not is_whole(transformer_blocks, 1):
            allowed = "a whole number of transformer blocks, at least 1"
            raise ConfigError("arm.mixer.transformer_blocks", transformer_blocks, allowed)
        options.pop("block_size", None)
        super().__init__(num_sublayers, width, block_size=2 * transformer_blocks, **options)

    def facts(self) -> SchemeFacts:
        return _named(super().facts(), "K3 mode", "arXiv:2607.24653")
