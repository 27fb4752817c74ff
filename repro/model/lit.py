"""The Lightning module: one loss, one optimizer, a learning rate that is a function of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import lightning as L
import torch
from torch import Tensor

from repro.model.decoder import Decoder, Observer


class Diverged(RuntimeError):
    """The loss or its gradient is no longer finite; `step` is the number of updates done before."""

    def __init__(self, step: int, loss: float, grad_norm: float) -> None:
        super().__init__(f"not finite at step {step}: loss {loss}, gradient norm {grad_norm}")
        self.step = step

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild_diverged, (self.step, str(self))


def _rebuild_diverged(step: int, message: str) -> Diverged:
    error = Diverged(step, float("nan"), float("nan"))
    error.args = (message,)
    return error


class LitDecoder(L.LightningModule):
    """Trains a `Decoder`.

    make_optimizer: decoder -> optimizer.  factor: update number -> factor on the peak learning rate.
    grad_clip: largest global gradient norm (0 turns clipping off).  compile_options: of `torch.compile`, for
    every step that is not observed (None: not compiled).
    """

    def __init__(
        self,
        decoder: Decoder,
        make_optimizer: Callable[[Decoder], torch.optim.Optimizer],
        factor: Callable[[int], float],
        grad_clip: float,
        compile_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self._make_optimizer, self._factor, self._grad_clip = make_optimizer, factor, grad_clip
        self._compile_options = compile_options
        self._groups = {name: getattr(p, "group", None) for name, p in decoder.named_parameters()}
        self._fast_loss: Callable[..., Tensor] = decoder.loss
        self.observer: Observer | None = None
        self.last_loss, self.last_grad_norm = float("nan"), float("nan")
        self._loss_sum: Tensor | float = 0.0
        self._micro_batches = 0

    def setup(self, stage: str) -> None:
        for name, parameter in self.decoder.named_parameters():
            parameter.group = self._groups[name]  # type: ignore[attr-defined]  # lost on the way to a spawned process
        # Here and not before, since a compiled function cannot be sent to a spawned process.
        if self._compile_options is not None:
            self._fast_loss = torch.compile(self.decoder.loss, **self._compile_options)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        tokens, targets = batch
        loss = (
            self._fast_loss(tokens, targets)
            if self.observer is None
            else self.decoder.loss(tokens, targets, self.observer)
        )
        self._loss_sum = self._loss_sum + loss.detach()
        self._micro_batches += 1
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._make_optimizer(self.decoder)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        """Clip, note loss and gradient norm of this update, and stop before a bad update is made."""
        parameters = [p for p in self.decoder.parameters() if p.grad is not None]
        bound = self._grad_clip if self._grad_clip > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
        loss = torch.as_tensor(self._loss_sum) / max(1, self._micro_batches)
        if self.trainer.world_size > 1:
            loss = self.trainer.strategy.reduce(loss, reduce_op="mean")
        self._loss_sum, self._micro_batches = 0.0, 0
        self.last_loss, self.last_grad_norm = loss.item(), norm.item()
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise Diverged(self.global_step, self.last_loss, self.last_grad_norm)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        factor = self._factor(self.global_step)
        for group in optimizer.param_groups:
            # The peak is kept in the group itself, so that it travels with the optimizer's state.
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * factor
        optimizer.step(closure=optimizer_closure)
