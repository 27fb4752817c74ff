"""Schemes of several streams: hyper-connections by their definition, their start, Fig. 9's products, counts.

Sinkhorn and the definition of mHC and mHC-lite are in test_hyper_connections.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.depth.facts import num_parameters, state_per_token
from repro.depth.hc import HyperConnections
from repro.depth.hyper_connections import MHC, MHCIdentity, MHCLite
from repro.depth.prenorm import PreNorm
from repro.depth.streams import StreamMixer
from repro.errors import ConfigError
from repro.ops.streams import add
from tests.test_hyper_connections import numpy_sinkhorn
from tests.test_matrix import Network
from tests.toy import Toy, default_dtype, error, normal, randomise, rms_norm

WIDTH, EPS = 16, 1e-8
STATIC, DYNAMIC = {"dynamic": False}, {"dynamic": True}
ALL = [(HyperConnections, STATIC), (HyperConnections, DYNAMIC), (MHC, {}), (MHCLite, {}), (MHCIdentity, {})]
IDS = ["static", "dynamic", "mhc", "lite", "identity"]


def double(scheme: Any, num_sublayers: int, width: int = WIDTH, **options: Any) -> Any:
    with default_dtype(torch.float64):
        return scheme(num_sublayers, width, **options)


# Hyper-connections


@pytest.mark.parametrize("options", [STATIC, DYNAMIC])
def test_one_stream_starts_as_prenorm_bit_for_bit(options: dict[str, bool]) -> None:
    """alpha = beta = A = 1: h <- 1 h + 1 f(1 h)."""
    toy, mixer = Toy(9, WIDTH, dtype=torch.float32), HyperConnections(9, WIDTH, streams=1, **options)
    for read, expected in zip(toy.walk(mixer, eps=EPS), toy.walk(PreNorm(9, WIDTH), eps=EPS), strict=True):
        assert torch.equal(read, expected)


@pytest.mark.parametrize("options", [STATIC, DYNAMIC])
@pytest.mark.parametrize("streams", [2, 3, 4])
def test_several_streams_start_as_prenorm(options: dict[str, bool], streams: int) -> None:
    """Equal streams h become h + f(h) under A = I and beta = 1; a read takes one of them; their sum is n h.

    RMSNorm(n h) under eps n^2 is RMSNorm(h) under eps.
    """
    toy, mixer = Toy(12, WIDTH), double(HyperConnections, 12, streams=streams, **options)
    reads, baseline = toy.walk(mixer, eps=EPS), toy.walk(PreNorm(12, WIDTH), eps=EPS)
    for read, expected in zip(reads[:-1], baseline[:-1], strict=True):
        assert error(read, expected) < 1e-14
    assert error(reads[-1], streams * baseline[-1]) < 1e-14
    assert error(rms_norm(reads[-1], EPS * streams**2), rms_norm(baseline[-1], EPS)) < 1e-13


def test_the_start_lets_streams_drift_apart() -> None:
    """The next sublayer reads one stream alone, so the columns of A get different gradients."""
    toy, mixer = Toy(8, WIDTH), double(HyperConnections, 8, streams=4, dynamic=False)
    out = toy.run(mixer)
    (out * normal("loss", *out.shape)).sum().backward()
    of_columns = mixer.static[3].grad[2:].sum(1)
    assert (of_columns.max() - of_columns.min()).item() > 0.01 * of_columns.abs().max().item()


@pytest.mark.parametrize("options", [STATIC, DYNAMIC])
def test_hyper_connections_follow_their_definition(options: dict[str, bool]) -> None:
    """Token by token with streams as columns, H <- H A + f(H alpha) beta^T (Table 5), without our ops."""
    n, toy = 3, Toy(5, WIDTH)
    mixer = randomise(double(HyperConnections, 5, streams=n, **options))
    expected = torch.empty_like(toy.embedding)
    with torch.no_grad():
        for b, t in [(b, t) for b in range(2) for t in range(5)]:
            H = toy.embedding[b, t][:, None].repeat(1, n)
            for l, matrix in enumerate(toy.matrices):
                alpha, beta, A = (x.clone() for x in mixer.static[l].split((1, 1, n)))
                alpha, beta, A = alpha[0], beta[0], A.T
                if options["dynamic"]:
                    s_a, s_b = mixer.scale[l]
                    normed = H / torch.sqrt(H.square().mean(0) + mixer.eps)
                    for i in range(n):
                        alpha[i] += s_a * torch.tanh(mixer.projection[l][0] @ normed[:, i])
                        beta[i] += s_b * torch.tanh(mixer.projection[l][1] @ normed[:, i])
                        for j in range(n):
                            A[i, j] += s_a * torch.tanh(mixer.projection[l][2 + j] @ normed[:, i])
                y = 0.02 * torch.tanh(rms_norm(H @ alpha, 1e-10) @ matrix)
                H = H @ A + torch.outer(y, beta)
            expected[b, t] = H.sum(1)
        assert error(toy.walk(mixer, eps=1e-10)[-1], expected) < 1e-12


# mHC: doubly stochastic, and A = I


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("streams", [2, 4])
def test_mixing_is_doubly_stochastic_at_its_start(streams: int, dtype: torch.dtype) -> None:
    x = 3 * normal("streams", 50, streams, WIDTH, dtype=dtype)
    with default_dtype(dtype):
        for scheme in (MHC, MHCLite):
            mixer = scheme(3, WIDTH, streams=streams)
            assert mixer.mixing_residual(x, 1) < 1e-6
    assert MHCIdentity(3, WIDTH, streams=streams).mixing_residual(x, 1) == 0


def test_the_residual_of_mixing_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Of mHC: what Sinkhorn in numpy leaves, no matter how large; of mHC-lite: rounding everywhere."""
    x, found = normal("streams", 50, 4, WIDTH), {}
    for std in (0.3, 1.0, 3.0):
        mixer, lite = (randomise(double(scheme, 2), std) for scheme in (MHC, MHCLite))
        normed = x.flatten(1) / torch.sqrt(x.flatten(1).square().mean(1, keepdim=True) + mixer.eps)
        logits = mixer.scale[1][2] * (normed @ mixer.projection[1][8:].T) + mixer.bias[1][8:]
        sums = [numpy_sinkhorn(z.view(4, 4).detach().numpy(), 20).sum(0) for z in logits]
        expected = max(abs(s - 1).max() for s in sums)
        found[std] = mixer.mixing_residual(x, 1)
        assert found[std] == pytest.approx(expected, rel=1e-6, abs=1e-13)
        assert lite.mixing_residual(x, 1) < 1e-14
    with capsys.disabled():
        shown = ", ".join(f"{r:.1e} at {std}" for std, r in found.items())
        print(f"\nmHC, 20 iterations: max |sum - 1| of H_res by noise on its parameters: {shown}")


def test_identity_mixing_with_one_stream_is_a_gated_prenorm() -> None:
    """x <- x + 2 sigmoid(a_post z_post + b_post) f(sigmoid(a_pre z_pre + b_pre) x), z = phi RMSNorm(x)."""
    mixer, toy = randomise(double(MHCIdentity, 6, streams=1)), Toy(6, WIDTH)
    x, read = toy.embedding, []
    for l, matrix in enumerate(toy.matrices):
        z = rms_norm(x, mixer.eps) @ mixer.projection[l].T
        pre, post = (torch.sigmoid(mixer.scale[l][i] * z[..., i : i + 1] + mixer.bias[l][i]) for i in (0, 1))
        read.append(pre * x)
        x = x + 2 * post * 0.02 * torch.tanh(rms_norm(pre * x, 1e-10) @ matrix)
    for found, expected in zip(toy.walk(mixer, eps=1e-10), [*read, x], strict=True):
        assert error(found, expected) < 1e-13


def test_identity_mixing_is_mhc_with_blocked_mixing() -> None:
    """b_res = -inf off the diagonal leaves Sinkhorn the identity alone."""
    toy, identity, mhc = Toy(6, WIDTH), randomise(double(MHCIdentity, 6)), double(MHC, 6)
    with torch.no_grad():
        for l in range(6):
            mhc.projection[l][:8], mhc.bias[l][:8] = identity.projection[l], identity.bias[l]
            mhc.scale[l][:2] = identity.scale[l]
            mhc.bias[l][8:] = torch.where(torch.eye(4).bool(), 0.0, -math.inf).flatten()
        for a, b in zip(toy.walk(identity), toy.walk(mhc), strict=True):
            assert error(a, b) < 1e-13


# All of them


@pytest.mark.parametrize(("scheme", "options"), ALL, ids=IDS)
@pytest.mark.parametrize("streams", [2, 3])
def test_the_matrix_is_the_closed_form_of_figure_9(scheme: Any, options: dict, streams: int) -> None:
    """M[i -> l] = beta_i^T A_{i+2} ... A_l alpha_l of the paper, whose sublayer l (from 1) is our l - 1.

    What sublayer l wrote enters H_{l+1} by beta_l, together with H_l A_{l+1}; v_0 enters H_1 by ones, and the
    output read (row L + 1) takes ones. Streams are columns there, so A is our mixing transposed.
    """
    L, ones = 5, torch.ones(streams, dtype=torch.float64)
    mixer, network, caught = randomise(double(scheme, L, 64, streams=streams, **options)), Network(L), {}
    original = mixer.coefficients

    def catching(x: Tensor, l: int) -> tuple[Tensor, ...]:
        result = original(x, l)
        caught[l] = [torch.eye(streams).double() if c is None else c[..., 3] for c in result]
        return result

    mixer.coefficients = catching
    found = network.matrix(mixer).weights[:, :, 0, 0, 3]  # of the fourth token
    alpha = {l + 1: c[0] for l, c in caught.items()} | {L + 1: ones}
    beta = {l + 1: c[1] for l, c in caught.items()} | {0: ones}
    A = {l + 2: c[2].T for l, c in caught.items()}
    for l in range(1, L + 2):
        for i in range(l):
            product = torch.eye(streams, dtype=torch.float64)
            for k in range(i + 2 if i else 2, l + 1):
                product = product @ A[k]
            assert abs(beta[i] @ product @ alpha[l] - found[l - 1, i]) < 1e-12


@pytest.mark.parametrize(("scheme", "options"), ALL, ids=IDS)
def test_gradcheck_of_the_whole_pass(scheme: Any, options: dict) -> None:
    toy = Toy(2, 4, embedding_std=1.0, output_std=1.0, tokens=(1, 2))
    mixer = randomise(double(scheme, 2, 4, streams=2, **options))
    inputs = (toy.embedding, *mixer.parameters())
    assert torch.autograd.gradcheck(lambda *_: toy.run(mixer, eps=1e-6), inputs)


def test_gradcheck_of_adding_without_mixing() -> None:
    shapes = {"x": (3, 4, 5), "places": (3, 4), "y": (3, 5)}
    inputs = [normal(name, *shape).requires_grad_() for name, shape in shapes.items()]
    assert torch.autograd.gradcheck(add, inputs)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_counts(n: int) -> None:
    """Per sublayer; coefficients of HC from one stream (D numbers), of mHC from all (n D), bias and scales.

    State: n streams, and between a read and its write beta and A unless they are parameters (or A the
    identity).
    """
    L, D = 6, 8
    counts = {
        (HyperConnections, False): (n * n + 2 * n, 0),
        (HyperConnections, True): (n * n + 2 * n + (n + 2) * D + 2, n + n * n),
        (MHC, None): ((2 * n + n * n) * (n * D + 1) + 3, n + n * n),
        (MHCLite, None): ((2 * n + math.factorial(n)) * (n * D + 1) + 3, n + n * n),
        (MHCIdentity, None): (2 * n * (n * D + 1) + 2, n),
    }
    for (scheme, dynamic), (parameters, scalars) in counts.items():
        options: dict[str, Any] = {"streams": n} | ({} if dynamic is None else {"dynamic": dynamic})
        assert num_parameters(scheme(L, D, **options)) == L * parameters
        assert state_per_token(lambda w, s=scheme, o=options: s(L, w, **o), D) == (n, scalars)


@pytest.mark.parametrize(("scheme", "options"), ALL, ids=IDS)
@pytest.mark.parametrize("streams", [0, -1, 1.5, True, None])
def test_streams_must_be_a_count(scheme: type[StreamMixer], options: dict, streams: Any) -> None:
    with pytest.raises(ConfigError, match=r"^arm\.mixer\.streams=.*must be an integer") as caught:
        scheme(4, WIDTH, streams=streams, **options)
    assert "\n" not in str(caught.value)


def test_dynamic_is_yes_or_no() -> None:
    with pytest.raises(ConfigError, match=r"^arm\.mixer\.dynamic='both': must be true or false$"):
        HyperConnections(4, WIDTH, dynamic="both")  # type: ignore[arg-type]
