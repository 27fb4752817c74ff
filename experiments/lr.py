"""Which peak learning rate is best for PreNorm; all arms of a scale share it, as in the paper."""

from __future__ import annotations

from experiments.choice_items import choice_item

ITEM = choice_item(
    name="lr",
    title="Peak learning rate, chosen under PreNorm",
    claim="The paper tunes on its baseline and gives every variant the same value (Section 5.1).",
    keys=("optim.lr",),
    arms=("prenorm",),
    order=102,
)
