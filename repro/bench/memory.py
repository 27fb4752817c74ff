"""Peak memory of a training step, from the allocator's own record.

On CPU the profiler reports every allocation and every release of torch's allocator, temporaries inside an
operator included; their running sum is the live memory. Libraries below torch (oneDNN's scratch, for one) do
not appear. On CUDA it is the allocator's peak counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

MIB = 2**20


def resident_bytes(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers and the optimizer's state, each storage once."""
    parts = getattr(optimizer, "optimizers", [optimizer])  # Muon and AdamW may stand behind one
    state = (v for part in parts for entry in part.state.values() for v in entry.values())
    return _storage_bytes(
        [*module.parameters(), *module.buffers(), *(v for v in state if torch.is_tensor(v))]
    )


def peak_bytes(work: Callable[[], Any], device: torch.device) -> int:
    """Most bytes that `work` holds at once beyond what was there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    results = recorded.profiler.kineto_results  # type: ignore[union-attr]
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    live = peak = 0
    for _, change in sorted(changes, key=lambda item: item[0]):  # stable: equal times keep their order
        live += change
        peak = max(peak, live)
    return peak


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
