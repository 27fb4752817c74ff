"""What travels between the phases of a read, and how keys are normalised; shared by all backends."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class History(NamedTuple):
    """A part of a read that later parts are mixed into.

    mixed: [..., D].  lse: [..., H], the logit under which it stands for its sources (softmax); zero where
    weights are not normalised.  message: [..., H], the way back of delta of the whole read, or None
    where no later part follows (see `phases`).
    """

    mixed: Tensor
    lse: Tensor
    message: Tensor | None


class Norm(NamedTuple):
    """How keys are normalised.  groups: RMS per key, 0 (none), 1 (over the width) or H (over each head)."""

    heads: int = 1
    groups: int = 1
    eps: float = 1e-8


def key_groups(key_norm: bool, heads: int, head_norm: bool) -> int:
    """Number of RMS per key, of the options of `depth_mix`."""
    if not key_norm:
        return 0
    return heads if head_norm else 1
