"""The depth-mixing matrix against literals, explicit products and gradients that know nothing of `frozen`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from analysis.matrices import EXACT, cut_ranks, effective_rank, ordinary_rank
from repro.depth import base
from repro.depth.attnres import AttnRes
from repro.depth.base import DepthMixer
from repro.depth.denseformer import DenseFormer
from repro.depth.facts import DYNAMIC, FIXED
from repro.depth.hc import HyperConnections
from repro.depth.hyper_connections import MHC, MHCIdentity, MHCLite
from repro.depth.inputs import Output, Read, output_tensor, value_input, with_tensor
from repro.depth.logit_reads import WeighedReads
from repro.depth.matrix import DepthMatrix, depth_matrix
from repro.depth.prenorm import PreNorm
from repro.model.locate import locate
from tests.toy import Toy, default_dtype, normal, randomise

ROOT = Path(__file__).resolve().parents[1]
ARMS = sorted(path.stem for path in (ROOT / "conf/arm").glob("*.yaml"))
L, WIDTH = 8, 64


def make(scheme: Any, num_sublayers: int = L, width: int = WIDTH, noise: float = 0.3, **options: Any) -> Any:
    with default_dtype(torch.float64):
        mixer = scheme(num_sublayers, width, **options)
    return randomise(mixer, noise) if noise else mixer


def arm(name: str, num_sublayers: int = L, noise: float = 0.3) -> DepthMixer:
    options = dict(yaml.safe_load((ROOT / "conf/arm" / f"{name}.yaml").read_text())["mixer"])
    scheme = locate("arm.mixer._target_", options.pop("_target_"), DepthMixer)  # type: ignore[type-abstract]
    return make(scheme, num_sublayers, noise=noise, **options)


class Network:
    """Random sublayers on an embedding of unit size; `written` is what they wrote in the last walk."""

    def __init__(self, num_sublayers: int = L, width: int = WIDTH) -> None:
        self.toy = Toy(num_sublayers, width, embedding_std=1.0, output_std=1.0)

    def sublayer(self, l: int, read: Read) -> Output:
        return self.toy.sublayer(l, read)

    def matrix(self, mixer: DepthMixer) -> DepthMatrix:
        return depth_matrix(mixer, self.toy.embedding, self.sublayer)


def mean(found: DepthMatrix) -> np.ndarray:
    return found.weights.flatten(2).mean(-1).numpy()


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_is_its_matrix(name: str) -> None:
    """sum_i M[l, i] v_i is the read of every token, and the diagonal has no zero: ordinary rank L.

    Sparse weights may be zero, there too.
    """
    mixer = arm(name)
    found = Network().matrix(mixer)
    assert found.residual < 1e-12 or mixer.maps_channels
    weights = found.weights
    assert weights.shape[:2] == (L + 1, L + 1)
    assert torch.equal(weights, weights.flatten(2).movedim(-1, 0).tril().movedim(0, -1).view_as(weights))
    for token in weights.mean(2).flatten(2).movedim(-1, 0):
        assert ordinary_rank(token.numpy()[:-1, :-1]) == L or isinstance(mixer, WeighedReads)


@pytest.mark.parametrize("name", ARMS)
def test_stated_weights_are_what_the_matrix_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamic: entries differ between tokens. Fixed: nothing is learned.

    Norms of the state are left out, as in Table 5: neither their root mean squares nor their gains count.
    """
    monkeypatch.setattr(base, "inverse_rms", lambda x, eps: torch.ones_like(x[..., :1]))
    mixer = arm(name)
    spread = Network().matrix(mixer).weights.flatten(3).std(-1).max().item()
    assert (spread > 1e-3) == (mixer.facts().weight == DYNAMIC)
    learned = sum(p.numel() for p in mixer.parameters() if p.group != "norm")
    assert (learned == 0) == (mixer.facts().weight == FIXED)


@pytest.mark.parametrize("name", ARMS)
def test_no_weight_is_left_unfrozen(name: str) -> None:
    """The gradient of <read, u> in v_i is M[l, i] u where u is orthogonal to all that was written.

    Whatever the weights w_j depend on, their part of the gradient is sum_j <v_j, u> dw_j / dv_i = 0. So plain
    autograd, in the scheme's own execution, must find the entries. It needs one head, and a width above the
    number of vectors.
    """
    mixer = arm(name)
    if mixer.depth_heads > 1 or mixer.per_channel or mixer.maps_channels:
        pytest.skip("a head has fewer channels than sources, so no direction is orthogonal to all")
    network = Network()
    entries = network.matrix(mixer).weights[:, :, 0]
    written = [network.toy.embedding.detach().requires_grad_()]
    state, reads = mixer.begin(written[0]), []
    for l in range(L):
        read, state = mixer.read(state, l)
        reads.append(value_input(read))
        output = network.sublayer(l, read)
        written.append(output_tensor(output).detach().requires_grad_())
        state = mixer.write(state, l, with_tensor(output, written[-1]))
    reads.append(mixer.finish(state))
    basis = torch.linalg.qr(torch.stack([v.detach() for v in written], -1)).Q  # [B, T, D, L + 1]
    u = normal("u", *written[0].shape)
    u = u - (basis @ (basis.mT @ u.unsqueeze(-1))).squeeze(-1)
    for l, read in enumerate(reads):
        found = torch.autograd.grad((read * u).sum(), written[: l + 1], retain_graph=True, allow_unused=True)
        for i, gradient in enumerate(found):
            expected = entries[l, i].unsqueeze(-1) * u
            actual = torch.zeros_like(u) if gradient is None else gradient
            assert (actual - expected).abs().max() < 1e-10


def test_literals_at_zero_queries() -> None:
    """Means of the sources: Full over all, Block (L = 4, S = 2) over block sums and the partial sum."""
    network = Network(4)
    full = mean(network.matrix(make(AttnRes, 4, noise=0.0)))
    assert np.allclose(full, [[1 / (l + 1) if i <= l else 0 for i in range(5)] for l in range(5)], atol=1e-15)
    block = mean(network.matrix(make(AttnRes, 4, noise=0.0, block_size=2)))
    third = 1 / 3
    expected = [
        [1, 0, 0, 0, 0],
        [1 / 2, 1 / 2, 0, 0, 0],
        [1 / 2, 1 / 2, 1 / 2, 0, 0],
        [third, third, third, third, 0],
        [third, third, third, third, third],
    ]
    assert np.allclose(block, expected, atol=1e-15)
    window = mean(network.matrix(make(AttnRes, 4, noise=0.0, window=1)))
    assert np.allclose(window[3], [1 / 2, 0, 0, 1 / 2, 0], atol=1e-15)
    assert np.array_equal(mean(network.matrix(make(PreNorm, 4))), np.tril(np.ones((5, 5))))


def test_heads_are_the_recorded_weights() -> None:
    """With S = 1 and several heads, the entries of each head are what the tap sees."""
    network, mixer = Network(4), make(AttnRes, 4, heads=4)
    found, seen = network.matrix(mixer).weights, {}
    mixer.tap = lambda l, weights: seen.__setitem__(l, weights)
    network.matrix(mixer)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for l, weights in seen.items():
        assert torch.allclose(found[l, : l + 1], weights, atol=1e-14)


def test_streams_are_products_of_their_coefficients() -> None:
    """M[l, i] = pre_l^T A_{l-1} ... A_i post_{i-1} (Fig. 9), from coefficients caught on the way."""
    mixer, network, caught = make(MHC, 5, streams=3), Network(5), []
    original = mixer.coefficients

    def catching(streams: Tensor, l: int) -> tuple[Tensor, Tensor, Tensor]:
        result = original(streams, l)
        caught.append([c[..., 0] for c in result])  # of the first token
        return result

    mixer.coefficients = catching
    found = network.matrix(mixer).weights[:, :, 0, 0, 0]
    state = [torch.ones(3, dtype=torch.float64)]  # what each written vector is in the streams
    for l, (pre, post, mixing) in enumerate(caught):
        assert torch.allclose(found[l, : l + 1], torch.stack([pre @ s for s in state]), atol=1e-13)
        state = [mixing @ s for s in state] + [post]
    assert torch.allclose(found[5], torch.stack([s.sum() for s in state]), atol=1e-13)


def test_denseformer_over_blocks_is_its_recursion() -> None:
    """Y_1 = a_10 X_0 + a_11 X_1 with X_1 = Y_0 + v_1 + v_2 and Y_0 = X_0: read 2 of the third block."""
    mixer = make(DenseFormer, 4)
    a10, a11 = mixer.scalars[:2].tolist()
    row = mean(Network(4).matrix(mixer))[2]
    assert np.allclose(row, [a10 + a11, a11, a11, 0, 0], atol=1e-14)


def single_tokens(found: DepthMatrix) -> list[np.ndarray]:
    return [m.numpy() for m in found.weights.mean(2).flatten(2).movedim(-1, 0)]


def cuts(mixer: DepthMixer, num_sublayers: int) -> list[np.ndarray]:
    return [cut_ranks(m, EXACT) for m in single_tokens(Network(num_sublayers).matrix(mixer))]


def test_rank_across_cuts_is_bounded_by_the_state() -> None:
    """PreNorm 1; m streams min(m, ...); Block its sources, at most N + 1; Full as many as there are."""
    num_sublayers = 12
    most = np.minimum(np.arange(13) + 1, 13 - np.arange(13))  # columns and rows of the block of a cut
    assert all((found == 1).all() for found in cuts(make(PreNorm, num_sublayers), num_sublayers))
    dynamic, static = partial(HyperConnections, dynamic=True), partial(HyperConnections, dynamic=False)
    for scheme in (MHC, MHCLite, MHCIdentity, dynamic, static):
        for streams in (2, 3):
            for found in cuts(make(scheme, num_sublayers, streams=streams), num_sublayers):
                assert (found <= streams).all()
                assert found.max() == streams
    for size in (2, 4, 5, 12):
        blocks = -(-num_sublayers // size)
        mixer = make(AttnRes, num_sublayers, block_size=size)
        sources = [mixer.num_sources(l) for l in range(13)]
        for found in cuts(mixer, num_sublayers):
            assert (found <= np.minimum(sources, most)).all()
            assert found.max() <= blocks + 1
    for found in cuts(make(AttnRes, num_sublayers), num_sublayers):
        assert np.array_equal(found, most)


def test_a_token_average_keeps_the_rank_of_block_and_not_that_of_streams() -> None:
    found = mean(Network(12).matrix(make(AttnRes, 12, block_size=4)))
    assert cut_ranks(found, EXACT).max() <= 4
    streams = mean(Network(12).matrix(make(MHC, 12, streams=2)))
    assert cut_ranks(streams, EXACT).max() > 2


def test_effective_rank_of_known_matrices() -> None:
    """The identity has L equal singular values; one row repeated has a single one."""
    identity = np.eye(6)
    assert effective_rank(identity) == pytest.approx(6)
    repeated = np.zeros((6, 6))
    repeated[:, 0] = 1
    assert effective_rank(repeated) == pytest.approx(1)


def test_the_matrix_leaves_the_mixer_as_it_was() -> None:
    mixer = make(AttnRes)
    before = mixer.execution
    Network().matrix(mixer)
    assert (mixer.frozen, mixer.execution) == (False, before)
    assert all(p.grad is None for p in mixer.parameters())
