"""Flash-Attention-Residuals: Algorithm 1 in Triton, phase 1 for all queries of a block, then merges."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, Read, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def _package() -> Any:
    """The package; in the interpreter with one configuration per kernel, since autotuning asks for a GPU."""
    import flash_attn_res as package

    if os.environ.get("TRITON_INTERPRET") == "1":
        kernels = (
            package.phase_1_batched_attention_forward_kernel,
            package.phase_1_batched_attention_backward_kernel,
            package.phase_2_online_softmax_merge_forward_kernel,
            package.reduce_grad_queries_kernel,
        )
        for kernel in kernels:
            package.set_autotune_configs(kernel, kernel.configs[:1])
    return package


def mix(read: Read) -> tuple[Tensor, None]:
    stack, query = torch.stack(read.sources), read.query.unsqueeze(0)
    return _package().phase_1_batched_attention_triton_op(stack, query, read.eps)[0][0], None


def walk(setup: Setup) -> Trace:
    _package()
    from flash_attn_res.experimental.autograd import BlockAttentionResiduals
    from flash_attn_res.ops import phase_1, phase_2

    mix_blocks = phase_1._phase_1_batched_attention_forward_with_aux_triton_op
    merge = phase_2.phase_2_online_softmax_merge_triton_op
    complete: list[Tensor] = []
    seen: list[list[Tensor]] = []

    def phase_one(blocks: Tensor, *rest: Any) -> Any:
        complete[:] = as_vectors(list(blocks.clone()))
        seen.append(list(complete))
        return mix_blocks(blocks, *rest)

    def phase_two(partial: Tensor, *rest: Any) -> Any:
        seen.append([*complete, partial.reshape(-1).clone()])
        return merge(partial, *rest)

    sublayers = [Sublayer(output) for output in setup.outputs]
    queries, size = setup.queries * setup.gains, setup.block_size
    phase_1._phase_1_batched_attention_forward_with_aux_triton_op = phase_one
    phase_2.phase_2_online_softmax_merge_triton_op = phase_two
    try:
        last = BlockAttentionResiduals.apply(as_tokens(setup.embedding), queries, sublayers, size, setup.eps)
    finally:
        phase_1._phase_1_batched_attention_forward_with_aux_triton_op = mix_blocks
        phase_2.phase_2_online_softmax_merge_triton_op = merge
    values = as_vectors([*(sublayer.seen[0] for sublayer in sublayers), last])
    return Trace(seen, values, len(queries), None)


ADAPTERS = (
    Adapter(
        "flash-attn-res",
        "flash-attn-res",
        "phase_1_batched_attention_triton_op with one query, and experimental BlockAttentionResiduals",
        mix=mix,
        walk=walk,
        gain="none",
        widths="powers of two",
        dtype="bfloat16",
        interpreter=True,
        differs="Outputs are bfloat16 whatever the inputs. In the interpreter the autotuner asks for a "
        "GPU: run with one configuration per kernel, set by the package's own "
        "set_autotune_configs.",
    ),
)
