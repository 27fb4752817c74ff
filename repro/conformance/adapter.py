"""How an implementation is called: one read, a walk through its model code, and what it can express."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor


class NotExpressible(Exception):
    """The implementation has no setting for this case; the text says which."""


class Read(NamedTuple):
    """One read. Where the implementation has no key gain, it is in the query and `gain` is None."""

    sources: list[Tensor]  # S of [1, T, D]
    query: Tensor  # [D]
    gain: Tensor | None  # [D]
    act: str
    key_norm: bool
    heads: int
    eps: float


class Setup(NamedTuple):
    """A network whose sublayers write given outputs, whatever they read."""

    embedding: Tensor  # [D]
    outputs: list[Tensor]  # L of [D]
    queries: Tensor  # [L + 1, D]
    gains: Tensor  # [L + 1, D]
    block_size: int  # sublayers
    eps: float


class Trace(NamedTuple):
    """What each of the L + 1 reads saw and gave; the last is what the final norm sees."""

    sources: list[list[Tensor]]  # per read, S of [D]; a read without a mix has what it passes on
    values: list[Tensor]  # per read, [D]
    num_queries: int
    zero_init: bool | None  # all pseudo-queries of a new model are exactly zero; None: the caller's or loaded


@dataclass(frozen=True)
class Adapter:
    """One implementation. Options are as read in its source; `mix` and `walk` import it when called."""

    name: str
    distribution: str  # as pip knows it
    ran: str  # what was called
    mix: Callable[[Read], tuple[Tensor, Tensor | None]] | None = None
    walk: Callable[[Setup], Trace] | None = None
    acts: tuple[str, ...] = ("softmax",)
    heads: bool = False
    raw_keys: bool = False  # works without key norm
    gain: str = "own"  # key gain: "own" parameter, "folded" into the query by its model, or "none"
    eps: str = "argument"  # how it is set, in words
    token_query: bool = False
    max_sources: int | None = None
    widths: str = "any"  # or "powers of two"
    dtype: str = "float32"
    interpreter: bool = False  # its kernels are Triton's
    needs: tuple[str, ...] = ()  # further distributions that it imports
    differs: str = ""  # from the paper's operation, in one neutral line

    def refusal(self, case: dict[str, Any]) -> str | None:
        """Why a read cannot be expressed, or None."""
        width, count = len(case["query"]), len(case["sources"])
        reasons = (
            (case["act"] not in self.acts, f"no {case['act']}"),
            (case["heads"] > 1 and not self.heads, "no heads"),
            (not case["key_norm"] and not self.raw_keys, "no read without key norm"),
            (case["eps"] == 0 and "positive" in self.eps, "eps must be positive"),
            (
                self.max_sources is not None and count > self.max_sources,
                f"at most {self.max_sources} sources",
            ),
            (self.widths == "powers of two" and width & (width - 1), "widths are powers of two"),
        )
        return next((reason for holds, reason in reasons if holds), None)


def as_tokens(vector: Tensor) -> Tensor:
    """[D] as [1, 1, D], the smallest batch of tokens."""
    return vector.reshape(1, 1, -1)


def as_vectors(sources: Sequence[Tensor]) -> list[Tensor]:
    """S of [1, 1, D] as S of [D]."""
    return [source.reshape(-1) for source in sources]
