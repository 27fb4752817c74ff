"""A finished run as a model in memory: its config, its last weights, its corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from repro.data.prepare import prepare
from repro.data.shards import Shards
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.runs import Run, command_line, git_state
from repro.runs.places import shown
from repro.runs.plain import encode
from repro.train.process import use_threads
from repro.train.results import weights_sha256

Say = Callable[[str], None]


@dataclass(frozen=True)
class Trained:
    """A run's decoder with its final weights, in evaluation mode, and the shards it was trained on.

    digest: sha256 of the weights, equal to that of final.json.
    """

    run: Run
    config: DictConfig
    decoder: Decoder
    shards: Shards
    digest: str

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.decoder.parameters()).device


def open_trained(
    directory: Path,
    cache_dir: Path,
    *,
    device: str = "cpu",
    mixers: Mapping[str, str] | None = None,
    say: Say = print,
) -> Trained:
    """Build the decoder of a run directory and load its checkpoint, whatever else the run was trained with.

    From then on torch computes with the threads that the run's `runtime.threads` names.
    cache_dir: where prepared corpora lie.  mixers: target of the arm -> target to build instead, read by
    read; None builds the arm as it is.
    Errors: ConfigError for a directory that is no finished run, or an arm that ``mixers`` does not hold;
    DataError for a checkpoint that is missing, damaged or not the one of final.json, or another corpus.
    """
    run = finished_run(directory)
    if not run.checkpoint.exists():
        arm, seed = run.directory.parent.name, run.config.get("seed")
        raise DataError(
            f"{shown(run.checkpoint)}: missing, and records hold no weights; train the run here: "
            f"python -m repro.train arm={arm} scale={run.config.get('scale')} seed={seed}"
        )
    config = OmegaConf.create(run.config)
    assert isinstance(config, DictConfig)
    OmegaConf.update(config, "runtime.backend", "auto")
    use_threads(OmegaConf.select(config, "runtime.threads", default="auto"))
    if mixers is not None:
        target = str(OmegaConf.select(config, "arm.mixer._target_"))
        if target not in mixers:
            allowed = f"a run whose arm.mixer._target_ is {' or '.join(mixers)}, not {target}"
            raise ConfigError("run", shown(directory), allowed)
        OmegaConf.update(config, "arm.mixer._target_", mixers[target])
        OmegaConf.update(config, "runtime.depth_execution", "per_read")
    decoder = build_decoder(config)
    _load(decoder, run)
    digest = weights_sha256(decoder)
    expected = (run.read_json("final.json") or {}).get("weights_sha256")
    if digest != expected:
        raise DataError(
            f"{shown(run.checkpoint)}: not the weights that final.json tells of; "
            "train the run again with runtime.force=true"
        )
    return Trained(run, config, decoder.to(_device(device)).eval(), _shards(config, cache_dir, say), digest)


def finished_run(directory: Path) -> Run:
    """The run in a directory; a ConfigError where there is none, or where it is not done."""
    run = Run(directory)
    if not run.config_path.exists():
        raise ConfigError("run", shown(directory), "a run directory, as runs/<scale>/<arm>/<id>")
    if run.status.state != "done":
        raise ConfigError("run", shown(directory), f"a run that is done, not {run.status.state}")
    return run


def provenance(trained: Trained, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a record needs to be traced: weights, corpus, settings, code and command, as arrays of text."""
    git = git_state()
    return {
        "weights_sha256": trained.digest,
        "data_fingerprint": trained.shards.fingerprint,
        "settings": encode(dict(settings)),
        "git_sha": f"{git['sha']}{' with local changes' if git['dirty'] else ''}",
        "command": command_line(),
    }


def _load(decoder: Decoder, run: Run) -> None:
    try:
        saved = torch.load(run.checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        weights = {name.removeprefix("decoder."): value for name, value in saved.items()}
        decoder.load_state_dict(weights)
    except Exception as error:  # torch raises many kinds for a damaged or foreign file
        reason = (str(error).splitlines() or [type(error).__name__])[0][:80]
        raise DataError(f"{shown(run.checkpoint)}: not a checkpoint of this run ({reason})") from None


def _device(name: str) -> torch.device:
    try:
        return torch.zeros(0, device=name).device
    except Exception:
        raise ConfigError("device", name, "cpu, or a device that torch can use here") from None


def _shards(config: DictConfig, cache_dir: Path, say: Say) -> Shards:
    """The corpus of the run by its fingerprint: found among the prepared ones, else prepared again."""
    fingerprint = config.data.fingerprint
    for meta in sorted((cache_dir / "shards").glob("*/meta.json")):
        if fingerprint in meta.read_text(encoding="utf-8"):
            return Shards.open(meta.parent)
    data: dict[str, Any] = OmegaConf.to_container(config.data, resolve=True)  # type: ignore[assignment]
    prepared = prepare(data, vocab_size=config.model.vocab_size, cache_dir=cache_dir, say=say)
    if prepared.fingerprint != fingerprint:
        raise DataError(
            f"{shown(prepared.directory)}: fingerprint {prepared.fingerprint[:12]}, but the run was "
            "trained on "
            f"{str(fingerprint)[:12]}; prepare that corpus, or name its folder with data="
        )
    return Shards.open(prepared.directory)
