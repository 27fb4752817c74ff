"""flash-linear-attention: the naive and the fused operation of fla-core, and its Transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace, as_tokens, as_vectors
from repro.conformance.walk import Sublayer


def naive(read: Read) -> tuple[Tensor, Tensor]:
    from fla.ops.attnres import naive_attnres

    return naive_attnres(read.query, read.sources, read.gain, rms_eps=read.eps, return_weights=True)


def fused(read: Read) -> tuple[Tensor, Tensor]:
    from fla.ops.attnres import fused_attnres

    return fused_attnres(read.query, read.sources, read.gain, rms_eps=read.eps, return_weights=True)


def walk(setup: Setup) -> Trace:
    if len(setup.outputs) % 2 or (setup.block_size > 1 and setup.block_size % 2):
        raise NotExpressible("sublayers come in pairs and the block size is 1 or even")
    from fla.models import modeling_utils
    from fla.models.transformer import TransformerConfig, TransformerModel, modeling_transformer
    from fla.ops.attnres import naive_attnres

    # Attention asks for the flash-attn package when it is made; it is replaced below in any case.
    modeling_transformer.Attention = lambda **_: torch.nn.Identity()

    config = TransformerConfig(
        hidden_size=len(setup.embedding),
        num_hidden_layers=len(setup.outputs) // 2,
        num_heads=1,
        vocab_size=4,
        attnres_block_size=setup.block_size,
        norm_eps=setup.eps,
        fuse_norm=False,
    )
    model = TransformerModel(config)
    places = [(layer, name) for layer in model.layers for name in ("attn", "mlp")]
    reads = [(getattr(at, f"{name}_res_proj"), getattr(at, f"{name}_res_norm")) for at, name in places]
    reads.append((model.res_proj, model.res_norm))
    zero = all(bool((query.weight == 0).all()) for query, _ in reads)
    sublayers = [Sublayer(output) for output in setup.outputs]
    for (at, name), sublayer in zip(places, sublayers, strict=True):
        setattr(at, f"{name}_norm", _NoNorm())
        setattr(at, name, sublayer if name == "mlp" else _Attention(sublayer))
    for (query, norm), q, gain in zip(reads, setup.queries, setup.gains, strict=True):
        query.weight.data, norm.weight.data = q.reshape(1, -1), gain.clone()
    seen = []

    def mix(query, residuals, rms_weight, output_rms_weight=None, rms_eps=1e-6):  # type: ignore[no-untyped-def]
        seen.append(as_vectors(residuals))
        return naive_attnres(query, residuals, rms_weight, rms_eps=rms_eps)

    modeling_transformer.fused_attnres = modeling_utils.fused_attnres = mix
    last = model(inputs_embeds=as_tokens(setup.embedding)).last_hidden_state
    values = [sublayer.seen[0] for sublayer in sublayers] + [last]
    return Trace([[setup.embedding], *seen], as_vectors(values), len(reads), zero)


class _NoNorm(torch.nn.Identity):
    weight = None  # handed to the fused operation, which folds the sublayer's norm into its output


class _Attention(torch.nn.Module):
    def __init__(self, sublayer: Sublayer) -> None:
        super().__init__()
        self.sublayer = sublayer

    def forward(self, hidden_states: Tensor, **kwargs: object) -> tuple[Tensor, None, None]:
        return self.sublayer(hidden_states), None, None


ADAPTERS = (
    Adapter("fla-core, naive", "fla-core", "fla.ops.attnres.naive_attnres", mix=naive),
    Adapter("fla-core, fused", "fla-core", "fla.ops.attnres.fused_attnres", mix=fused, interpreter=True),
    Adapter(
        "flash-linear-attention, Transformer",
        "flash-linear-attention",
        "fla.models.transformer.TransformerModel with naive_attnres for fused_attnres",
        walk=walk,
        needs=("transformers",),
    ),
)
