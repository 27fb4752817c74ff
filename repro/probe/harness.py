"""A run's checkpoint as a model of lm-evaluation-harness, through its Python API (an optional package,
`lm_eval`).

    from repro.probe.harness import harness_model
    lm_eval.simple_evaluate(model=harness_model(trained, tokenizer), tasks=["piqa"])

Scores are those of `repro.probe.scoring`. Generation is refused: models of this size are scored, not sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repro.data.tokenizer import Tokenizer, load_tokenizer
from repro.errors import DataError
from repro.probe.scoring import Model, Score, score
from repro.probe.trained import Trained


def harness_model(trained: Trained) -> Any:
    """An ``lm_eval.api.model.LM`` of a trained run; a DataError where the package, or a tokenizer, is
    missing.
    """
    if trained.shards.tokenizer_kind == "none":
        raise DataError(
            f"{trained.run.directory}: trained on generated tokens, which have no text to evaluate"
        )
    return adapter()(trained.decoder, load_tokenizer(trained.shards.directory), trained.decoder.context)


def adapter() -> type:
    """The subclass of ``lm_eval.api.model.LM``, made where the package is imported."""
    try:
        from lm_eval.api.model import LM
    except ImportError:
        raise DataError("lm_eval is not installed: pip install lm-eval") from None

    class Harness(LM):
        def __init__(self, model: Model, tokenizer: Tokenizer, context: int) -> None:
            super().__init__()
            self._model, self._tokenizer, self._context = model, tokenizer, context

        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            pairs = [request.args for request in requests]
            return [
                (found.logprob, found.greedy)
                for found in scores(self._model, self._tokenizer, self._context, pairs)
            ]

        def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
            texts = [("", request.args[0]) for request in requests]
            found = scores(self._model, self._tokenizer, self._context, texts, whole=True)
            return [one.logprob for one in found]

        def generate_until(self, requests: Sequence[Any]) -> list[str]:
            raise NotImplementedError("only scored tasks (loglikelihood) are supported")

    return Harness


def scores(
    model: Model,
    tokenizer: Tokenizer,
    context: int,
    pairs: Sequence[tuple[str, str]],
    *,
    whole: bool = False,
) -> list[Score]:
    """Scores of (context, continuation) as text, each after an end-of-text token.

    whole: score every token of the continuation, in disjoint windows where it is longer than the context.
    """
    texts = [text for pair in pairs for text in pair]
    encoded = [list(map(int, tokens)) for tokens in tokenizer.encode(texts)]
    rows = [([tokenizer.end_of_text, *a], b) for a, b in zip(encoded[::2], encoded[1::2], strict=True)]
    if not whole:
        return score(model, rows, context)
    found = []
    for before, after in rows:
        parts = [after[i : i + context] for i in range(0, len(after), context)]
        starts = [before[-1:], *(part[-1:] for part in parts[:-1])]
        own = score(model, list(zip(starts, parts, strict=True)), context)
        found.append(Score(sum(s.logprob for s in own), all(s.greedy for s in own), 0))
    return found
