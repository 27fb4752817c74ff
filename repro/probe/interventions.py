"""interventions.npz of a run: what taking a source away does to the loss, beside the weight it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from repro.data.batches import ValidationWindows
from repro.errors import ConfigError
from repro.probe.effects import ROWS, measure
from repro.probe.mixers import METHODS, PROBED
from repro.probe.records import kept, write
from repro.probe.sources import frequency_bucket
from repro.probe.trained import Say, open_trained

NAME = "interventions"


def record(
    directory: Path,
    cache_dir: Path,
    *,
    windows: int,
    per_read: str,
    seed: int,
    device: str,
    force: bool,
    say: Say,
) -> str:
    """Measure one run (AttnRes with any option, or PreNorm) and write its record; what was done, in words.

    windows: of validation text, evenly spread over the corpus's sources.  per_read: methods tried on single
    reads, `all` or names joined by +.
    """
    methods = METHODS if per_read == "all" else tuple(per_read.split("+"))
    if unknown := set(methods) - set(METHODS):
        allowed = f"all, or names joined by + out of {', '.join(METHODS)}"
        raise ConfigError("per_read", "+".join(sorted(unknown)), allowed)
    if windows < 2:
        raise ConfigError("windows", windows, "at least 2, since intervals are over windows")
    trained = open_trained(directory, cache_dir, device=device, mixers=PROBED, say=say)
    settings: dict[str, Any] = {"windows": windows, "per_read": per_read, "seed": seed}
    if not force and kept(trained, NAME, settings):
        return f"{NAME}.npz is there already"
    chosen = ValidationWindows(trained.shards, trained.decoder.context, windows, batch_size=ROWS)
    buckets = frequency_bucket(np.asarray(trained.shards.tokens["train"]), trained.shards.vocab_size)
    arrays = measure(trained.decoder, chosen, buckets, per_read=methods, seed=seed, say=say)
    return write(trained, NAME, settings, arrays)
