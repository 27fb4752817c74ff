"""One compiled form of a kernel, described well enough to compile it where there is no GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

#: Triton's names of element types, for signatures ("*bf16" is a pointer to bfloat16).
TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


@dataclass(frozen=True)
class Specialisation:
    """What one launch compiles, from the same heuristics as the launch itself.

    kernel: name in tables.  function: the jit function.  signature: every argument in order -> its type:
    "*bf16", "*fp32", "i32", "i64", "fp32", "constexpr", or a tuple of types where the argument is a tuple
    (of pointers, of strides).  constexprs: value of every argument of type "constexpr"; None is a value,
    as for a pointer that a launch leaves out.  aligned: integer arguments (all elements, of a tuple) that
    are multiples of 16 in this launch, which Triton finds out at run time and uses for wide loads; all
    pointers are taken to be so, since torch aligns its storage.
    """

    kernel: str
    function: Any
    signature: Mapping[str, Any]
    constexprs: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 1
    aligned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        missing = [name for name, kind in self.signature.items() if kind == "constexpr"]
        missing = [name for name in missing if name not in self.constexprs]
        if missing:
            raise ValueError(f"{self.kernel}: constexprs lack a value for {', '.join(missing)}")

    def attributes(self) -> dict[tuple[int, ...], list[list[Any]]]:
        """Divisibility by 16 in the form that `triton.compiler.ASTSource` takes as `attrs`."""
        found: dict[tuple[int, ...], list[list[Any]]] = {}
        for i, (name, kind) in enumerate(self.signature.items()):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            for j, part in enumerate(kinds):
                if part.startswith("*") or (name in self.aligned and part.startswith("i")):
                    found[(i, j) if isinstance(kind, tuple) else (i,)] = [["tt.divisibility", 16]]
        return found
