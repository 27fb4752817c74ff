"""Bytes that Triton kernels load and store, counted exactly: the interpreter runs every access one by one.

`counting` hooks the memory operations of Triton's interpreter (TRITON_INTERPRET=1, CPU tensors). Masked
lanes are not counted; block pointers and tensor descriptors end in the same masked accesses; an atomic
operation is a load and a store. Caches do not exist here: an element that a kernel loads twice counts twice.
Each access is attributed to the argument of the launch whose elements it touches, so an access outside of
all arguments is an error and not a number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from triton import knobs
from triton.runtime import interpreter

from repro.bench.interpreter import patching_once

BUILDER = interpreter.interpreter_builder


class Access(NamedTuple):
    """What bytes are counted by. shape: of the tensor that the launch was given; direction: load or store."""

    kernel: str
    argument: str
    shape: tuple[int, ...]
    direction: str


class Traffic:
    """Bytes by `Access`, and launches by kernel."""

    def __init__(self) -> None:
        self.bytes: Counter[Access] = Counter()
        self.launches: Counter[str] = Counter()

    def total(self, **wanted: Any) -> int:
        """Sum over the accesses whose fields have the given values."""
        return sum(
            count
            for access, count in self.bytes.items()
            if all(getattr(access, field) == value for field, value in wanted.items())
        )


class Region:
    """Memory of one tensor argument: membership of addresses in its elements, for any strides."""

    def __init__(self, argument: str, tensor: Tensor) -> None:
        self.argument, self.shape = argument, tuple(tensor.shape)
        self.start, self.itemsize = tensor.data_ptr(), tensor.element_size()
        axes = [(abs(step), size) for step, size in zip(tensor.stride(), tensor.shape, strict=True)]
        self.axes = sorted((axis for axis in axes if axis[0] and axis[1] > 1), reverse=True)
        elements = sum(step * (size - 1) for step, size in self.axes) + 1 if tensor.numel() else 0
        self.end = self.start + elements * self.itemsize
        storage = tensor.untyped_storage()
        self.storage = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Which addresses are elements of the tensor (strides that overlap are taken greedily)."""
        inside = (addresses >= self.start) & (addresses < self.end)
        rest, unaligned = np.divmod(np.where(inside, addresses, self.start) - self.start, self.itemsize)
        for step, size in self.axes:
            index = np.minimum(rest // step, size - 1)
            rest = rest - index * step
        return inside & (unaligned == 0) & (rest == 0)

    def spans(self, low: int, high: int) -> bool:
        return self.start <= low and high < self.end

    def in_storage(self, addresses: np.ndarray) -> np.ndarray:
        return (addresses >= self.storage[0]) & (addresses < self.storage[1])


def _regions(name: str, value: Any) -> Iterator[Region]:
    if isinstance(value, Tensor):
        yield Region(name, value)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _regions(name, part)
    elif hasattr(value, "base"):  # tensor descriptors, wrappers of a tensor
        yield from _regions(name, value.base)


class _Launch:
    """The kernel that is running and the memory it was given."""

    def __init__(self, kernel: str, arguments: dict[str, Any], traffic: Traffic) -> None:
        self.kernel, self.traffic = kernel, traffic
        self.regions = [region for name, value in arguments.items() for region in _regions(name, value)]

    def count(self, pointers: Any, mask: Any, *directions: str) -> None:
        """Attribute the active lanes of one access; a lane goes to the first argument that holds it."""
        addresses = np.asarray(pointers.data).astype(np.int64)
        if mask is not None:
            kept = np.asarray(mask.data if isinstance(mask, interpreter.TensorHandle) else mask, dtype=bool)
            addresses = addresses[np.broadcast_to(kept, addresses.shape)]
        addresses = addresses.reshape(-1)
        if not addresses.size:
            return
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        low, high = int(addresses.min()), int(addresses.max())
        near = [region for region in self.regions if region.start <= high and low < region.end]
        if len(near) == 1 and near[0].spans(low, high):
            self._add(near[0], addresses.size * size, directions)
            return
        # Views of one storage interleave: element by element. A kernel may also walk beyond a view.
        for holds in (Region.holds, Region.in_storage):
            for region in self.regions:
                held = holds(region, addresses)
                if held.any():
                    self._add(region, int(held.sum()) * size, directions)
                    addresses = addresses[~held]
            if not addresses.size:
                return
        raise ValueError(f"{self.kernel}: {addresses.size} lanes access memory outside of all arguments")

    def _add(self, region: Region, count: int, directions: tuple[str, ...]) -> None:
        for direction in directions:
            self.traffic.bytes[Access(self.kernel, region.argument, region.shape, direction)] += count


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count all kernels that run inside. RuntimeError unless Triton interprets its kernels."""
    if not knobs.runtime.interpret:
        raise RuntimeError(
            "set TRITON_INTERPRET=1 before Python starts: only interpreted kernels are counted"
        )
    traffic = Traffic()
    running: list[_Launch] = []
    hooks = {
        "create_masked_load": ("load",),
        "create_masked_store": ("store",),
        "create_atomic_rmw": ("load", "store"),
        "create_atomic_cas": ("load", "store"),
    }
    originals = {name: getattr(BUILDER, name) for name in hooks}
    run = interpreter.GridExecutor.__call__

    def hooked(name: str, directions: tuple[str, ...]) -> Any:
        places = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}
        pointer, mask = places.get(name, (0, None))

        def access(*args: Any, **kwargs: Any) -> Any:
            running[-1].count(args[pointer], None if mask is None else args[mask], *directions)
            return originals[name](*args, **kwargs)

        return access

    def counted_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        kernel = self.fn.__name__
        traffic.launches[kernel] += 1
        running.append(_Launch(kernel, arguments, traffic))
        try:
            with _disable_current_modes():  # what the interpreter does with tensors is no traffic
                return run(self, *args, **kwargs)
        finally:
            running.pop()

    # On the one builder object, so that its own calls (an unmasked load is a masked one) are seen once.
    for name, directions in hooks.items():
        setattr(BUILDER, name, hooked(name, directions))
    interpreter.GridExecutor.__call__ = counted_run
    try:
        with patching_once():
            yield traffic
    finally:
        for name in hooks:
            delattr(BUILDER, name)
        interpreter.GridExecutor.__call__ = run


def bytes_of(tensor: Tensor) -> int:
    """Distinct bytes of a tensor: an expanded axis is read once."""
    sizes = [size for size, step in zip(tensor.shape, tensor.stride(), strict=True) if step or size == 0]
    return int(torch.Size(sizes).numel()) * tensor.element_size()
