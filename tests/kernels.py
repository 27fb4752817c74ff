"""What tests of the Triton kernels share: poisoned outputs, tolerances, tensors on the kernels' device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from repro.ops.triton import rows

#: Where the kernels run: natively on a GPU, else in Triton's interpreter.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: max |a - b| / max |b| against float64, for inputs that are rounded to the type beforehand.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3}
DTYPES = tuple(TOLERANCES)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output of a kernel is NaN before the kernel runs."""

    def empty(shape: Sequence[int], dtype: torch.dtype, like: Tensor) -> Tensor:
        return torch.full(tuple(shape), torch.nan, dtype=dtype, device=like.device)

    monkeypatch.setattr(rows, "empty", empty)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Type of queries and scalars beside sources of a type."""
    return torch.promote_types(dtype, torch.float32)


def deviation(value: Tensor, reference: Tensor, scale: float = 0.0) -> float:
    """max |a - b| / max(max |b|, scale); 0 where both are exactly zero."""
    assert value.shape == reference.shape
    if reference.numel() == 0:
        return 0.0
    difference = (value.detach().cpu().double() - reference.detach().double()).abs().max().item()
    size = max(reference.abs().max().item(), scale)
    return difference / size if size > 0 else (0.0 if difference == 0 else float("inf"))
