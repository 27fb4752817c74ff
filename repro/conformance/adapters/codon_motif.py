"""codon-motif: an intra-block attention residual over decoders; the torch path and the Triton kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def _norm(gain: Tensor, eps: float) -> torch.nn.Module:
    from motif.ops.rms_norm import RMSNorm

    norm = RMSNorm(gain.numel(), eps=eps)
    del norm.weight  # a parameter: the gain must stay in the graph
    norm.weight = gain
    return norm


def eager(read: Read) -> tuple[Tensor, None]:
    from motif.model.cache import AttnResCache
    from motif.ops.attn_res import apply_block_attn_res

    assert read.gain is not None
    cache = AttnResCache(blocks=list(read.sources), chunk_len=read.sources[0].shape[1])
    return apply_block_attn_res(cache, read.query, _norm(read.gain, read.eps)), None


def kernel(read: Read) -> tuple[Tensor, None]:
    from motif.ops import attn_res_block

    return attn_res_block(read.sources, read.gain, read.query, read.eps), None


def walk(setup: Setup) -> Trace:
    if setup.block_size != 1:
        raise NotExpressible("a decoder reads the block's input and every earlier decoder: Full only")
    from motif.block import decoder as module
    from motif.block.attention import AttentionOutput
    from motif.model.config import MotifChordConfig

    block = module.DecoderBlock(
        MotifChordConfig(model_dim=64, num_heads=1, num_kv_heads=1, block=("chord",) * len(setup.outputs))
    )
    zero = all(bool((query == 0).all()) for query in block.pseudo_queries)
    seen, sublayers = [], [Sublayer(output) for output in setup.outputs]
    for i, (decoder, sublayer) in enumerate(zip(block.features, sublayers, strict=True)):
        decoder.attn_norm = decoder.mlp_norm = torch.nn.Identity()
        decoder.attn = _Attention(sublayer, AttentionOutput)
        decoder.mlp = Sublayer(torch.zeros_like(setup.embedding))
        block.pseudo_queries[i] = torch.nn.Parameter(setup.queries[i])
        block.attn_res_norms[i] = _norm(setup.gains[i], setup.eps)
    original = module.apply_block_attn_res

    def recorded(cache, query, norm):  # type: ignore[no-untyped-def]
        seen.append(as_vectors(cache.aligned_values()))
        return original(cache, query, norm)

    module.apply_block_attn_res = recorded
    try:
        last = block.train()(as_tokens(setup.embedding)).hidden_states
    finally:
        module.apply_block_attn_res = original
    values = as_vectors([*(sublayer.seen[0] for sublayer in sublayers), last])
    return Trace([*seen, [values[-1]]], values, len(block.pseudo_queries), zero)


class _Attention(torch.nn.Module):
    def __init__(self, sublayer: Sublayer, result: type) -> None:
        super().__init__()
        self.sublayer, self.result = sublayer, result

    def forward(self, hidden_states: Tensor, **kwargs: object) -> object:
        return self.result(output=self.sublayer(hidden_states), past_key_value=None)


ADAPTERS = (
    Adapter(
        "codon-motif, torch",
        "codon-motif",
        "motif.ops.attn_res.apply_block_attn_res and motif.block.decoder.DecoderBlock",
        mix=eager,
        walk=walk,
        differs="A sublayer is a whole decoder (attention and MLP side by side); reads go over the "
        "decoders of one block, which hands on the sum of their outputs, without its input and "
        "without an output read.",
    ),
    Adapter(
        "codon-motif, Triton",
        "codon-motif",
        "motif.ops.attn_res_block",
        mix=kernel,
        max_sources=4,
        interpreter=True,
        differs="Used on CUDA by the package itself; called here as exported. With eps = 0 and a number "
        "of tokens that is no multiple of 8, masked rows divide by zero, and the gradients of "
        "query and gain are NaN.",
    ),
)
