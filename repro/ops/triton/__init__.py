"""Triton kernels of the depth-mixing operations, forward and backward; derivations in README.md.

Imported only where backend triton is picked: nothing else in the suite needs the package.
"""

from __future__ import annotations

from repro.ops.triton.library import depth_mix
from repro.ops.triton.library_merge import merge_backward, merge_forward
from repro.ops.triton.library_phases import mix_backward, mix_forward, score_backward, score_forward

#: The kernels take delta from prior and partial sum: reads are stored in half precision here.
DELTA_FROM_READ = False

__all__ = [
    "DELTA_FROM_READ",
    "depth_mix",
    "merge_backward",
    "merge_forward",
    "mix_backward",
    "mix_forward",
    "score_backward",
    "score_forward",
]
