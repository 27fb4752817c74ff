"""What an attention sublayer reads and returns where one tensor does not say it.

A scheme may give query, key and value inputs of their own (MUDDFormer) or have its attention mix in values
of an earlier sublayer (Value Residual). Everything else passes plain tensors, which stay as they are. Only
attention knows these tuples: the decoder alternates attention and MLP, so they belong to even sublayers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class ValueMix(NamedTuple):
    """Attention uses own * (its values) + earlier * values.

    values: `AttentionOutput.values` of an earlier sublayer.  own, earlier: scalars (tensors of no axis).
    """

    values: Tensor
    own: Tensor
    earlier: Tensor


class AttentionInputs(NamedTuple):
    """The read of an attention sublayer; every input is normalised by the norm of the sublayer.

    query, key, value: [B, T, D]; key and value None: the same tensor as query.  mix: values of an earlier
    sublayer to be mixed in.  keep_values: the sublayer returns an `AttentionOutput`.
    """

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None
    mix: ValueMix | None = None
    keep_values: bool = False

    def normed(self, norm: Callable[[Tensor], Tensor]) -> AttentionInputs:
        """The same read after the sublayer's norm."""
        return self._replace(
            query=norm(self.query),
            key=None if self.key is None else norm(self.key),
            value=None if self.value is None else norm(self.value),
        )


class AttentionOutput(NamedTuple):
    """What an attention sublayer returns to a read with `keep_values`.

    output: [B, T, D].  values: [B, heads, T, head size], its own values before any mixing.
    """

    output: Tensor
    values: Tensor


Read = Tensor | AttentionInputs
Output = Tensor | AttentionOutput


def value_input(read: Read) -> Tensor:
    """The tensor [B, T, D] that stands for a read where one is needed: what the values are made of."""
    if isinstance(read, Tensor):
        return read
    return read.query if read.value is None else read.value


def output_tensor(output: Output) -> Tensor:
    """What a sublayer wrote, [B, T, D]."""
    return output if isinstance(output, Tensor) else output.output


def with_tensor(output: Output, tensor: Tensor) -> Output:
    """The same output with another tensor written; what else it carries becomes a constant."""
    return tensor if isinstance(output, Tensor) else AttentionOutput(tensor, output.values.detach())
