"""Would a learning rate of its own change the order of the arms?"""

from __future__ import annotations

from experiments.choice_items import choice_item

ITEM = choice_item(
    name="lr_fairness",
    title="Peak learning rate, swept for each arm",
    claim="Not in the paper: it shares PreNorm's learning rate among all variants.",
    keys=("optim.lr",),
    arms=("prenorm", "full", "block_s4", "mhc"),
    order=103,
)
