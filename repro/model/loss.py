"""Cross entropy of an untied head, a few tokens at a time: the logits of a batch never exist as a whole.

The gradient of a mean loss is known as soon as the logits are, so it is computed with them, while they are
in cache; the backward pass only scales it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from repro.ops.matmul import linear, product, transposed_product

IGNORED = -100  # a target that does not count
#: Logits computed at once: what stays in a CPU's cache, and what is large enough for a GPU.
_AT_ONCE = {"cpu": 2**19}
_AT_ONCE_ELSEWHERE = 2**26


def mean_loss(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean over counting targets of -log softmax(x head^T), a scalar in nats; NaN where none counts.

    x: [tokens, D].  head: [vocabulary, D].  targets: [tokens], -100 where one does not count.
    """
    if not torch.is_grad_enabled():
        return token_losses(x, head, targets).sum() / (targets != IGNORED).sum()
    return _MeanLoss.apply(x, head, targets)


def token_losses(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The loss of every token in nats [tokens], fp32 or wider; 0 where a target does not count."""
    losses = [
        F.cross_entropy(_logits(part, head), target, reduction="none", ignore_index=IGNORED)
        for part, target in zip(*_parts(x, head, targets), strict=True)
    ]
    return torch.cat(losses) if losses else x.new_zeros(0)


def _parts(x: Tensor, head: Tensor, targets: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    at_once = _AT_ONCE.get(x.device.type, _AT_ONCE_ELSEWHERE)
    size = max(16, at_once // head.shape[0])
    return x.split(size), targets.split(size)


def _logits(x: Tensor, head: Tensor) -> Tensor:
    """In fp32 or wider: half precision would lose digits of the loss."""
    logits = linear(x, head)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        counts = targets != IGNORED
        count = counts.sum()
        needs_x, needs_head = ctx.needs_input_grad[:2]
        total: Tensor | float = 0.0
        grads: list[Tensor] = []
        # [D, vocabulary]: products with the few channels first are already laid out so
        wide = torch.promote_types(head.dtype, torch.float32)
        grad_head = torch.zeros(head.shape[::-1], dtype=wide, device=head.device)
        for part, target in zip(*_parts(x, head, targets), strict=True):
            logits = _logits(part, head)
            counted = (target != IGNORED).to(logits.dtype)
            index = target.masked_fill(target == IGNORED, 0).unsqueeze(-1)
            chosen = logits.gather(-1, index)
            lse = torch.logsumexp(logits, -1, keepdim=True)
            total = total + ((lse - chosen).squeeze(-1) * counted).sum()
            if needs_x or needs_head:
                probability = logits.sub_(lse).exp_()
                probability.scatter_add_(-1, index, torch.full_like(chosen, -1.0))
                probability.mul_((counted / count.clamp(min=1)).unsqueeze(-1))
                narrow = probability.to(part.dtype)
                grads.append(product(narrow, head.to(part.dtype).T))
                grad_head += transposed_product(part, narrow)
        grad_x = torch.cat(grads) if grads else torch.zeros_like(x)
        ctx.save_for_backward(grad_x, grad_head.T.to(head.dtype))
        return torch.as_tensor(total, dtype=grad_head.dtype, device=x.device) / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_head = ctx.saved_tensors
        return grad_x * grad, grad_head * grad, None
