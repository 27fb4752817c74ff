"""Depth attention never runs in autocast's narrow type: logits, softmax and sums stay in float32 or wider."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context with autocast off; free of charge where it is off already."""
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
