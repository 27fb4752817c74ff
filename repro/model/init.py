"""Initialisation keyed by (seed, parameter name): what two arms share is bit-identical.

A generator of its own per parameter means that adding a parameter to one arm never shifts the draws of
another; a residual scheme may multiply draws by a factor (`DepthMixer.initial_scale`), which changes no draw.
Schemes of initialisation (config group `model/init`), D width, L sublayers:

width_scaled   every matrix N(0, 1/fan_in)
depth_scaled   the same, and the output projections of all sublayers divided by sqrt(L)
gpt2           every matrix N(0, 0.02^2), whatever the width

Embedding and head have their own standard deviation in each scheme. A badly initialised PreNorm flatters
every alternative, so the default of a scale is the one under which PreNorm does best (`experiment=init`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from repro.errors import ConfigError
from repro.model.decoder import Decoder

SCHEMES = ("width_scaled", "depth_scaled", "gpt2")


def check_init(init: Any) -> None:
    """ConfigError where config node `model.init` cannot be used."""
    if not isinstance(init, Mapping):
        raise ConfigError("model.init", init, "a mapping with scheme, embedding_std and head_std")
    if init.get("scheme") not in SCHEMES:
        raise ConfigError("model.init.scheme", init.get("scheme"), f"one of {', '.join(SCHEMES)}")
    for key in ("embedding_std", "head_std"):
        std = init.get(key)
        if isinstance(std, bool) or not isinstance(std, int | float) or not 0 <= std < math.inf:
            raise ConfigError(f"model.init.{key}", std, "a number of at least 0")
    for key in init.keys() - {"scheme", "embedding_std", "head_std"}:
        raise ConfigError(f"model.init.{key}", init[key], "not one of scheme, embedding_std, head_std")


def generator_for(seed: int, name: str) -> torch.Generator:
    """The random stream of one parameter, the same on every machine."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _matrix_std(scheme: str, name: str, parameter: nn.Parameter, num_sublayers: int) -> float:
    if scheme == "gpt2":
        return 0.02
    std = parameter.shape[1] ** -0.5
    return std * num_sublayers**-0.5 if scheme == "depth_scaled" and name.endswith(".output") else std


@torch.no_grad()
def initialise(model: Decoder, init: Mapping[str, Any], seed: int) -> Decoder:
    """Draw all parameters of the decoder in place and return it.

    init: `scheme` (one of SCHEMES), `embedding_std`, `head_std`. A mixer's parameters keep the values of
    its constructor, but for those it lists in `normal_init`. Draws are made in fp32 on the CPU, so that
    device and dtype change no number beyond the cast.
    """
    check_init(init)
    scheme = init["scheme"]
    stds = {"embedding": float(init["embedding_std"]), "head": float(init["head_std"])}
    for name, parameter in model.named_parameters():
        group = getattr(parameter, "group", None)
        if name.startswith("mixer."):
            std = model.mixer.normal_init.get(name.removeprefix("mixer."))
        elif group == "matrix":
            std = _matrix_std(scheme, name, parameter, model.num_sublayers)
        else:
            std = stds.get(str(group))
        if std is not None:
            draw = torch.randn(parameter.shape, generator=generator_for(seed, name), dtype=torch.float32)
            parameter.copy_(draw * std)
            if not name.startswith("mixer."):
                parameter.mul_(model.mixer.initial_scale(name))
    return model
