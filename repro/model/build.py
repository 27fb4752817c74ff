"""From a resolved config to an initialised decoder; the only place where an arm becomes a module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from repro.depth.base import BACKENDS, DepthMixer
from repro.errors import ConfigError
from repro.model.decoder import Decoder
from repro.model.eps import divide_by_sources
from repro.model.init import check_init, initialise
from repro.model.locate import locate, refuse_unknown

EXECUTIONS = ("auto", "per_read", "score_on_write", "two_phase")
#: arguments of a scheme that the decoder and `runtime` give, not `arm.mixer`
GIVEN = ("num_sublayers", "width", "eps", "execution", "backend")


def build_decoder(config: DictConfig, device: str = "cpu") -> Decoder:
    """The decoder of `config.arm` and `config.model`, drawn from `config.init_seed`.

    device="meta" builds shapes only (nothing is drawn). Raises ConfigError naming the key that cannot be.
    """
    model = _node(config, "model")
    init = model.pop("init", None)
    eps_by_sources = model.pop("eps_by_sources", False)
    if not isinstance(eps_by_sources, bool):
        raise ConfigError("model.eps_by_sources", eps_by_sources, "true or false")
    for key, allowed in (("depth_execution", EXECUTIONS), ("backend", BACKENDS)):
        if config.runtime[key] not in allowed:
            raise ConfigError(f"runtime.{key}", config.runtime[key], f"one of {', '.join(allowed)}")
    refuse_unknown("model", Decoder, model, reserved=("make_mixer", "context"))
    check_init(init)
    with torch.device(device):
        decoder = Decoder(_mixer_factory(config), context=config.budget.context, **model)
    if eps_by_sources:
        divide_by_sources(decoder)
    return decoder if device == "meta" else initialise(decoder, init, int(config.init_seed))


def _mixer_factory(config: DictConfig) -> partial[DepthMixer]:
    options = _node(config, "arm.mixer")
    scheme = locate("arm.mixer._target_", options.pop("_target_", None), DepthMixer)  # type: ignore[type-abstract]
    refuse_unknown("arm.mixer", scheme, options, reserved=GIVEN)
    return partial(
        scheme, execution=config.runtime.depth_execution, backend=config.runtime.backend, **options
    )


def _node(config: DictConfig, key: str) -> dict[str, Any]:
    """A mapping of the config as plain data."""
    node = OmegaConf.select(config, key)
    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if not isinstance(plain, Mapping):
        raise ConfigError(key, plain, "a mapping, as in its YAML")
    return {str(name): value for name, value in plain.items()}
