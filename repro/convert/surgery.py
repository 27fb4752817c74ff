"""From a trained PreNorm decoder to another scheme with the same function (design: exact) or nearly so.

At zero queries a read of AttnRes is the mean of its n sources, and these sum up to the stream of PreNorm. The
norm behind the read takes the factor 1/n away, up to its eps. Methods:

exact      eps / n^2 in the norm of every read (`model.eps_by_sources`): the same function.
keep_eps   eps as it was: of the same input, a norm's output shrinks by sqrt((m + eps) / (m + n^2 eps)) with m
           the mean square of the stream, a relative deviation of at most (n^2 - 1) eps / (2 (m + eps)).

A scheme whose reads are the stream itself before it is trained (PreNorm, DenseFormer) converts as it is. Any
other is refused: a window drops sources, a sigmoid does not average.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from repro.depth.base import DepthMixer
from repro.errors import ConfigError
from repro.model.decoder import Decoder
from repro.model.eps import num_sources

METHODS = ("exact", "keep_eps")
#: Largest deviation of float64 logits that counts as the same function, relative to the largest logit.
EXACT = 1e-9
_ROUNDING = 1e-10


def check_parent(decoder: Decoder, arm: str) -> None:
    """ConfigError unless a decoder is PreNorm's: no parameters in its scheme, every read the running sum."""
    mixer, allowed = (
        decoder.mixer,
        "a run of PreNorm (arm prenorm), the only one that a conversion starts from",
    )
    factors = None if mixer.post_norm or list(mixer.parameters()) else _factors(_double(decoder).mixer)
    if factors is None or not all(_same(factor, 1.0) for factor in factors):
        raise ConfigError("run", arm, allowed)


def needs_eps_by_sources(decoder: Decoder, arm: str) -> bool:
    """Whether the exact conversion divides eps (True), or the untrained scheme reads the stream itself.

    decoder: of the arm, as it is initialised.  ConfigError where no conversion is exact.
    """
    factors = None if decoder.mixer.post_norm else _factors(_double(decoder).mixer)
    if factors is not None and all(_same(factor, 1.0) for factor in factors):
        return False
    means = [1.0 / num_sources(decoder, l) for l in range(decoder.num_sublayers + 1)]
    if factors is None or not all(map(_same, factors, means)):
        raise ConfigError(
            "arm", arm, "one whose untrained reads are the mean of all sources, or their sum (Full, Block)"
        )
    return True


def transfer(parent: Decoder, decoder: Decoder) -> None:
    """Copy all weights but the scheme's own; ConfigError naming the first that has no counterpart."""
    given, own = _shared(parent), _shared(decoder)
    if alone := sorted(given.keys() ^ own.keys()):
        where = "the run" if alone[0] in given else "the arm"
        raise ConfigError("arm", alone[0], f"one with the weights of the run; only {where} has this one")
    for name, value in given.items():
        if value.shape != own[name].shape:
            raise ConfigError("run", name, f"of shape {list(own[name].shape)}, not {list(value.shape)}")
    decoder.load_state_dict(given, strict=False)


@torch.no_grad()
def deviation(decoder: Decoder, parent: Decoder, tokens: Tensor) -> float:
    """max |a - b| / max |b| of the logits of tokens [B, T], computed in float64."""
    tokens = tokens.to(next(parent.parameters()).device)
    found, expected = _double(decoder)(tokens), _double(parent)(tokens)
    return float((found - expected).abs().max() / expected.abs().max())


def _shared(decoder: Decoder) -> dict[str, Tensor]:
    return {name: x for name, x in decoder.state_dict().items() if not name.startswith("mixer.")}


def _double(decoder: Decoder) -> Decoder:
    found = copy.deepcopy(decoder).double().eval()
    if found.mixer.backend != "reference":
        found.mixer.backend = "eager"  # a kernel may know fewer dtypes
    return found


@torch.no_grad()
def _factors(mixer: DepthMixer) -> Sequence[float] | None:
    """What each read, the output read last, is times the sum of all that was written; None if it is not."""
    draw = torch.Generator().manual_seed(0)
    device = next((p.device for p in mixer.parameters()), torch.device("cpu"))

    def activation() -> Tensor:
        return torch.randn(1, 2, mixer.width, generator=draw, dtype=torch.float64).to(device)

    total = activation()
    state, factors = mixer.begin(total), list[float]()
    for l in range(mixer.num_sublayers + 1):
        if l < mixer.num_sublayers:
            read, state = mixer.read(state, l)
        else:
            read = mixer.finish(state)
        if not isinstance(read, Tensor):
            return None
        factor = float((read * total).sum() / total.square().sum())
        if float((read - factor * total).abs().max()) > _ROUNDING * float(total.abs().max()):
            return None
        factors.append(factor)
        if l < mixer.num_sublayers:
            output = activation()
            state = mixer.write(state, l, output)
            total = total + output
    return factors


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= _ROUNDING
