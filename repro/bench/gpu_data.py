"""Random inputs of kernels, from one seed, on the device where they are used."""

from __future__ import annotations

import torch
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Draw:
    """Streams [*lead, D] of a dtype, and the float32 parameters and scalars that go with them.

    On device meta there are shapes only, for descriptions of what would be compiled.
    """

    def __init__(self, device: str, dtype: str, lead: tuple[int, ...], width: int, seed: int = 0) -> None:
        self.device, self.dtype = torch.device(device), DTYPES[dtype]
        self.lead, self.width = lead, width
        meta = self.device.type == "meta"
        self._generator = None if meta else torch.Generator(self.device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=self._generator, device=self.device, dtype=dtype)

    def stream(self) -> Tensor:
        return self.normal(*self.lead, self.width, dtype=self.dtype)

    def streams(self, num: int) -> list[Tensor]:
        return [self.stream() for _ in range(num)]

    def scalars(self, *shape: int) -> Tensor:
        """[*lead, *shape]."""
        return self.normal(*self.lead, *shape)

    def logits(self, num: int, queries: int, heads: int = 1) -> Tensor:
        """[n, *lead, Q, H], those of a token side by side, as scores leave them."""
        return self.scalars(num, queries, heads).movedim(-3, 0)

    def query(self, *shape: int) -> Tensor:
        """[*shape, D], so large that logits of normalised keys have a standard deviation of about two."""
        return self.normal(*shape, self.width) * (2 / self.width**0.5)
