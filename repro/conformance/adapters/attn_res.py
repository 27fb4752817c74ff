"""attn-res: a single-file Transformer in torch with Full and Block."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def mix(read: Read) -> tuple[Tensor, None]:
    from attn_res import AttnResOperator

    operator = AttnResOperator(read.query.numel(), eps=read.eps)
    del operator.pseudo_query  # a parameter: the query must stay in the graph of the gain
    operator.pseudo_query = read.query
    return operator(torch.stack(read.sources)), None


def walk(setup: Setup) -> Trace:
    from attn_res import AttnResMode, AttnResTransformer, TransformerConfig

    num_sublayers, size, width = len(setup.outputs), setup.block_size, len(setup.embedding)
    if size > 1 and num_sublayers // (num_sublayers // size) != size:
        raise NotExpressible(f"no number of blocks gives {size} sublayers a block of {num_sublayers}")
    config = TransformerConfig(
        d_model=width,
        n_layers=num_sublayers,
        n_heads=1,
        n_kv_heads=1,
        vocab_size=4,
        attn_res_mode=AttnResMode.FULL if size == 1 else AttnResMode.BLOCK,
        n_blocks=num_sublayers // size,
        eps=setup.eps,
    )
    model = AttnResTransformer(config)
    operators = [layer.attn_res for layer in model.layers]
    zero = all(bool((operator.pseudo_query == 0).all()) for operator in operators)
    seen: list[list[Tensor]] = []
    sublayers = [Sublayer(output) for output in setup.outputs]
    queries = setup.queries[:-1] * setup.gains[:-1]
    for layer, sublayer, query in zip(model.layers, sublayers, queries, strict=True):
        layer.norm, layer.fn, layer.attn_res.pseudo_query.data = torch.nn.Identity(), sublayer, query
        layer.attn_res.register_forward_pre_hook(lambda _, args: seen.append(as_vectors(args[0])))
    forward = model._forward_full_attnres if size == 1 else model._forward_block_attnres
    last = forward(as_tokens(setup.embedding), None, None)
    values = as_vectors([*(sublayer.seen[0] for sublayer in sublayers), last])
    return Trace([*seen, [values[-1]]], values, len(operators), zero)


ADAPTERS = (
    Adapter(
        "attn-res",
        "attn-res",
        "attn_res.AttnResOperator and AttnResTransformer",
        mix=mix,
        walk=walk,
        gain="none",
        differs="The output read is the plain sum of all sources, so there are L queries. Block takes a "
        "number of blocks N, and its block size is L // N.",
    ),
)
