"""depth_matrices.npz of a run: its depth-mixing matrices (Fig. 9), measured on validation tokens in float64.

mean, std     [L + 1 reads, L + 1 written, H]      over all tokens
single        [K, L + 1, L + 1, H]                 of K tokens, spread evenly
positions     [K]                                  their places in their windows
num_tokens, step, residual                         see `repro.depth.matrix.DepthMatrix`
mixing_residual  [L]                               of streams: max |row or column sum of A - 1|
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch.nn import functional as F

from repro.data.batches import ValidationWindows
from repro.depth.matrix import depth_matrix
from repro.depth.streams import StreamMixer
from repro.errors import ConfigError
from repro.probe.records import kept, write
from repro.probe.trained import Say, Trained, open_trained

NAME = "depth_matrices"
SINGLE = 8


def record(directory: Path, cache_dir: Path, *, tokens: int, device: str, force: bool, say: Say) -> str:
    """Measure one run and write its record; what was done, in words.

    tokens: of validation text, at least as many, in whole windows.
    """
    if tokens < 1:
        raise ConfigError("tokens", tokens, "a whole number of at least 1")
    trained = open_trained(directory, cache_dir, device=device, say=say)
    settings = {"tokens": tokens}
    if not force and kept(trained, NAME, settings):
        return f"{NAME}.npz is there already"
    arrays = matrices(trained, tokens)
    told = f"{arrays['num_tokens']} tokens, residual {arrays['residual']:.1e}"
    if "mixing_residual" in arrays:
        told += f", sums of A off one by up to {arrays['mixing_residual'].max():.1e}"
    return f"{write(trained, NAME, settings, arrays)}: {told}"


def matrices(trained: Trained, num_tokens: int) -> dict[str, Any]:
    """The arrays of the record; at least `num_tokens` tokens in whole validation windows."""
    decoder = trained.decoder.double()
    context = decoder.context
    windows = ValidationWindows(trained.shards, context, -(-num_tokens // context), batch_size=1)
    found, positions, residual, off = [], [], 0.0, []
    for i in range(len(windows)):
        tokens, targets, _ = windows[i]
        real = targets[0] >= 0  # the last window is padded
        if not real.any():
            continue
        embedding, mixer = F.embedding(tokens.to(trained.device), decoder.embedding), decoder.mixer
        matrix = depth_matrix(mixer, embedding, lambda l, x: decoder.sublayers[l](x))
        if isinstance(mixer, StreamMixer):
            off.append(mixer.mixing_residuals(embedding, lambda l, x: decoder.sublayers[l](x)))
        found.append(matrix.weights[..., 0, real].cpu().numpy())
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
        "step": trained.run.status.step,
        "residual": residual,
    } | ({"mixing_residual": np.max(off, 0)} if off else {})
