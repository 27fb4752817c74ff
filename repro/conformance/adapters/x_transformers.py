"""x-transformers: attention over the states of the residual stream, with a query from the latest one."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def walk(setup: Setup) -> Trace:
    if setup.block_size != 1:
        raise NotExpressible("no block sums")
    from x_transformers.x_transformers import AttentionLayers

    num_sublayers, width = len(setup.outputs), len(setup.embedding)
    if num_sublayers % 2:
        raise NotExpressible("sublayers come in pairs")
    model = AttentionLayers(
        width,
        depth=num_sublayers // 2,
        heads=1,
        attn_dim_head=4,
        causal=True,
        attn_aggregated_residuals=True,
        attn_aggregated_residual_kwargs={"lora_rank": 1},
        use_rmsnorm=True,
    )
    seen: list[list[Tensor]] = []
    for integrator in model.layer_integrators:
        integrator.register_forward_pre_hook(lambda _, args: seen.append(as_vectors(args[1])))
    sublayers = [Sublayer(output) for output in setup.outputs]
    for (norms, _, _), layer_type, sublayer, index in zip(
        model.layers, model.layer_types, sublayers, range(num_sublayers), strict=True
    ):
        norms[0] = torch.nn.Identity()
        model.layers[index][1] = _Attention(sublayer) if layer_type == "a" else sublayer
    model.final_norm = torch.nn.Identity()
    last = model(as_tokens(setup.embedding))
    values = as_vectors([*(sublayer.seen[0] for sublayer in sublayers), last])
    return Trace([*seen, [values[-1]]], values, 0, zero_init=None)


class _Attention(torch.nn.Module):
    def __init__(self, sublayer: Sublayer) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, x: Tensor, **kwargs: object) -> tuple[Tensor, None]:
        return self.sublayer(x), None


ADAPTERS = (
    Adapter(
        "x-transformers",
        "x-transformers",
        "AttentionLayers(attn_aggregated_residuals=True)",
        walk=walk,
        differs="A relative, not a port: the query is the latest state plus a low-rank term, logits are "
        "scaled by D^-1/2, and the sources are the states of an ordinary residual stream. No read "
        "with a given query.",
    ),
)
