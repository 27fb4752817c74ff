"""Depth-mixing matrices of trained runs (Fig. 9): ``python -m repro.train.matrices runs/quick/full/<id> ...``

Loads the last checkpoint of each run (weights only), runs it on validation tokens in float64 and writes
``<run>/depth_matrices.npz``, a record that ``python -m repro.reproduce archive fig9`` copies:

    mean, std     [L + 1 reads, L + 1 written, H]      over all tokens
    single        [K, L + 1, L + 1, H]                 of K tokens, spread evenly
    positions     [K]                                  their places in their windows
    num_tokens, step, residual                         see `repro.depth.matrix.DepthMatrix`
    mixing_residual  [L]                               of streams: max |row or column sum of A - 1|

A directory above several runs (``runs/quick``) stands for all of them that have a checkpoint.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch.nn import functional as F

from repro.data.batches import ValidationWindows
from repro.data.shards import Shards
from repro.depth.matrix import depth_matrix
from repro.depth.streams import StreamMixer
from repro.errors import ConfigError, DataError
from repro.model.build import build_decoder
from repro.model.decoder import Decoder
from repro.runs import Run, project_root
from repro.runs.atomic import read_bytes
from repro.runs.places import shown
from repro.train.execute import Say, with_data
from repro.train.process import prepare, use_threads

TOKENS, SINGLE = 1024, 8
PREFIX = "decoder."


def matrices(run: Run, data: Path, num_tokens: int = TOKENS, say: Say = print) -> dict[str, Any]:
    """The arrays of depth_matrices.npz; at least `num_tokens` tokens in whole validation windows.

    data: where prepared corpora lie.  A ``DataError`` where the run has no checkpoint, or the corpus here is
    not the one it was trained on.
    """
    config, step, decoder = load(run)
    use_threads(config.runtime.threads)
    fingerprint = config.data.fingerprint
    config.paths = {"root": None, "data": str(data)}
    config, prepared = with_data(config, say)
    if prepared.fingerprint != fingerprint:
        raise DataError(f"{run.directory}: trained on data {fingerprint}, found {prepared.fingerprint}")
    context = config.budget.context
    windows = ValidationWindows(
        Shards.open(prepared.directory), context, -(-num_tokens // context), batch_size=1
    )
    found, positions, residual, off = [], [], 0.0, []
    for i in range(len(windows)):
        tokens, targets, _ = windows[i]
        real = targets[0] >= 0  # the last window is padded
        if not real.any():
            continue
        embedding, mixer = F.embedding(tokens, decoder.embedding), decoder.mixer
        matrix = depth_matrix(mixer, embedding, lambda l, x: decoder.sublayers[l](x))
        if isinstance(mixer, StreamMixer):
            off.append(mixer.mixing_residuals(embedding, lambda l, x: decoder.sublayers[l](x)))
        found.append(matrix.weights[..., 0, real].numpy())
        positions.append(np.flatnonzero(real.numpy()))
        residual = max(residual, matrix.residual)
    weights, places = np.concatenate(found, -1), np.concatenate(positions)  # [R, C, H, tokens]
    chosen = np.linspace(0, len(places) - 1, min(SINGLE, len(places))).round().astype(int)
    return {
        "mean": weights.mean(-1),
        "std": weights.std(-1),
        "single": np.moveaxis(weights[..., chosen], -1, 0),
        "positions": places[chosen],
        "num_tokens": len(places),
        "step": step,
        "residual": residual,
    } | ({"mixing_residual": np.max(off, 0)} if off else {})


def load(run: Run) -> tuple[DictConfig, int, Decoder]:
    """Config, step and decoder (float64) of a run's last checkpoint; nothing of it is executed."""
    config = OmegaConf.create(run.config)
    if not run.checkpoint.exists():
        raise DataError(f"{run.directory}: no checkpoint; records that were archived have none")
    read_bytes(run.checkpoint)
    try:
        saved = torch.load(run.checkpoint, map_location="cpu", weights_only=True)
        state = {k.removeprefix(PREFIX): v for k, v in saved["state_dict"].items() if k.startswith(PREFIX)}
        step = int(saved["global_step"])
    except Exception as error:  # a damaged file raises what its bytes happen to mean
        reason = (str(error).splitlines() or [type(error).__name__])[0][:80]
        raise DataError(f"{run.checkpoint}: not a checkpoint of ours ({reason})") from None
    decoder = build_decoder(config)
    decoder.load_state_dict(state)
    return config, step, decoder.double().eval()


def runs_under(place: Path) -> list[Run]:
    """The run at a directory, or all runs below it that have a checkpoint."""
    if (place / "config.yaml").exists():
        return [Run(place)]
    found = sorted(path.parent.parent for path in place.glob("**/checkpoints/last.ckpt"))
    if not found:
        raise DataError(f"{place}: no run with a checkpoint")
    return [Run(directory) for directory in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the matrices of each run; exit code 2 and one line for what cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m repro.train.matrices",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or directories above them")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"validation tokens, default {TOKENS}")
    parser.add_argument("--data", type=Path, default=project_root() / "data", help="prepared corpora")
    args = parser.parse_args(arguments)
    prepare()
    try:
        if args.tokens < 1:
            raise ConfigError("--tokens", args.tokens, "a whole number of at least 1")
        for run in [run for place in args.runs for run in runs_under(place)]:
            arrays = matrices(run, args.data, args.tokens, say=lambda _: None)
            with run.lock():
                path = run.write_arrays("depth_matrices.npz", **arrays)
            line = f"{shown(path)}: {arrays['num_tokens']} tokens, residual {arrays['residual']:.1e}"
            if "mixing_residual" in arrays:
                line += f", sums of A off one by up to {arrays['mixing_residual'].max():.1e}"
            print(line)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
