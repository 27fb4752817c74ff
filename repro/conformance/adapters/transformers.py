"""transformers: the block attention residual of Inkling 2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def mix(read: Read) -> tuple[Tensor, None]:
    from transformers.models.inkling2.modeling_inkling2 import Inkling2BlockAttentionResidual

    module = Inkling2BlockAttentionResidual(SimpleNamespace(hidden_size=read.query.numel()))
    del module.query  # a parameter: the query must stay in the graph of the gain
    module.query, module.norm.eps = read.query, read.eps
    stack = torch.stack(read.sources, -2)
    return module(stack[..., :-1, :], stack[..., -1, :])[0], None


def walk(setup: Setup) -> Trace:
    num_sublayers, size, width = len(setup.outputs), setup.block_size, len(setup.embedding)
    if num_sublayers % 2 or size % 2:
        raise NotExpressible("block size and depth count decoder layers, two sublayers each")
    from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
    from transformers.models.inkling2.modeling_inkling2 import Inkling2TextModel

    config = Inkling2TextConfig(
        vocab_size=4,
        hidden_size=width,
        num_hidden_layers=num_sublayers // 2,
        layer_types=["hybrid_sliding"] * (num_sublayers // 2),
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=4,
        swa_num_attention_heads=1,
        swa_num_key_value_heads=1,
        swa_head_dim=4,
        moe_intermediate_size=4,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_layers_per_attn_res_block=size // 2,
        eos_token_id=None,
    )
    model = Inkling2TextModel(config).eval()
    reads = [read for layer in model.layers for read in (layer.attention_input, layer.mlp_input)]
    reads.append(model.final_input)
    own = [read for read in reads if read is not None]  # the first read has one source and no query
    zero = all(bool((read.query == 0).all()) for read in own)
    seen: list[list[Tensor]] = [[setup.embedding]]

    def record(_: Any, args: tuple[Tensor, Tensor]) -> None:
        seen.append(as_vectors([*args[0].unbind(-2), args[1]]))

    for read, query, gain in zip(reads, setup.queries, setup.gains, strict=True):
        if read is not None:
            read.query.data, read.norm.eps = query * gain, setup.eps
            read.register_forward_pre_hook(record)
    sublayers = [Sublayer(output) for output in setup.outputs]
    for i, layer in enumerate(model.layers):
        layer.self_attn, layer.mlp = _Attention(sublayers[2 * i]), sublayers[2 * i + 1]
        layer.input_layernorm = layer.post_attention_layernorm = torch.nn.Identity()
        layer.post_attention_convolution = layer.post_mlp_convolution = _Same()
    model.norm = torch.nn.Identity()
    last = model(inputs_embeds=as_tokens(setup.embedding), use_cache=False).last_hidden_state
    values = as_vectors([*(sublayer.seen[0] for sublayer in sublayers), last])
    return Trace(seen, values, len(own), zero)


class _Attention(torch.nn.Module):
    def __init__(self, sublayer: Sublayer) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, hidden_states: Tensor, **kwargs: object) -> tuple[Tensor, None]:
        return self.sublayer(hidden_states), None


class _Same(torch.nn.Module):
    def forward(self, x: Tensor, **kwargs: object) -> Tensor:
        return x


ADAPTERS = (
    Adapter(
        "transformers, Inkling 2",
        "transformers",
        "Inkling2BlockAttentionResidual and Inkling2TextModel",
        mix=mix,
        walk=walk,
        gain="none",
        eps="1e-6 in its model (an attribute, set here)",
        differs="Another model's variant: the values are RMS-normalised like the keys, and logits are "
        "scaled by D^-1/2. The source sets are the paper's.",
    ),
)
