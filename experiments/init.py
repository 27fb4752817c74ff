"""Which initialisation is best for PreNorm, and how much of an arm's gap is the baseline's initialisation."""

from __future__ import annotations

from experiments.choice_items import choice_item

ITEM = choice_item(
    name="init",
    title="Initialisation, chosen under PreNorm",
    claim="Not in the paper, which does not state its initialisation.",
    keys=("model.init.scheme", "model.init.embedding_std"),
    arms=("prenorm", "block_s4"),
    order=101,
)
