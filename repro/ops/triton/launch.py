"""Launches of kernels, and their description where nothing is launched (`recording`).

What is compiled ahead of time is read off the launch itself: `specialisations` of a kernel file runs its
wrappers on tensors without storage inside `recording`, so heuristics cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repro.ops.triton.specialisation import TYPE_NAMES, Specialisation

#: Element types as Triton's.
TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}

_recorded: list[Specialisation] | None = None


@contextmanager
def recording() -> Iterator[list[Specialisation]]:
    """Inside, `launch` appends a description to the list that is returned, and runs nothing."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before


def check_device(tensor: Tensor) -> None:
    """ValueError where kernels cannot run on the tensor's device."""
    if _recorded is None and not tensor.is_cuda and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"backend triton needs tensors on a GPU, got {tensor.device} (on a CPU only in the interpreter: "
            "set TRITON_INTERPRET=1 before Python starts)"
        )


def launch(
    kernel: Any, grid: tuple[int, ...], num_warps: int, *, num_stages: int = 1, **arguments: Any
) -> None:
    """Run a kernel on the device of its tensors; arguments by name, constexprs and tuples included.

    num_stages: of the pipeline of a loop's loads; one where loops are unrolled or short.
    """
    if _recorded is not None:
        _recorded.append(_describe(kernel, num_warps, num_stages, arguments))
        return
    device = next(_tensors(arguments)).device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages)


def _tensors(arguments: dict[str, Any]) -> Iterator[Tensor]:
    for value in arguments.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Tensor):
                yield part


def _type_name(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + TYPE_NAMES[value.dtype]
    if isinstance(value, int) and not isinstance(value, bool):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    raise TypeError(f"no type of a kernel's argument fits {value!r}")


def _describe(kernel: Any, num_warps: int, num_stages: int, arguments: dict[str, Any]) -> Specialisation:
    signature: dict[str, Any] = {}
    constexprs: dict[str, Any] = {}
    aligned = []
    names = {param.name for param in kernel.params if param.is_constexpr}
    for name in kernel.arg_names:
        value = arguments[name]
        # Triton compiles in what is None or an integer of one.
        if name in names or value is None or (isinstance(value, int) and value == 1):
            signature[name], constexprs[name] = "constexpr", value
            continue
        parts = value if isinstance(value, tuple) else (value,)
        kinds = tuple(_type_name(part) for part in parts)
        signature[name] = kinds if isinstance(value, tuple) else kinds[0]
        if kinds and kinds[0].startswith("i") and all(part % 16 == 0 for part in parts):
            aligned.append(name)
    return Specialisation(
        kernel.fn.__name__,
        kernel,
        signature,
        constexprs,
        num_warps=num_warps,
        num_stages=num_stages,
        aligned=tuple(aligned),
    )
