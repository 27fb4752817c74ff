"""mlx-lm: the Kimi K3 text model in MLX (Block, sizes in transformer layers)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup, Trace


class _Mix(torch.autograd.Function):
    """MLX inside torch: forward by the model's own function, backward by MLX's vector-Jacobian product."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, eps: float, *sources: Tensor) -> Tensor:
        import mlx.core as mx
        from mlx_lm.models.kimi_k3 import ResidualBlocks, _attn_res_mix

        def mix(q: Any, *values: Any) -> Any:
            blocks = ResidualBlocks(eps)
            for value in values[:-1]:
                blocks.append(value)
            return _attn_res_mix(blocks, values[-1], q, eps, use_kernel=False)

        ctx.inputs = [mx.array(x.detach().cpu().numpy()) for x in (query, *sources)]
        ctx.mix = mix
        return torch.tensor(mix(*ctx.inputs).tolist())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        import mlx.core as mx

        _, out = mx.vjp(ctx.mix, ctx.inputs, [mx.array(grads[0].contiguous().numpy())])
        query, *sources = (torch.tensor(x.tolist()) for x in out)
        return query, None, *sources


def mix(read: Read) -> tuple[Tensor, None]:
    return _Mix.apply(read.query, read.eps, *read.sources), None


def walk(setup: Setup) -> Trace:
    num_sublayers, size = len(setup.outputs), setup.block_size
    if num_sublayers % 2 or size % 2:
        raise NotExpressible("block size and depth count transformer layers, two sublayers each")
    import mlx.core as mx
    from mlx_lm.models import kimi_k3

    def array(x: Tensor) -> Any:
        return mx.array(x.tolist())

    args = kimi_k3.TextArgs(
        hidden_size=len(setup.embedding),
        num_hidden_layers=num_sublayers // 2,
        num_attention_heads=1,
        num_key_value_heads=1,
        intermediate_size=8,
        vocab_size=4,
        rms_norm_eps=setup.eps,
        attn_res_block_size=size // 2,
        linear_attn_config={"kda_layers": []},
        activation_situ_beta=1.0,
        kv_lora_rank=4,
        q_lora_rank=4,
        qk_nope_head_dim=4,
        qk_rope_head_dim=4,
        v_head_dim=4,
    )
    model = kimi_k3.KimiK3TextModel(args)
    seen, inputs = [], []
    original = kimi_k3._attn_res_mix

    def recorded(blocks: Any, partial_sum: Any, *rest: Any) -> Any:
        raw = [] if blocks.raw is None else blocks.raw.reshape(-1, partial_sum.shape[-1]).tolist()
        seen.append([torch.tensor(x) for x in [*raw, partial_sum.reshape(-1).tolist()]])
        return original(blocks, partial_sum, *rest)

    def sublayer(output: Tensor) -> Any:
        def write(x: Any, *_: Any) -> Any:
            inputs.append(torch.tensor(x.reshape(-1).tolist()))
            return array(output).reshape(1, 1, -1)

        return write

    parts = [(layer, name) for layer in model.layers for name in ("self_attention", "mlp")]
    owners = [*parts, (model, "output_attn")]
    for (owner, name), query, gain in zip(owners, setup.queries, setup.gains, strict=True):
        owner[f"{name}_res_proj"].weight = array(query).reshape(1, -1)
        owner[f"{name}_res_norm"].weight = array(gain)
    for (layer, name), output in zip(parts, setup.outputs, strict=True):
        layer["mlp" if name == "mlp" else "self_attn"] = sublayer(output)
        layer.input_layernorm = layer.post_attention_layernorm = lambda x: x
    model.embed_tokens, model.norm = lambda _: array(setup.embedding).reshape(1, 1, -1), lambda x: x
    kimi_k3._attn_res_mix = recorded
    try:
        last = model(mx.array([[0]]))
    finally:
        kimi_k3._attn_res_mix = original
    values = [*inputs, torch.tensor(last.reshape(-1).tolist())]
    return Trace(seen, values, len(owners), zero_init=None)  # inference: queries are loaded


ADAPTERS = (
    Adapter(
        "mlx-lm, Kimi K3",
        "mlx-lm",
        "mlx_lm.models.kimi_k3._attn_res_mix and KimiK3TextModel, on CPU",
        mix=mix,
        walk=walk,
        gain="folded",
        needs=("mlx",),
    ),
)
