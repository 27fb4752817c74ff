"""Small decoders in float64 for tests, with tokens to feed them."""

from __future__ import annotations

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from tests.tiny import with_arm
from tests.toy import default_dtype, normal

#: L = 8 sublayers: the fewest for which every arm exists (eight blocks)
SIZE = ("model.num_transformer_blocks=4", "budget.context=12", "data.tokenizer.vocab_size=11")
VOCABULARY, CONTEXT, WIDTH, SUBLAYERS = 11, 12, 16, 8


def build(config: DictConfig, arm: str | dict[str, object], dtype: torch.dtype = torch.float64) -> Decoder:
    """The decoder of an arm (a name, or options of AttnRes), its parameters created in `dtype`."""
    if isinstance(arm, str):
        config = with_arm(config, arm)
    else:
        config = config.copy()
        OmegaConf.update(config, "arm.mixer", {"_target_": "repro.depth.attnres.AttnRes", **arm}, merge=False)
    with default_dtype(dtype):
        return build_decoder(config)


def text(rows: int = 2) -> tuple[Tensor, Tensor]:
    """Inputs and targets, [rows, T] each."""
    drawn = (1000 * normal("tokens", rows, CONTEXT + 1)).long() % VOCABULARY
    return drawn[:, :-1], drawn[:, 1:]


def tokens() -> Tensor:
    return text()[0]


def of_arm(config: DictConfig, target: str, **options: object) -> Decoder:
    """The decoder of a scheme with options of its own."""
    config = config.copy()
    OmegaConf.update(config, "arm.mixer", {"_target_": f"repro.depth.{target}", **options}, merge=False)
    with default_dtype(torch.float64):
        return build_decoder(config)
