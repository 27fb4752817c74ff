"""The phases of `phases` in plain torch operations: the fast path on CPUs, and wherever Triton is not."""

from repro.ops.eager_merge import merge_backward, merge_forward
from repro.ops.eager_mix import mix_backward, mix_forward
from repro.ops.eager_score import score_backward, score_forward

__all__ = [
    "DELTA_FROM_READ",
    "merge_backward",
    "merge_forward",
    "mix_backward",
    "mix_forward",
    "score_backward",
    "score_forward",
]

#: A merge may take delta from the read itself where that was not rounded.
DELTA_FROM_READ = True
