"""What every arm keeps inside the decoder: shared draws, causality, gradients, PreNorm at zero queries."""

from __future__ import annotations

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from repro.depth.attnres import AttnRes
from repro.depth.logit_reads import WeighedReads
from repro.depth.prenorm import PreNorm
from repro.model.decoder import Decoder
from repro.model.init import generator_for
from repro.model.norm import RMSNorm
from tests.decoders import CONTEXT, SIZE, SUBLAYERS, VOCABULARY, build, text, tokens
from tests.tiny import ARMS, tiny_config
from tests.toy import error, randomise


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


# Initialisation


def test_what_two_arms_share_is_bit_identical(config: DictConfig) -> None:
    baseline = dict(build(config, "prenorm", torch.float32).named_parameters())
    drawn = {name for name, p in baseline.items() if p.ndim == 2}
    assert len(drawn) == 2 + 4 * (4 + 3)
    pre_norms = {f"sublayers.{l}.norm.weight" for l in range(SUBLAYERS)}
    for arm in ARMS:
        decoder = build(config, arm, torch.float32)
        mixer, parameters = decoder.mixer, dict(decoder.named_parameters())
        own = {name for name in parameters if name.startswith("mixer.")}
        without = (set() if mixer.pre_norm else pre_norms) | (
            {"final_norm.weight"} if mixer.post_norm else set()
        )
        assert set(parameters) - own == set(baseline) - without
        for name in set(baseline) - without:  # up to the factor that a scheme states
            expected = baseline[name] * mixer.initial_scale(name)
            assert torch.equal(parameters[name], expected), (arm, name)


def test_mixers_of_two_arms_share_their_draws(config: DictConfig) -> None:
    """A random parameter of a scheme depends on its name, not on what else the scheme has."""
    control: dict[str, object] = {"_target_": "repro.depth.controls.RandomQuery"}
    a = dict(build(config, control).mixer.named_parameters())
    b = dict(build(config, {**control, "key_norm": False}).mixer.named_parameters())
    assert set(a) - set(b) == {"key_gains"}
    assert a["queries"].any()
    assert torch.equal(a["queries"], b["queries"])


def test_seeds_differ_and_repeat(config: DictConfig) -> None:
    first, again = build(config, "full"), build(config, "full")
    other = config.copy()
    other.init_seed = 2
    second = build(other, "full")
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, dict(again.named_parameters())[name])
        changes = not name.startswith("mixer.") and parameter.ndim == 2
        assert torch.equal(parameter, dict(second.named_parameters())[name]) != changes, name
    other.init_seed, other.data_seed = 1, 7  # data order and initialisation are set apart
    assert torch.equal(build(other, "full").embedding, first.embedding)


def test_the_streams_are_pinned() -> None:
    """Frozen numbers: another version or machine must not silently draw other weights."""
    drawn = torch.randn(3, generator=generator_for(1, "embedding"))
    assert drawn.tolist() == pytest.approx([-1.3695257902, -0.8410745263, -2.5138256550], abs=1e-6)
    names = [torch.randn(1, generator=generator_for(1, f"sublayers.{l}.operator.query")) for l in range(50)]
    assert len({value.item() for value in names}) == 50


@pytest.mark.parametrize(
    ("scheme", "matrix", "output"),
    [("width_scaled", 48**-0.5, 1.0), ("depth_scaled", 48**-0.5, 8**-0.5), ("gpt2", 0.02, 1.0)],
)
def test_standard_deviations_of_the_schemes(
    config: DictConfig, scheme: str, matrix: float, output: float
) -> None:
    """4,608 draws or more: five standard errors are 5 %."""
    config = config.copy()
    config.model.width, config.model.mlp_width = 48, 96
    config.model.vocab_size = 96
    config.model.init = {"scheme": scheme, "embedding_std": 0.03, "head_std": 0.05}
    decoder = build(config, "prenorm")
    scale = 1.0 if scheme == "gpt2" else 2**-0.5  # fan-in 96
    expected = {
        "sublayers.1.operator.gate": matrix,
        "sublayers.1.operator.up": matrix,
        "sublayers.1.operator.output": matrix * scale * output,
        "embedding": 0.03,
        "head": 0.05,
    }
    parameters = dict(decoder.named_parameters())
    for name, std in expected.items():
        assert parameters[name].std().item() == pytest.approx(std, rel=0.055), name
        assert abs(parameters[name].mean().item()) < 5 * std / 4608**0.5
    attention = torch.stack([parameters[f"sublayers.{l}.operator.output"] for l in (0, 2, 4, 6)])
    assert attention.std().item() == pytest.approx(matrix * output, rel=0.055)
    assert all((parameters[f"sublayers.{l}.norm.weight"] == 1).all() for l in range(SUBLAYERS))


# Every arm inside the decoder


@pytest.mark.parametrize("arm", ARMS)
def test_causality_in_time(config: DictConfig, arm: str) -> None:
    decoder = build(config, arm)
    randomise(decoder.mixer)
    changed = tokens()
    changed[:, 5] = (changed[:, 5] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = decoder(tokens()), decoder(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert all(error(after[:, t], before[:, t]) > 1e-6 for t in range(5, CONTEXT))


@pytest.mark.parametrize("arm", ARMS)
def test_every_parameter_gets_a_gradient_unless_listed(config: DictConfig, arm: str) -> None:
    decoder = build(config, arm)
    randomise(decoder.mixer)
    decoder.loss(*text(rows=3)).backward()
    without = {name for name, p in decoder.named_parameters() if p.grad is None or not p.grad.any()}
    for name, parameter in decoder.mixer.named_parameters():
        assert parameter.grad is not None
        without |= {f"mixer.{name}[{l}]" for l, row in enumerate(parameter.grad) if not row.any()}
    listed = {f"mixer.{name}" for name in decoder.mixer.parameters_without_gradient()}
    # With sparse weights, a sublayer may be read by no token.
    assert without == listed or (isinstance(decoder.mixer, WeighedReads) and listed < without)


# Zero queries are PreNorm, up to eps


def logits_of(decoder: Decoder) -> Tensor:
    with torch.no_grad():
        return decoder(tokens())


BLOCKS: list[dict[str, object]] = [
    {key: count} for key in ("block_size", "num_blocks") for count in range(1, SUBLAYERS + 1)
]


def with_eps(config: DictConfig, eps: float) -> DictConfig:
    config = config.copy()
    config.model.norm_eps = eps
    return config


@pytest.mark.parametrize("execution", ["per_read", "score_on_write", "two_phase"])
def test_zero_queries_are_prenorm_without_eps(config: DictConfig, execution: str) -> None:
    config = with_eps(config, 0.0)
    config.runtime.depth_execution = execution
    expected = logits_of(build(config, "prenorm"))
    for options in BLOCKS:
        assert error(logits_of(build(config, options)), expected) < 1e-12, options
    # The window drops sources, so it starts as another function.
    assert error(logits_of(build(config, {"window": 2})), expected) > 1e-3


@pytest.mark.parametrize("options", [{"block_size": 1}, {"block_size": 4}, {"num_blocks": 2}])
def test_how_eps_moves_zero_queries_from_prenorm(
    options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of n sources under eps is their sum under n^2 eps: exactly PreNorm with larger eps per read.

    So the deviation is that of PreNorm under those eps, and linear in eps once n^2 eps is small.
    """
    config = tiny_config(*SIZE, "model.num_transformer_blocks=16", "model/init=gpt2")  # 32 sublayers
    deviations = {}
    for eps in (1e-5, 1e-6, 1e-8, 1e-9):
        attnres, prenorm = build(with_eps(config, eps), options), build(with_eps(config, eps), "prenorm")
        deviations[eps] = error(logits_of(attnres), logits_of(prenorm))
        norms = [module for module in prenorm.modules() if isinstance(module, RMSNorm)]
        assert norms[-1] is prenorm.final_norm
        for l, norm in enumerate(norms):
            norm.eps = attnres.mixer.num_sources(l) ** 2 * eps
        assert error(logits_of(attnres), logits_of(prenorm)) < 1e-12
    with capsys.disabled():
        shown = ", ".join(f"{d:.1e} at eps {eps:g}" for eps, d in deviations.items())
        print(f"\nzero queries and PreNorm, {options}: max |a - b| / max |b| = {shown}")
    assert deviations[1e-5] > deviations[1e-6] > deviations[1e-8]
    assert deviations[1e-8] / deviations[1e-9] == pytest.approx(10, rel=0.05)


def test_the_schemes_used_here_are_the_real_ones(config: DictConfig) -> None:
    assert type(build(config, "prenorm").mixer) is PreNorm
    assert type(build(config, {"block_size": 2}).mixer) is AttnRes
