"""Optimisers, which route parameters by tag, and learning-rate schedules."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch import nn

from repro.depth.base import PARAMETER_GROUPS, tagged
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.train.optim import JointOptimizer, build_optimizer, parameters_by_group
from repro.train.schedule import WSD, Cosine
from tests.tiny import ARMS, tiny_config, with_arm
from tests.toy import normal

SIZE = ("model.num_transformer_blocks=4", "data.tokenizer.vocab_size=11", "budget.context=12")
ADAMW = {"name": "adamw", "lr": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.5}
MUON = {**ADAMW, "name": "muon", "momentum": 0.95}


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


# Optimisers


def inner(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else [optimizer]


@pytest.mark.parametrize("optim", [ADAMW, MUON], ids=["adamw", "muon"])
@pytest.mark.parametrize("arm", ARMS)
def test_parameters_are_routed_by_their_tag(config: DictConfig, arm: str, optim: dict[str, Any]) -> None:
    """Only matrices are decayed or go to Muon; every parameter is in exactly one group, at the same rate."""
    decoder = build_decoder(with_arm(config, arm))
    placed: dict[int, tuple[str, float]] = {}
    for optimizer in inner(build_optimizer(decoder, optim)):
        for group in optimizer.param_groups:
            assert group["lr"] == 0.1
            for parameter in group["params"]:
                assert id(parameter) not in placed
                placed[id(parameter)] = (type(optimizer).__name__, group["weight_decay"])
    matrices = {
        name
        for name, _ in decoder.named_parameters()
        if name.rsplit(".", 1)[-1] in ("query", "key", "value", "output", "gate", "up")
        and not name.startswith("mixer.")
    }
    assert len(matrices) == 4 * (4 + 3)
    for name, parameter in decoder.named_parameters():
        kind, decay = placed.pop(id(parameter))
        assert decay == (0.5 if name in matrices else 0.0), name
        assert kind == ("Muon" if optim["name"] == "muon" and name in matrices else "AdamW"), name
    assert not placed


@pytest.mark.parametrize("optim", [ADAMW, MUON], ids=["adamw", "muon"])
def test_without_gradient_only_matrices_shrink(config: DictConfig, optim: dict[str, Any]) -> None:
    """One step at lr 0.1 with decay 0.5 and zero gradients multiplies matrices by 0.95 and no other."""
    decoder = build_decoder(with_arm(config, "full"))
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(decoder, optim).step()
    for name, parameter in decoder.named_parameters():
        factor = 0.95 if name.endswith((".query", ".key", ".value", ".output", ".gate", ".up")) else 1.0
        assert torch.allclose(parameter, factor * before[name], rtol=1e-6, atol=0), name


def test_a_first_step_of_adamw_is_its_learning_rate() -> None:
    """g / sqrt(g^2) is a sign, so every entry moves by lr."""
    model = nn.Module()
    model.queries = tagged(torch.zeros(3, 4), "query")
    model.queries.grad = normal("gradient", 3, 4, dtype=torch.float32)
    build_optimizer(model, {**ADAMW, "eps": 0.0}).step()
    assert torch.allclose(model.queries.detach(), -0.1 * model.queries.grad.sign(), rtol=1e-5)


def test_a_first_step_of_muon_has_the_rms_of_adamw() -> None:
    """0.2 sqrt(max(A, B)) times a semi-orthogonal update of [A, B], whose RMS is 1 / sqrt(max(A, B))."""
    model = nn.Module()
    model.matrix = tagged(torch.zeros(8, 32), "matrix")
    model.matrix.grad = normal("gradient", 8, 32, dtype=torch.float32)
    model.gain = tagged(torch.ones(4), "gain")
    model.gain.grad = torch.ones(4)
    build_optimizer(model, MUON).step()
    # The Newton-Schulz iteration stops at singular values between 0.7 and 1.2.
    assert 0.7 < model.matrix.square().mean().sqrt().item() / (0.2 * 0.1) < 1.2
    assert model.gain.tolist() == pytest.approx([0.9] * 4)


def test_an_untagged_parameter_is_an_error(config: DictConfig) -> None:
    decoder = build_decoder(with_arm(config, "prenorm"))
    decoder.mixer.scale = nn.Parameter(torch.ones(3))
    for optim in (ADAMW, MUON):
        with pytest.raises(TypeError, match=r"parameter mixer\.scale carries no group"):
            build_optimizer(decoder, optim)
    with pytest.raises(ValueError, match="not one of"):
        tagged(torch.ones(1), "weights")


def test_every_group_of_parameters_exists_in_some_arm(config: DictConfig) -> None:
    used = set()
    for arm in ARMS:
        groups = parameters_by_group(build_decoder(with_arm(config, arm)))
        used |= {group for group, members in groups.items() if members}
    assert used == set(PARAMETER_GROUPS)


def steps(decoder: Decoder, optimizer: torch.optim.Optimizer, numbers: range) -> None:
    for k in numbers:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (k + 1)
        draw = (1000 * normal(f"batch {k}", 2, 13)).long() % 11
        optimizer.zero_grad()
        decoder.loss(draw[:, :-1], draw[:, 1:]).backward()
        optimizer.step()


def test_joint_optimizer_saves_and_loads_bit_for_bit(config: DictConfig) -> None:
    decoder = build_decoder(with_arm(config, "full"))
    optimizer = build_optimizer(decoder, MUON)
    assert isinstance(optimizer, JointOptimizer)
    steps(decoder, optimizer, range(3))
    stored = io.BytesIO()
    torch.save({"model": decoder.state_dict(), "optimizer": optimizer.state_dict()}, stored)
    steps(decoder, optimizer, range(3, 6))

    stored.seek(0)
    saved = torch.load(stored, weights_only=True)
    resumed = build_decoder(with_arm(config, "full"))
    resumed.load_state_dict(saved["model"])
    again = build_optimizer(resumed, MUON)
    again.load_state_dict(saved["optimizer"])
    steps(resumed, again, range(3, 6))
    for (name, a), b in zip(decoder.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    # A rate set on the whole reaches the parts after loading as well.
    again.param_groups[0]["lr"] = again.param_groups[1]["lr"] = 7.0
    assert [group["lr"] for o in inner(again) for group in o.param_groups] == [7.0, 7.0]


# Schedules


def test_cosine_by_hand() -> None:
    """Ten steps, two of warm-up: half, full; then from 1 down to 0.1 over eight steps."""
    schedule = Cosine(warmup=0.2, final=0.1)
    factors = [schedule.factor(step, 10) for step in range(11)]
    assert factors[:3] == [0.5, 1.0, 1.0]  # warm-up ends at its second step, decay starts at the third
    assert factors[4] == pytest.approx(0.1 + 0.45 * (1 + math.sqrt(0.5)))
    assert factors[6] == pytest.approx(0.55)  # halfway
    assert factors[10] == pytest.approx(0.1)  # the end, and beyond
    assert schedule.factor(99, 10) == pytest.approx(0.1)
    assert Cosine(warmup=0.0, final=0.0).factor(0, 10) == 1.0
    assert Cosine(warmup=1.0).factor(9, 10) == 1.0


def test_wsd_by_hand() -> None:
    """Ten steps: two of warm-up, flat, the last four down by quarters of the way to the end."""
    assert [WSD(warmup=0.2, decay=0.4, final=0.0).factor(step, 10) for step in range(11)] == pytest.approx(
        [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0]
    )
    assert WSD(warmup=0.2, decay=0.4, final=0.2).factor(8, 10) == pytest.approx(0.6)
    assert WSD(warmup=0.0, decay=0.0).factor(9, 10) == 1.0


@pytest.mark.parametrize("schedule", [Cosine(0.1, 0.05), WSD(0.1, 0.3, 0.05)], ids=["cosine", "wsd"])
@pytest.mark.parametrize("total", [1, 2, 7, 1000])
def test_schedules_rise_once_and_fall_once(schedule: Cosine | WSD, total: int) -> None:
    factors = [schedule.factor(step, total) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1
    peak = factors.index(1)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
