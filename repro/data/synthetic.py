"""Generated tokens with structure to learn, for smoke runs and tests: no text, no download
(``data=synthetic``).

Two sources, so that per-source losses are exercised: `markov`, a chain in which each token has four
successors of probability 1/2, 1/4, 1/8, 1/8 (entropy rate 1.75 bits, 1.213 nats), and `copy`, a uniform
random half followed by its repetition (the first half costs the log of the vocabulary, the second nothing to
a model that looks back).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from repro.errors import ConfigError

DOCUMENT_TOKENS = 64  # without the end-of-text token
SUCCESSORS = 4
CUMULATIVE = np.array([0.5, 0.75, 0.875])


class SyntheticTokens:
    """About ``train_tokens`` and ``val_tokens`` tokens in documents of 64, drawn from ``seed``.

    vocab_size: including the end-of-text token, which is the last id.
    """

    def __init__(
        self, vocab_size: int, *, train_tokens: int = 200_000, val_tokens: int = 8_000, seed: int = 0
    ) -> None:
        if isinstance(vocab_size, bool) or not isinstance(vocab_size, int) or vocab_size < 8:
            raise ConfigError(
                "data.tokenizer.vocab_size", vocab_size, "an integer of at least 8 for data=synthetic"
            )
        for key, value in (("train_tokens", train_tokens), ("val_tokens", val_tokens)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"data.{key}", value, "a positive number of tokens")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError("data.seed", seed, "an integer of at least 0")
        self.vocab_size, self.seed = vocab_size, seed
        self.tokens = {"train": train_tokens, "val": val_tokens}

    def identity(self) -> dict[str, Any]:
        return {"seed": self.seed, **self.tokens}

    def token_bytes(self) -> list[int]:
        """Bytes that one token counts for: what storing it takes."""
        return [1 if self.vocab_size <= 256 else 2] * (self.vocab_size - 1) + [0]

    def documents(self) -> Iterator[tuple[str, str, str, npt.NDArray[np.int64], int]]:
        """(split, source, title, tokens, bytes), the two sources in turn."""
        symbols = self.vocab_size - 1
        successors = _uniform(self.seed, 0, symbols * SUCCESSORS).reshape(symbols, SUCCESSORS) * symbols
        for stream, split in enumerate(("train", "val"), start=1):
            count = -(-self.tokens[split] // (DOCUMENT_TOKENS + 1))
            draws = _uniform(self.seed, stream, count * DOCUMENT_TOKENS).reshape(count, DOCUMENT_TOKENS)
            markov = np.empty((count, DOCUMENT_TOKENS), dtype=np.int64)
            markov[:, 0] = draws[:, 0] * symbols
            for t in range(1, DOCUMENT_TOKENS):
                choice = np.searchsorted(CUMULATIVE, draws[:, t], side="right")
                markov[:, t] = successors[markov[:, t - 1], choice]
            half = (draws[:, : DOCUMENT_TOKENS // 2] * symbols).astype(np.int64)
            copy = np.concatenate([half, half], axis=1)
            size = DOCUMENT_TOKENS * self.token_bytes()[0]
            for number in range(count):
                source, tokens = ("markov", markov) if number % 2 == 0 else ("copy", copy)
                yield split, source, f"{split}:{number}", tokens[number], size


def _uniform(seed: int, stream: int, count: int) -> npt.NDArray[np.float64]:
    """Doubles in [0, 1) from raw counter-based bits, which NumPy keeps the same across versions."""
    bits = np.random.Philox(key=[seed, stream]).random_raw(count)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
