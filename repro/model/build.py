"""From a resolved config to an initialised decoder; the only place where an arm becomes a module."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf

from repro.depth.base import DepthMixer
from repro.errors import ConfigError
from repro.model.decoder import Decoder
from repro.model.init import initialise

EXECUTIONS = ("auto", "per_read", "score_on_write", "two_phase")
BACKENDS = ("auto", "reference", "eager")


def build_decoder(config: DictConfig, device: str = "cpu") -> Decoder:
    """The decoder of `config.arm` and `config.model`, drawn from `config.init_seed`.

    device="meta" builds shapes only (nothing is drawn). Raises ConfigError naming the key that cannot be.
    """
    model: dict[str, Any] = OmegaConf.to_container(config.model, resolve=True)  # type: ignore[assignment]
    init = model.pop("init")
    for key, allowed in (("depth_execution", EXECUTIONS), ("backend", BACKENDS)):
        if config.runtime[key] not in allowed:
            raise ConfigError(f"runtime.{key}", config.runtime[key], f"one of {', '.join(allowed)}")
    with torch.device(device):
        decoder = Decoder(_mixer_factory(config), context=config.budget.context, **model)
    return decoder if device == "meta" else initialise(decoder, init, int(config.init_seed))


def _mixer_factory(config: DictConfig) -> partial[DepthMixer]:
    options: dict[str, Any] = OmegaConf.to_container(config.arm.mixer, resolve=True)  # type: ignore[assignment]
    target = options.pop("_target_")
    try:
        scheme = get_class(target)
    except (HydraException, ImportError, ValueError) as error:
        raise ConfigError("arm.mixer._target_", target, f"a class of repro.depth ({error})") from None
    return partial(
        _construct,
        scheme,
        execution=config.runtime.depth_execution,
        backend=config.runtime.backend,
        **options,
    )


def _construct(scheme: type[DepthMixer], num_sublayers: int, width: int, **options: Any) -> DepthMixer:
    try:
        return scheme(num_sublayers, width, **options)
    except TypeError as error:
        # A misspelt option of the scheme; anything else is a fault of ours and keeps its traceback.
        if "unexpected keyword argument" not in str(error):
            raise
        key = str(error).rsplit("'", 2)[-2]
        raise ConfigError(
            f"arm.mixer.{key}", options.get(key), f"not an option of {scheme.__name__}"
        ) from None
