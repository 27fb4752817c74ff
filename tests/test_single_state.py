"""ReZero, LayerScale, Highway, post-norm schemes and SiameseNorm: what each equals, and at which setting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn import functional as F

from repro.depth.base import DepthMixer
from repro.depth.facts import num_parameters, state_per_token
from repro.depth.highway import Highway
from repro.depth.matrix import depth_matrix
from repro.depth.post_norm import KEEL, DeepNorm, PostNorm
from repro.depth.prenorm import PreNorm
from repro.depth.scaled_residual import LayerScale, ReZero, published_scale
from repro.depth.siamese import SiameseNorm
from repro.errors import ConfigError
from repro.model.decoder import Decoder
from tests.decoders import SIZE, SUBLAYERS, build, tokens
from tests.tiny import tiny_config
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

L, WIDTH, EPS = 6, 8, 1e-3  # eps large enough to be seen

#: every scheme of this file with every kind of option
SCHEMES: list[tuple[type[DepthMixer], dict[str, Any]]] = [
    (ReZero, {}),
    (ReZero, {"pre_norm": False}),
    (LayerScale, {}),
    (Highway, {"gate": "vector"}),
    (Highway, {"gate": "scalar"}),
    (PostNorm, {}),
    (DeepNorm, {}),
    (KEEL, {}),
    (SiameseNorm, {"output_scale": "one"}),
    (SiameseNorm, {"output_scale": "depth"}),
]


def double(scheme: type[DepthMixer], num_sublayers: int = L, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, WIDTH, **options)


def unit_toy(num_sublayers: int = L, width: int = WIDTH, tokens: tuple[int, int] = (2, 5)) -> Toy:
    return Toy(num_sublayers, width, embedding_std=1.0, output_std=1.0, tokens=tokens)


def sublayer(toy: Toy, l: int, x: Tensor) -> Tensor:
    """f_l of the toy: pre-norm, matrix, tanh."""
    return torch.tanh(rms_norm(x, 0.0) @ toy.matrices[l])


@pytest.fixture(scope="module")
def config() -> DictConfig:
    return tiny_config(*SIZE)


# ReZero and LayerScale


@pytest.mark.parametrize("scheme", [ReZero, LayerScale])
def test_scales_of_one_are_prenorm(scheme: type[DepthMixer]) -> None:
    """h + 1 f is h + f to the bit."""
    mixer, toy = double(scheme, initial=1.0), unit_toy()
    for read, expected in zip(toy.walk(mixer), toy.walk(PreNorm(L, WIDTH)), strict=True):
        assert torch.equal(read, expected)


@pytest.mark.parametrize("arm", ["rezero", "layerscale"])
def test_scales_of_one_are_prenorm_in_a_decoder(config: DictConfig, arm: str) -> None:
    decoder, prenorm = build(config, arm), build(config, "prenorm")
    with torch.no_grad():
        decoder.mixer.scales.fill_(1.0)
        assert torch.equal(decoder(tokens()), prenorm(tokens()))


def test_rezero_starts_as_the_identity() -> None:
    toy = unit_toy()
    assert all(torch.equal(read, toy.embedding) for read in toy.walk(double(ReZero)))


@pytest.mark.parametrize("scheme", [ReZero, LayerScale])
def test_scaled_residuals_follow_their_definition(scheme: type[DepthMixer]) -> None:
    mixer, toy = randomise(double(scheme)), unit_toy()
    stream = toy.embedding
    for l in range(L):
        stream = stream + sublayer(toy, l, stream) * mixer.scales[l]
    assert error(toy.walk(mixer)[-1], stream) < 1e-14


def test_initial_scales_by_depth() -> None:
    """18, 19, 24 and 25 transformer blocks of two sublayers; an option overrides."""
    assert [published_scale(n) for n in (36, 37, 48, 49)] == [0.1, 1e-5, 1e-5, 1e-6]
    assert torch.equal(LayerScale(36, 4).scales, torch.full((36, 4), 0.1))
    assert torch.equal(LayerScale(36, 4, initial=0.5).scales, torch.full((36, 4), 0.5))


def test_rezero_without_norms_reads_the_stream_itself(config: DictConfig) -> None:
    """No norm but the final one, and the decoder is the sum over operators on the raw stream."""
    decoder = build(config, "rezero_no_prenorm")
    norms = {name for name, p in decoder.named_parameters() if p.group == "norm"}
    assert norms == {"final_norm.weight"}
    randomise(decoder.mixer)
    stream = F.embedding(tokens(), decoder.embedding)
    for l, part in enumerate(decoder.sublayers):
        stream = stream + decoder.mixer.scales[l] * part.operator(stream)
    assert error(decoder(tokens()), rms_norm(stream, 1e-8) @ decoder.head.T) < 1e-12


# Highway


@pytest.mark.parametrize("gate", ["vector", "scalar"])
def test_the_highway_matrix_is_its_closed_form(gate: str) -> None:
    """M[l, 0] = prod_k (1 - g_k) and M[l, i] = g_{i-1} prod_{k >= i} (1 - g_k), over sublayers k < l.

    Sublayers from 0: output i is that of sublayer i - 1, and h_l = read l is what gate l is computed from.
    Per channel for vector gates; every row sums to one.
    """
    mixer, toy = randomise(double(Highway, gate=gate)), unit_toy()
    reads = toy.walk(mixer)
    gates = [
        1 / (1 + torch.exp(-(reads[k] @ mixer.gate_weights[k].T + mixer.gate_biases[k]))).expand_as(reads[k])
        for k in range(L)
    ]
    with torch.no_grad():
        found = depth_matrix(mixer, toy.embedding, lambda l, x: sublayer(toy, l, x), channels=True)
    assert found.residual < 1e-13
    ones = torch.ones_like(gates[0])
    for l in range(L + 1):
        row = []
        for i in range(l + 1):
            entry = ones if i == 0 else gates[i - 1]
            for k in range(i, l):
                entry = entry * (1 - gates[k])
            row.append(entry.movedim(-1, 0))
        expected = torch.stack(row)
        assert error(found.weights[l, : l + 1], expected) < 1e-13
        assert error(found.weights[l].sum(0), ones.movedim(-1, 0)) < 1e-13
    mean = depth_matrix(mixer, toy.embedding, lambda l, x: sublayer(toy, l, x)).weights
    assert error(mean[:, :, 0], found.weights.mean(2)) < 1e-14


def test_gates_at_both_ends() -> None:
    """Closed: every read is the embedding. Open: every read is the last output alone."""
    toy = unit_toy()
    assert all(error(read, toy.embedding) < 1e-14 for read in toy.walk(double(Highway, bias=-50.0)))
    *reads, last = toy.walk(double(Highway, bias=50.0))
    assert error(last, sublayer(toy, L - 1, reads[-1])) < 1e-14


def test_gates_start_equal_for_all_tokens() -> None:
    """sigmoid(-2) = 0.11920292202211755, whatever the state."""
    gate = double(Highway).gate(normal("state", 2, 3, WIDTH), 4)
    assert error(gate, torch.full((2, 3, WIDTH), 0.11920292202211755, dtype=torch.float64)) < 1e-15


# Post-norm, DeepNorm, KEEL


def post_norm_by_hand(decoder: Decoder, alpha: float, pre_norm: bool) -> Tensor:
    """Norm(alpha h + f(h)), or f(Norm(h)) inside, for every sublayer; the head reads the last one."""
    p = dict(decoder.named_parameters())
    stream = F.embedding(tokens(), decoder.embedding)
    for l in range(SUBLAYERS):
        x = rms_norm(stream, 1e-8) * p[f"sublayers.{l}.norm.weight"] if pre_norm else stream
        total = alpha * stream + decoder.sublayers[l].operator(x)
        stream = rms_norm(total, 1e-8) * p["mixer.gains"][l]
    return stream @ decoder.head.T


@pytest.mark.parametrize(
    ("mixer", "alpha", "pre_norm"),
    [
        ({"_target_": "repro.depth.post_norm.PostNorm"}, 1.0, False),
        ({"_target_": "repro.depth.post_norm.DeepNorm", "alpha": 1, "scaled_init": False}, 1.0, False),
        ({"_target_": "repro.depth.post_norm.DeepNorm"}, 8**0.25, False),
        ({"_target_": "repro.depth.post_norm.KEEL", "alpha": 1}, 1.0, True),
        ({"_target_": "repro.depth.post_norm.KEEL"}, 8.0, True),
        ({"_target_": "repro.depth.post_norm.KEEL", "alpha": "root_sublayers"}, 8**0.5, True),
    ],
    ids=str,
)
def test_post_norm_schemes_are_what_a_loop_computes(
    config: DictConfig, mixer: dict[str, object], alpha: float, pre_norm: bool
) -> None:
    decoder = build(config, mixer)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.group == "norm":
                parameter.add_(0.3 * normal(name, *parameter.shape))
        names = {name for name, p in decoder.named_parameters() if p.group == "norm"}
        norms = {f"sublayers.{l}.norm.weight" for l in range(SUBLAYERS)} if pre_norm else set()
        assert names == norms | {"mixer.gains"}  # no final norm
        expected = post_norm_by_hand(decoder, alpha, pre_norm)
        assert error(decoder(tokens()), expected) < 1e-12


def test_deepnorm_of_one_and_unit_scaling_starts_as_post_norm(config: DictConfig) -> None:
    """The same draws too."""
    options = {"_target_": "repro.depth.post_norm.DeepNorm", "alpha": 1, "scaled_init": False}
    with torch.no_grad():
        assert torch.equal(build(config, options)(tokens()), build(config, "postnorm")(tokens()))


def test_constants_of_the_ablation_model() -> None:
    """L = 32, M = 16: 32^(1/4), 128^(-1/4), and KEEL's 32 and its root."""
    mixer = DeepNorm(32, 4)
    assert mixer.alpha == pytest.approx(2.378414230005442, rel=1e-15)
    for name in ("value", "output", "gate", "up"):
        scale = mixer.initial_scale(f"sublayers.3.operator.{name}")
        assert scale == pytest.approx(0.29730177875068026, rel=1e-15)
    for name in ("sublayers.3.operator.query", "sublayers.3.operator.key", "embedding", "head"):
        assert mixer.initial_scale(name) == 1.0
    assert KEEL(32, 4).alpha == 32.0
    assert KEEL(32, 4, alpha="root_sublayers").alpha == pytest.approx(5.656854249492381, rel=1e-15)


def test_deepnorm_scales_the_draws_of_prenorm(config: DictConfig) -> None:
    """L = 8, M = 4: (8 * 4)^(-1/4) = 0.42044820762685725 on all matrices but query and key."""
    prenorm = dict(build(config, "prenorm").named_parameters())
    found = dict(build(config, "deepnorm").named_parameters())
    scaled = {name for name, p in found.items() if not name.startswith("mixer.") and name in prenorm}
    scaled = {name for name in scaled if not torch.equal(found[name], prenorm[name])}
    kinds = [("value", "output"), ("gate", "up", "output")]
    assert scaled == {f"sublayers.{l}.operator.{kind}" for l in range(SUBLAYERS) for kind in kinds[l % 2]}
    for name in scaled:
        assert error(found[name], 0.42044820762685725 * prenorm[name]) < 1e-14


@pytest.mark.parametrize("scheme", [DeepNorm, KEEL])
def test_post_norm_matrices_are_products_of_scales(scheme: type[DepthMixer]) -> None:
    """A norm multiplies all that is in the state by gain / rms, per channel; alpha weighs what was there."""
    mixer, toy = randomise(double(scheme, eps=EPS)), unit_toy()
    found = depth_matrix(mixer, toy.embedding, lambda l, x: sublayer(toy, l, x), channels=True)
    assert found.residual < 1e-13
    reads = toy.walk(mixer)
    inside = [torch.ones_like(reads[0])]  # the weight of each written vector in the state
    for l in range(L + 1):
        expected = torch.stack(inside).movedim(-1, 1)
        assert error(found.weights[l, : l + 1], expected) < 1e-12
        if l < L:
            total = mixer.alpha * reads[l] + sublayer(toy, l, reads[l])
            scale = mixer.gains[l] / (total.square().mean(-1, keepdim=True) + EPS).sqrt()
            inside = [mixer.alpha * scale * weight for weight in inside] + [scale]


# SiameseNorm


@pytest.mark.parametrize("output_scale", ["one", "depth"])
def test_siamese_norm_follows_the_published_code(output_scale: str) -> None:
    """Its forward pass, transformer block by transformer block; without its scale, the rule of Table 5."""
    mixer, toy = randomise(double(SiameseNorm, output_scale=output_scale, eps=EPS)), unit_toy()
    postnorms, prenorms = ([lambda v, g=g: g * rms_norm(v, EPS) for g in gains]
                           for gains in (mixer.post_gains, mixer.pre_gains))  # fmt: skip
    x = y = toy.embedding
    expected = []
    for block in range(L // 2):
        c = (2 * (block + 1)) ** 0.5 if output_scale == "depth" else 1.0
        for l in (2 * block, 2 * block + 1):
            x = postnorms[l](x)
            expected.append(x + prenorms[l](y))
            z = sublayer(toy, l, expected[-1])  # its input norm included
            x, y = x + z / c, y + z
    expected.append(postnorms[L](x) + prenorms[L](y))
    for read, by_hand in zip(toy.walk(mixer), expected, strict=True):
        assert error(read, by_hand) < 1e-13


def test_siamese_streams_are_post_norm_and_prenorm() -> None:
    """With each stream alone (the other's gains zero), it is that scheme, at gains of one.

    Post-norm then starts from a normalised embedding. The read of the first stream is Norm(h1), what PostNorm
    keeps as its state.
    """
    toy, mixer = unit_toy(), double(SiameseNorm)
    with torch.no_grad():
        mixer.pre_gains.zero_()
        post = double(PostNorm)
        state, reads = post.begin(rms_norm(toy.embedding, mixer.eps)), []
        for l in range(L):
            x, state = post.read(state, l)
            reads.append(x)
            state = post.write(state, l, sublayer(toy, l, x))
        for read, expected in zip(toy.walk(mixer), [*reads, post.finish(state)], strict=True):
            assert error(read, expected) < 1e-13
        mixer.pre_gains.fill_(1.0)
        mixer.post_gains.zero_()
        for read, expected in zip(toy.walk(mixer), toy.walk(PreNorm(L, WIDTH)), strict=True):
            assert error(read, rms_norm(expected, mixer.eps)) < 1e-13


# All of them


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=str)
def test_gradcheck(scheme: type[DepthMixer], options: dict[str, Any]) -> None:
    """Reads and output of a small network, in the embedding and every parameter of the scheme."""
    with default_dtype(torch.float64):
        mixer = randomise(scheme(3, 4, eps=EPS, **options))
    toy = unit_toy(3, 4, tokens=(1, 2))

    def run(embedding: Tensor, *parameters: Tensor) -> Tensor:
        toy.embedding = embedding
        return torch.stack(toy.walk(mixer, eps=EPS)[1:])

    embedding = toy.embedding.detach().requires_grad_()
    assert torch.autograd.gradcheck(run, (embedding, *mixer.parameters()))


@pytest.mark.parametrize(
    ("scheme", "options", "parameters", "state"),
    [
        (ReZero, {}, L, 1),
        (LayerScale, {}, L * WIDTH, 1),
        (Highway, {"gate": "vector"}, L * (WIDTH * WIDTH + WIDTH), 1),
        (Highway, {"gate": "scalar"}, L * (WIDTH + 1), 1),
        (PostNorm, {}, L * WIDTH, 1),
        (DeepNorm, {}, L * WIDTH, 1),
        (KEEL, {}, L * WIDTH, 1),
        (SiameseNorm, {}, 2 * (L + 1) * WIDTH, 2),
    ],
)
def test_parameters_and_state(
    scheme: type[DepthMixer], options: dict[str, Any], parameters: int, state: int
) -> None:
    assert num_parameters(scheme(L, WIDTH, **options)) == parameters
    assert state_per_token(lambda width: scheme(L, width, **options), WIDTH) == (state, 0)


@pytest.mark.parametrize(("scheme", "options"), SCHEMES, ids=str)
def test_the_state_ignores_autocast(scheme: type[DepthMixer], options: dict[str, Any]) -> None:
    """Outputs that bf16 can represent give the same bits as in fp32, and the state stays fp32."""
    mixer = randomise(scheme(L, WIDTH, **options))
    embedding = normal("embedding", 2, 5, WIDTH, dtype=torch.float32)
    results = []
    for autocast, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast), torch.no_grad():
            state = mixer.begin(embedding)
            for l in range(L):
                x, state = mixer.read(state, l)
                assert x.dtype == torch.float32
                output = normal(f"output {l}", 2, 5, WIDTH, dtype=torch.bfloat16)
                state = mixer.write(state, l, output.to(dtype))
            results.append(mixer.finish(state))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("scheme", "options", "key"),
    [
        (ReZero, {"initial": "one"}, "arm.mixer.initial"),
        (ReZero, {"pre_norm": 1}, "arm.mixer.pre_norm"),
        (LayerScale, {"initial": float("nan")}, "arm.mixer.initial"),
        (LayerScale, {"initial": True}, "arm.mixer.initial"),
        (Highway, {"gate": "matrix"}, "arm.mixer.gate"),
        (Highway, {"bias": None}, "arm.mixer.bias"),
        (PostNorm, {"alpha": 0}, "arm.mixer.alpha"),
        (DeepNorm, {"alpha": -1.0}, "arm.mixer.alpha"),
        (DeepNorm, {"scaled_init": "yes"}, "arm.mixer.scaled_init"),
        (KEEL, {"alpha": "layers"}, "arm.mixer.alpha"),
        (KEEL, {"alpha": None}, "arm.mixer.alpha"),
        (KEEL, {"alpha": -2}, "arm.mixer.alpha"),
        (SiameseNorm, {"output_scale": 2}, "arm.mixer.output_scale"),
    ],
)
def test_bad_options_name_their_key(scheme: type[DepthMixer], options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scheme(L, WIDTH, **options)
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
