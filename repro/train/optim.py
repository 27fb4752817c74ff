"""AdamW and Muon behind one optimizer, with parameters routed by their tag and never by their shape.

`repro.depth.base.PARAMETER_GROUPS` lists the tags. Only `matrix` is decayed and may go to Muon; queries,
key gains, norms, embedding, head and a scheme's own scalars go to AdamW without decay:
by shape, a [reads, D] stack of pseudo-queries would be orthogonalised as if it were a weight matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from repro.depth.base import PARAMETER_GROUPS
from repro.errors import ConfigError

OPTIMIZERS = ("adamw", "muon")


class JointOptimizer(torch.optim.Optimizer):
    """Several optimizers that step, save and load as one (Lightning's automatic mode takes only one)."""

    def __init__(self, optimizers: list[torch.optim.Optimizer]) -> None:
        self.optimizers = optimizers
        # Bound before the base class sets up its hooks; the groups are shared objects, so that setting
        # a learning rate here sets it in the inner optimizer.
        super().__init__([p for o in optimizers for g in o.param_groups for p in g["params"]], {})
        self.param_groups = [group for o in optimizers for group in o.param_groups]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"optimizers": [o.state_dict() for o in self.optimizers]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = [group for o in self.optimizers for group in o.param_groups]


def parameters_by_group(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Parameters of the model under their tag; an untagged one is an error of the scheme's author."""
    groups: dict[str, list[nn.Parameter]] = {group: [] for group in PARAMETER_GROUPS}
    for name, parameter in model.named_parameters():
        group = getattr(parameter, "group", None)
        if group not in groups:
            raise TypeError(f"parameter {name} carries no group: create it with repro.depth.base.tagged")
        groups[group].append(parameter)
    return groups


def build_optimizer(model: nn.Module, optim: Mapping[str, Any]) -> torch.optim.Optimizer:
    """The optimizer named by config group `optim`.

    optim: `name` (adamw | muon), `lr` (peak, shared by all groups), `betas`, `eps`, `weight_decay` (matrices
    only), and for Muon `momentum`. Muon's update is scaled to AdamW's RMS (Moonlight's 0.2 sqrt(max(A, B))),
    so that one learning rate serves both.
    """
    name, lr = optim["name"], float(optim["lr"])
    if name not in OPTIMIZERS:
        raise ConfigError("optim.name", name, f"one of {', '.join(OPTIMIZERS)}")
    if not lr > 0:
        raise ConfigError("optim.lr", lr, "a positive number")
    groups = parameters_by_group(model)
    matrices = groups["matrix"]
    plain = [p for group, members in groups.items() if group != "matrix" for p in members]
    decay = float(optim["weight_decay"])
    adamw: dict[str, Any] = {
        "lr": lr,
        "betas": tuple(optim["betas"]),
        "eps": float(optim["eps"]),
        "fused": True,
    }
    if name == "adamw":
        sets = [{"params": matrices, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]
        return torch.optim.AdamW(sets, **adamw)
    muon = torch.optim.Muon(
        matrices, lr=lr, weight_decay=decay, momentum=float(optim["momentum"]), adjust_lr_fn="match_rms_adamw"
    )
    return JointOptimizer([muon, torch.optim.AdamW(plain, weight_decay=0.0, **adamw)])
