"""Bytes that torch's own operators read and write: what runs beside the kernels is not left out.

Each operator is charged its tensor inputs and outputs once, whatever its implementation does inside; views
and allocations are free; an argument that is only overwritten is not read. Operators of our own library are
opened: what their implementation calls is charged, and their kernels are counted by `repro.bench.counting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from repro.bench.counting import Access, bytes_of

#: Namespace of our operators.
LIBRARY = "attnres"
_FREE = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
    *("_local_scalar_dense", "_unsafe_view", "squeeze_", "unsqueeze_", "t_"),
}
#: Whose first argument gives a place or a shape, and is not read.
_OVERWRITES = {
    *("copy_", "fill_", "zero_", "zeros_like", "ones_like", "full_like"),
    *("new_zeros", "new_ones", "new_full"),
}


class AtenTraffic(TorchDispatchMode):
    """While active, adds to `bytes`, by `Access` with the operator as kernel and no argument name."""

    def __init__(self, to: Counter[Access]) -> None:
        super().__init__()
        self.bytes = to
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if func.namespace == LIBRARY:
            # Straight to the implementation, with this mode on for what it calls.
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if name not in _FREE and not func.is_view:
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            if name in _OVERWRITES:
                inputs = inputs[1:]
            outputs = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
            self._add(name, inputs, "load")
            self._add(name, outputs, "store")
        return result

    def _add(self, name: str, tensors: list[Tensor], direction: str) -> None:
        for tensor in tensors:
            self.bytes[Access(f"aten::{name}", "", tuple(tensor.shape), direction)] += bytes_of(tensor)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What runs inside is not charged: the sublayers of a model whose mixer is measured."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before
