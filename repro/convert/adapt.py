"""A short adaptation: a converted run and the continued PreNorm run that it is compared with.

Both start from the same trained weights, see the batches that follow those of their parent in the same order
and have the parent's optimizer and schedule anew: peak learning rate, warm-up and decay over the new steps,
moments from zero. They are runs like any other, under the scale ``<scale>/convert``, with a node `start` in
their identity: the parent's run id, the method, and the step of the parent. What a conversion did to the loss
is in their ``convert.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf, open_dict

from repro.convert import surgery
from repro.data.batches import ValidationWindows
from repro.data.losses import summarise
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.model.eps import norm_eps
from repro.probe.trained import Trained
from repro.runs import Run, command_line
from repro.train import settings
from repro.train.evaluate import document_losses
from repro.train.execute import Outcome, execute, with_data
from repro.train.paths import config_directory

Say = Callable[[str], None]
#: The last part of the scale of these runs, which keeps them out of every table of runs from nothing.
SCALE = "convert"
RECORD = "convert.json"
#: Groups of the config that belong to the adaptation; everything else is the parent's.
FREE = ("optim", "schedule", "trainer", "runtime", "logger", "paths")
_NODES = ("vocab_size", "model", "data", "optim", "schedule", "evaluation", "precision")
_SEEDS = ("seed", "init_seed", "data_seed")
_TOKENS = (2, 64)  # sequences and their length, on which two functions are compared


def check_overrides(overrides: Sequence[str]) -> None:
    """ConfigError for a setting that a conversion takes from its parent."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key.partition(".")[0] not in FREE and key != "data.path":
            raise ConfigError(
                key, value, f"as in the run; a conversion may set {', '.join(FREE)} and data.path"
            )


def child_config(
    parent: DictConfig, run_id: str, step: int, *, arm: str, method: str, steps: int, overrides: Sequence[str]
) -> DictConfig:
    """The config of the run that starts from `run_id`, trained for `step` steps, and adapts for `steps`.

    overrides: as on a command line; groups and keys of `FREE`, and data.path.
    """
    check_overrides(overrides)
    scale = str(parent.scale).removesuffix(f"/{SCALE}")
    groups = [o for o in overrides if "." not in o.partition("=")[0]]
    keys = [o for o in overrides if o not in groups]
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        config = compose("train", overrides=[f"arm={arm}", f"scale={scale}", *groups])
    chosen = {o.partition("=")[0] for o in groups}
    with open_dict(config):
        for name in (*_NODES, *_SEEDS):
            if name not in chosen and name in parent:
                config[name] = parent[name]
        config.scale = f"{scale}/{SCALE}"
        config.start = {"run": run_id, "method": method, "step": step}
        config.budget = {**parent.budget, "tokens": steps * parent.budget.batch_size * parent.budget.context}
        config.data.pop("fingerprint", None)
    OmegaConf.set_struct(config, False)  # a key that does not exist is refused where all settings are checked
    merged = OmegaConf.merge(config, OmegaConf.from_dotlist(keys))
    assert isinstance(merged, DictConfig)
    return merged


class Conversion:
    """One conversion of a trained PreNorm run: checked when it is made, trained by `adapt`."""

    def __init__(
        self, trained: Trained, *, arm: str, method: str, steps: int, overrides: Sequence[str], say: Say
    ) -> None:
        if method not in surgery.METHODS:
            raise ConfigError("method", method, f"one of {', '.join(surgery.METHODS)}")
        surgery.check_parent(trained.decoder, str(trained.config.arm.name))
        self.trained, self.say = trained, say
        step = trained.run.status.step
        how: dict[str, Any] = {"arm": arm, "steps": steps, "overrides": overrides}
        config = child_config(trained.config, trained.run.run_id, step, method=method, **how)
        if method == "exact" and surgery.needs_eps_by_sources(build_decoder(config), arm):
            with open_dict(config):
                config.model.eps_by_sources = True
        elif method == "keep_eps" and not surgery.needs_eps_by_sources(build_decoder(config), arm):
            config.start.method = "exact"  # nothing to divide: both methods are this one
        settings.check(config)
        self.config = config
        self._deviation = self._check(build_decoder(config))

    def adapt(self) -> Outcome:
        """Train the converted weights for the asked steps, or return the run from the cache."""
        config, _ = with_data(self.config, _silent)
        if config.data.fingerprint != self.trained.shards.fingerprint:
            raise DataError(
                f"data.fingerprint is {config.data.fingerprint[:12]}, but run {self.trained.run.run_id} was "
                f"trained on {self.trained.shards.fingerprint[:12]}: prepare that corpus (data.path=...)"
            )
        return execute(self.config, self.say, self._begin)

    def _check(self, decoder: Decoder) -> float:
        """The deviation of the converted function; ConfigError where it should be none and is not."""
        surgery.transfer(self.trained.decoder, decoder)
        rows, length = _TOKENS
        inputs, _, _ = ValidationWindows(self.trained.shards, decoder.context, rows)[0]
        found = surgery.deviation(decoder, self.trained.decoder, inputs[:rows, :length])
        if self.config.start.method == "exact" and not found <= surgery.EXACT:
            raise ConfigError(
                "arm", self.config.arm.name, f"one that keeps the function; its logits deviate by {found:.1e}"
            )
        return found

    def _begin(self, run: Run, decoder: Decoder, windows: ValidationWindows) -> None:
        surgery.transfer(self.trained.decoder, decoder)
        device = torch.device("cuda" if self.config.trainer.accelerator == "gpu" else "cpu")
        before, after = (_loss(model, windows, device) for model in (self.trained.decoder, decoder))
        run.write_json(
            RECORD,
            {
                "start": OmegaConf.to_container(self.config.start),
                "parent_weights_sha256": self.trained.digest,
                "logit_deviation": self._deviation,
                "val_loss_before": before,
                "val_loss_after": after,
                "norm_eps": norm_eps(decoder),
                "command": command_line(),
            },
        )
        self.say(f"validation {before:.4f} before the conversion, {after:.4f} after it")


def _silent(_: str) -> None:
    """`execute` says it again."""


def _loss(decoder: Decoder, windows: ValidationWindows, device: torch.device) -> float:
    """Validation loss over all documents, nats per token; the decoder comes back to the CPU."""
    sums = document_losses(decoder.to(device), windows, windows.num_documents, device)
    decoder.to("cpu")
    return float(summarise(sums, windows.tokens, windows.num_bytes, windows.source)["loss"])
