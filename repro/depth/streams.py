"""What schemes of n parallel streams share: the state, reading it and writing into it.

The state is x [n, D] per token. From it sublayer l takes alpha [n], beta [n] and a mixing A [n, n] and does

    reads  h = alpha x            x <- A x + beta^T f(h)

(Table 5 and Fig. 9 have streams as columns, H_l = H_{l-1} A_l + f(H_{l-1} alpha) beta^T: their A_l is the
transpose of this one). The embedding is repeated into all streams; what the final norm sees is their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repro.depth.base import DepthMixer, State
from repro.errors import ConfigError
from repro.ops.precision import full_precision
from repro.ops.streams import add, gather, mix_and_add


class StreamMixer(DepthMixer):
    """n streams; a subclass says in `coefficients` how they are read, mixed and written.

    Coefficients are computed in fp32 or wider; streams keep the embedding's dtype.
    Errors: ConfigError for `arm.mixer.streams`.
    """

    #: False where coefficients are parameters: they are then not carried from the read to the write.
    per_token: bool = True

    def __init__(self, num_sublayers: int, width: int, *, streams: int, **common: Any) -> None:
        super().__init__(num_sublayers, width, **common)
        check_count("arm.mixer.streams", streams)
        self.streams = streams

    def coefficients(self, streams: Tensor, l: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """alpha, beta [n, tokens] and A [n, n, tokens] (None: the identity) from streams [tokens, n, D]."""
        raise NotImplementedError

    @torch.no_grad()
    def mixing_residual(self, streams: Tensor, l: int) -> float:
        """How far A of sublayer l is from doubly stochastic: max |sum - 1| of rows, columns and tokens."""
        mixing = self.coefficients(widened(streams), l)[2]
        if mixing is None:
            return 0.0
        return max((mixing.sum(axis) - 1).abs().max().item() for axis in (0, 1))

    @torch.no_grad()
    def mixing_residuals(self, embedding: Tensor, sublayers: Callable[[int, Tensor], Tensor]) -> list[float]:
        """`mixing_residual` of every sublayer in a pass over embedding [B, T, D]."""
        state, found = self.begin(embedding), []
        for l in range(self.num_sublayers):
            found.append(self.mixing_residual(state[0], l))
            x, state = self.read(state, l)
            state = self.write(state, l, sublayers(l, x))
        return found

    def begin(self, embedding: Tensor) -> State:
        streams = embedding.reshape(-1, 1, self.width).expand(-1, self.streams, -1).contiguous()
        return streams, None, embedding.shape

    def read(self, state: State, l: int) -> tuple[Tensor, State]:
        streams, _, shape = state
        with full_precision(streams.device):
            wide = widened(streams)
            alpha, beta, mixing = self.coefficients(wide, l)
            x = gather(wide, alpha.T.contiguous())
        carried = (beta, mixing) if self.per_token else None
        return x.to(streams.dtype).view(shape), (streams, carried, shape)

    def write(self, state: State, l: int, output: Tensor) -> State:
        streams, carried, shape = state
        with full_precision(streams.device):
            wide, y = widened(streams), output.reshape(-1, self.width)
            beta, mixing = carried or self.coefficients(wide, l)[1:]
            places, y = beta.T.contiguous(), y.to(wide.dtype)
            if mixing is None:
                wide = add(wide, places, y)
            else:
                wide = mix_and_add(wide, mixing.permute(2, 0, 1), places, y)
        return wide.to(streams.dtype), None, shape

    def finish(self, state: State) -> Tensor:
        streams, _, shape = state
        return streams.sum(1).view(shape)

    def stream(self, state: State) -> Tensor | None:
        return self.finish(state)


def widened(x: Tensor) -> Tensor:
    """x in fp32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def check_count(key: str, value: object, most: int | None = None) -> None:
    """ConfigError naming `key` unless value is an integer from 1 to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most and value > most):
        raise ConfigError(
            key, value, f"must be an integer from 1 to {most}" if most else "must be an integer >= 1"
        )
