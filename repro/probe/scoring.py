"""Log-probability of a continuation after a context, for many pairs at once.

Rows are padded on the right, which a causal model cannot see, so a score does not depend on what else is in
the batch. What is longer than the model's context loses tokens on the left, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Tokens = Sequence[int]
#: tokens [B, T] -> logits [B, T, V]
Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Score:
    """logprob: of the continuation, nats.  greedy: every token of it was the most likely one.

    truncated: tokens cut off on the left of context and continuation.
    """

    logprob: float
    greedy: bool
    truncated: int


@torch.no_grad()
def score(
    model: Model,
    pairs: Sequence[tuple[Tokens, Tokens]],
    context: int,
    *,
    batch_tokens: int = 4096,
    device: torch.device | str = "cpu",
) -> list[Score]:
    """Score each (context, continuation), in the order given.

    context: the longest input of the model.  batch_tokens: of one pass, padding included.
    Errors: ValueError for an empty context or continuation.
    """
    if any(not before or not after for before, after in pairs):
        raise ValueError("a context and a continuation have at least one token each")
    rows = [[*before, *after] for before, after in pairs]
    cut = [max(0, len(row) - context - 1) for row in rows]
    rows = [row[n:] for row, n in zip(rows, cut, strict=True)]
    counted = [min(len(after), len(row) - 1) for (_, after), row in zip(pairs, rows, strict=True)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    scores: list[Score | None] = [None] * len(rows)
    while order:
        longest = len(rows[order[-1]]) - 1
        batch = order[-max(1, batch_tokens // longest) :]
        del order[-len(batch) :]
        inputs = torch.zeros(len(batch), longest, dtype=torch.long)
        targets = torch.full((len(batch), longest), -1, dtype=torch.long)
        for b, i in enumerate(batch):
            end = len(rows[i]) - 1
            inputs[b, :end] = torch.tensor(rows[i][:-1])
            targets[b, end - counted[i] : end] = torch.tensor(rows[i][len(rows[i]) - counted[i] :])
        asked = targets >= 0
        logits = model(inputs.to(device))[asked.to(device)]
        wide = torch.promote_types(logits.dtype, torch.float32)
        wanted = targets[asked].to(logits.device)
        logprobs = logits.to(wide).log_softmax(-1)
        own = logprobs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1).double().cpu()
        best = (logits.argmax(-1) == wanted).cpu()
        parts = zip(
            batch,
            own.split([counted[i] for i in batch]),
            best.split([counted[i] for i in batch]),
            strict=True,
        )
        for i, values, hits in parts:
            scores[i] = Score(float(values.sum()), bool(hits.all()), cut[i])
    return [s for s in scores if s is not None]
