"""A decoder that knows nothing of residual schemes: it asks a `DepthMixer` what each sublayer reads.

Pre-norm sublayers (without the norm where the scheme says so), rotary causal attention, SwiGLU, untied
head. A *sublayer* is an attention or an MLP; the paper calls it a layer. L = 2 L_b sublayers make L_b
transformer blocks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from repro.depth.base import DepthMixer, is_number, tagged
from repro.depth.inputs import Output, Read, output_tensor
from repro.errors import ConfigError
from repro.model.attention import CausalAttention, Rotary
from repro.model.loss import mean_loss, token_losses
from repro.model.mlp import SwiGLU
from repro.model.norm import RMSNorm

#: called with ("output" | "stream", sublayer, tensor [B, T, D]) while a pass is observed
Observer = Callable[[str, int, Tensor], None]


class Sublayer(nn.Module):
    """norm, then attention or MLP: the f_l of the paper (its own normalisation included)."""

    def __init__(self, norm: nn.Module, operator: nn.Module) -> None:
        super().__init__()
        self.norm, self.operator = norm, operator

    def forward(self, x: Read) -> Output:
        return self.operator(self.norm(x) if isinstance(x, Tensor) else x.normed(self.norm))


class Decoder(nn.Module):
    """Language model over any residual scheme.

    width: D.  num_transformer_blocks: L_b.  num_heads: attention heads.  mlp_width: hidden width of SwiGLU.
    vocab_size: tokens.  context: longest sequence.  norm_eps: of all sublayer norms.
    make_mixer: builds the scheme from (num_sublayers, width, eps=...).
    """

    def __init__(
        self,
        make_mixer: Callable[..., DepthMixer],
        *,
        width: int,
        num_transformer_blocks: int,
        num_heads: int,
        mlp_width: int,
        vocab_size: int,
        context: int,
        norm_eps: float = 1e-8,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__()
        for key, value in (
            ("model.width", width),
            ("model.num_transformer_blocks", num_transformer_blocks),
            ("model.num_heads", num_heads),
            ("model.mlp_width", mlp_width),
            ("model.vocab_size", vocab_size),
            ("budget.context", context),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(key, value, "a whole number of at least 1")
        if width % num_heads:
            raise ConfigError("model.num_heads", num_heads, f"a divisor of model.width={width}")
        if width // num_heads % 2:
            raise ConfigError(
                "model.num_heads",
                num_heads,
                f"an even head size model.width / num_heads for rotary, not {width // num_heads}",
            )
        if not (is_number(norm_eps) and norm_eps >= 0):
            raise ConfigError("model.norm_eps", norm_eps, "a number of at least 0 (default 1e-8)")
        if not (is_number(rope_base) and rope_base > 0):
            raise ConfigError("model.rope_base", rope_base, "a positive number (default 10000)")
        self.num_sublayers, self.width, self.context = 2 * num_transformer_blocks, width, context
        self.mixer = make_mixer(self.num_sublayers, width, eps=norm_eps)
        self.embedding = tagged(torch.empty(vocab_size, width), "embedding")
        rotary = Rotary(width // num_heads, context, rope_base)
        self.sublayers = nn.ModuleList()
        for block in range(num_transformer_blocks):
            hidden = self.mixer.mlp_width(block, mlp_width)
            for operator in (CausalAttention(width, num_heads, rotary), SwiGLU(width, hidden)):
                norm = RMSNorm(width, norm_eps) if self.mixer.pre_norm else nn.Identity()
                self.sublayers.append(Sublayer(norm, operator))
        self.final_norm = nn.Identity() if self.mixer.post_norm else RMSNorm(width, norm_eps)
        self.head = tagged(torch.empty(vocab_size, width), "head")

    def forward(self, tokens: Tensor, observe: Observer | None = None) -> Tensor:
        """Logits [B, T, vocabulary] of tokens [B, T]."""
        return F.linear(self.hidden(tokens, observe), self.head)

    def hidden(self, tokens: Tensor, observe: Observer | None = None) -> Tensor:
        """What the head reads, [B, T, D], of tokens [B, T]."""
        mixer = self.mixer
        state = mixer.begin(F.embedding(tokens, self.embedding))
        for l, sublayer in enumerate(self.sublayers):
            x, state = mixer.read(state, l)
            output = sublayer(x)
            if observe is not None:
                observe("output", l, output_tensor(output))
            state = mixer.write(state, l, output)
            if observe is not None and (stream := mixer.stream(state)) is not None:
                observe("stream", l, stream)
        return self.final_norm(mixer.finish(state))

    def losses(self, tokens: Tensor, targets: Tensor, observe: Observer | None = None) -> Tensor:
        """Cross entropy of every target in nats, [B, T]; 0 where the target is -100."""
        hidden = self.hidden(tokens, observe).flatten(0, 1)
        return token_losses(hidden, self.head, targets.flatten()).view_as(targets)

    def loss(self, tokens: Tensor, targets: Tensor, observe: Observer | None = None) -> Tensor:
        """Mean cross entropy over targets in nats per token (scalar)."""
        return mean_loss(self.hidden(tokens, observe).flatten(0, 1), self.head, targets.flatten())

    def num_parameters(self) -> int:
        """All parameters, embedding and head included."""
        return sum(p.numel() for p in self.parameters())

    def flops_per_token(self) -> float:
        """Training FLOPs per token: three times the forward pass.

        Forward: 2 per weight of every matrix and the head, 2 T D per attention sublayer for scores and values
        over the causal half of T = context tokens, and what the scheme states for its mixing.
        """
        weights = sum(p.numel() for p in self.parameters() if getattr(p, "group", "") in ("matrix", "head"))
        attention = self.num_sublayers // 2 * 2.0 * self.context * self.width
        return 3.0 * (2.0 * weights + attention + self.mixer.flops_per_token())
