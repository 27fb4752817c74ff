"""The protocol of a residual scheme: what each sublayer reads, given what the earlier ones wrote.

The decoder is one loop, ``read -> norm -> attention | MLP -> write``, for every scheme of the paper's
Table 4 and Table 5; everything that differs between schemes lives in one subclass of `DepthMixer`.

Letters: B batch, T tokens, D width, L sublayers (two per transformer block), S sources, H depth heads.
Sublayers are counted from 0; index L stands for the output read, which feeds the final norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from repro import ops
from repro.depth.facts import SchemeFacts
from repro.depth.inputs import Read
from repro.errors import ConfigError
from repro.ops.norm import inverse_rms, rms_norm

#: What `runtime.backend` may be.
BACKENDS, SINGLE_READS = ops.BACKENDS, ops.SINGLE_READS

# Parameter groups. `matrix` may go to Muon and is decayed; all others go to AdamW without decay.
PARAMETER_GROUPS = ("matrix", "embedding", "head", "norm", "query", "gain", "scalar")

State = Any  # an immutable tuple of tensors, private to its scheme
Tap = Callable[[int, Tensor], None]


def tagged(value: Tensor, group: str) -> nn.Parameter:
    """A parameter that carries its optimiser group, so that nothing is routed by its shape."""
    if group not in PARAMETER_GROUPS:
        raise ValueError(f"parameter group {group!r} is not one of {PARAMETER_GROUPS}")
    parameter = nn.Parameter(value)
    parameter.group = group  # type: ignore[attr-defined]
    return parameter


def is_number(value: object) -> bool:
    """Whether a setting is a finite number (not a bool)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def pick_backend(name: str, device: torch.device | str, compiled: bool = False) -> str:
    """The backend of `repro.ops` that `runtime.backend` means on a device; ConfigError if it cannot run."""
    try:
        return ops.pick(name, device, compiled)
    except ValueError as error:
        raise ConfigError("runtime.backend", name, f"one that can run here ({error})") from error


class DepthMixer(nn.Module):
    """Base of all residual schemes; holds parameters only, activations travel in the state.

    num_sublayers: L.  width: D.  eps: of the scheme's own norms (key norm), added to the mean square.
    execution: the order in which the same numbers are computed (`executions` lists what a scheme
    offers, its first entry is what "auto" means).  backend: passed to `repro.ops`.
    """

    #: the scheme's row of Table 5
    FACTS: ClassVar[SchemeFacts]
    #: True where a read maps channels to channels: numbers per pair (`repro.depth.matrix`) do not give it
    maps_channels: bool = False
    executions: tuple[str, ...] = ("per_read",)
    #: True where the scheme normalises the state after adding (post-norm): the decoder then
    #: applies no final norm of its own.
    post_norm: bool = False
    #: True where the newest output acts through `stream` alone, so that their gradients are one and the same:
    #: a sum that is observed may be no part of the graph (AttnRes adds it up at the next read).
    stream_has_outputs_gradient: bool = False
    #: False where a sublayer takes its read as it is: the decoder then gives its sublayers no norm.
    pre_norm: bool = True
    #: True where a channel may have a weight of its own, by a gate or a gain (`repro.depth.matrix`).
    per_channel: bool = False

    def __init__(
        self,
        num_sublayers: int,
        width: int,
        *,
        eps: float = 1e-8,
        execution: str = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.num_sublayers, self.width, self.eps = num_sublayers, width, eps
        # A sweep fixes one execution for all arms: a scheme that does not offer it uses its own first.
        self.execution = execution if execution in self.executions else self.executions[0]
        self.backend = backend
        self.tap: Tap | None = None
        #: while set, weights that depend on activations count as constants (`repro.depth.matrix`)
        self.frozen = False
        #: names of parameters to be drawn from a normal, with its standard deviation; all others
        #: keep the value that the constructor gave them.
        self.normal_init: dict[str, float] = {}

    # -- the four steps of a forward pass ------------------------------------------------------

    def begin(self, embedding: Tensor) -> State:
        """State before the first sublayer; embedding is [B, T, D]."""
        raise NotImplementedError

    def read(self, state: State, l: int) -> tuple[Read, State]:
        """Input of sublayer l and the new state: [B, T, D], or for attention (even l) `AttentionInputs`."""
        raise NotImplementedError

    def write(self, state: State, l: int, output: Any) -> State:
        """State after sublayer l wrote output: [B, T, D], or the `AttentionOutput` its read asked for."""
        raise NotImplementedError

    def finish(self, state: State) -> Tensor:
        """What the final norm sees, [B, T, D]."""
        raise NotImplementedError

    def normed(self, x: Tensor, gain: Tensor) -> Tensor:
        """A norm of the scheme's own, of x [..., D] with gain [D]: RMSNorm, linear in x while `frozen`."""
        if not self.frozen:
            return rms_norm(x, gain, self.eps)
        return x * self.held(inverse_rms(x, self.eps)).to(x.dtype) * gain.to(x.dtype)

    # -- what a scheme says about itself -------------------------------------------------------

    def num_sources(self, l: int) -> int:
        """How many tensors read l mixes (l = L: the output read)."""
        return len(self.source_columns(l))

    def source_columns(self, l: int) -> list[int]:
        """Column of each source of read l in the depth-weight picture (Fig. 8).

        Full: source i has column i (0 is the embedding). Block: block sum b_n and the partial sum
        of block n share column n. A scheme without depth weights returns [].
        """
        return []

    def source_labels(self, l: int) -> list[str]:
        """Names of the sources of read l in order: b0, b1, ..., partial(i) with i outputs in it."""
        return [f"b{c}" for c in self.source_columns(l)]

    @property
    def depth_heads(self) -> int:
        """H of the recorded weights."""
        return 1

    def stream(self, state: State) -> Tensor | None:
        """The running tensor whose growth Fig. 5 plots: the stream, or the current partial sum."""
        return None

    def mlp_width(self, block: int, width: int) -> int:
        """Hidden width of the MLP of a transformer block (from 0), where that of the model is `width`."""
        return width

    def parameters_without_gradient(self) -> set[str]:
        """Rows whose gradient is exactly zero whatever the input, e.g. the query of a read of one source.

        "queries[0]" is row 0 of parameter `queries` (names are relative to this module); a bare name is the
        whole parameter. Not listed: what vanishes at the initial values only.
        """
        return set()

    def facts(self) -> SchemeFacts:
        """The row of Table 5, with what depends on the options."""
        return self.FACTS

    def held(self, weights: Tensor) -> Tensor:
        """Weights computed from activations, on their way to what they weigh: constants while `frozen`.

        Every such weight of a scheme passes through here; with the weights held, a read is linear in what
        was written.
        """
        return weights.detach() if self.frozen else weights

    def initial_scale(self, name: str) -> float:
        """Factor on the draw of a parameter of the decoder, `sublayers.3.operator.value` for instance.

        The draw itself stays that of every other scheme. The scheme's own parameters are not asked for.
        """
        return 1.0

    def flops_per_token(self) -> float:
        """Forward floating-point operations per token spent on mixing (a multiply-add counts 2)."""
        return 0.0

    def record(self, l: int, weights: Tensor) -> None:
        """Hand the weights of read l, [S, H, B, T], to the tap where one is set."""
        if self.tap is not None:
            self.tap(l, weights.detach())
