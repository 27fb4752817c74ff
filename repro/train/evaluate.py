"""Validation: the sum of losses of every document, and the depth weights seen on the way."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from repro.data.batches import add_document_losses
from repro.depth.base import DepthMixer
from repro.model.decoder import Decoder


@torch.no_grad()
def document_losses(
    decoder: Decoder,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    num_documents: int,
    device: torch.device,
) -> np.ndarray:
    """Sum of losses in nats of each document, [documents].

    batches: (tokens [B, T], targets [B, T] with -100 for none, document of each target [B, T]). Sums are
    float64 on the host, in the order of the batches, so that they do not depend on a device's reductions.
    """
    sums = torch.zeros(num_documents, dtype=torch.float64)
    training = decoder.training
    decoder.eval()
    for tokens, targets, documents in batches:
        losses = decoder.losses(tokens.to(device), targets.to(device)).double().cpu()
        add_document_losses(sums, losses, targets, documents)
    decoder.train(training)
    return sums.numpy()


def position_edges(context: int) -> list[int]:
    """Buckets of token positions whose widths double: 0, 1, 2, 4, ..., context."""
    edges = [0, 1]
    while edges[-1] * 2 < context:
        edges.append(edges[-1] * 2)
    return [*edges, context] if edges[-1] < context else edges


class DepthWeightRecorder:
    """Reduces the depth weights of all reads on the device while a pass is tapped.

    Arrays are [L + 1 reads, columns, heads] and NaN where a read has no such source; see
    `DepthMixer.source_columns` for what a column is. Entropy (nats) is that of the weights divided by
    their sum, so that it is defined for the sigmoid too, and [L + 1, heads].
    """

    def __init__(self, mixer: DepthMixer, context: int) -> None:
        self.mixer, self.edges = mixer, position_edges(context)
        self.columns = 1 + max(
            (c for l in range(mixer.num_sublayers + 1) for c in mixer.source_columns(l)), default=-1
        )
        self._sums: dict[int, list[Tensor]] = {}
        self._tokens: dict[int, int] = {}

    def __enter__(self) -> DepthWeightRecorder:
        self.mixer.tap = self._record
        return self

    def __exit__(self, *_: object) -> None:
        self.mixer.tap = None

    def _record(self, l: int, weights: Tensor) -> None:
        weights = weights.double() if weights.device.type != "mps" else weights.float()
        share = weights / weights.sum(0, keepdim=True)
        positions = weights.shape[-1]
        buckets = [
            weights[..., low : min(high, positions)].mean(-1)
            if low < positions
            else weights.new_full(weights.shape[:-1], float("nan"))
            for low, high in zip(self.edges[:-1], self.edges[1:], strict=True)
        ]
        rows = weights.shape[2]
        # A batch counts by its rows: all windows of a tapped pass have the same length.
        new = [
            weights.mean(-1).sum(-1),
            weights.square().mean(-1).sum(-1),
            -torch.xlogy(share, share).sum(0).mean(-1).sum(-1),
            torch.stack(buckets, dim=-1).sum(2),
        ]
        old = self._sums.get(l)
        self._sums[l] = new if old is None else [a + b for a, b in zip(old, new, strict=True)]
        self._tokens[l] = self._tokens.get(l, 0) + rows

    def labels(self) -> dict[str, np.ndarray]:
        """What no snapshot changes: `position_edges` [P+1] and `sources` [L+1, C], names or ""."""
        names = np.full((self.mixer.num_sublayers + 1, self.columns), "", dtype="<U16")
        for l in range(self.mixer.num_sublayers + 1):
            names[l, self.mixer.source_columns(l)] = self.mixer.source_labels(l)
        return {"position_edges": np.array(self.edges), "sources": names}

    def arrays(self) -> dict[str, np.ndarray]:
        """`mean`, `mean_square` [L+1, C, H], `entropy` [L+1, H], `by_position` [L+1, C, H, P]; {} if none."""
        if not self._sums:
            return {}
        reads, heads = self.mixer.num_sublayers + 1, self.mixer.depth_heads
        shape = (reads, self.columns, heads)
        mean, square = np.full(shape, np.nan), np.full(shape, np.nan)
        entropy = np.full((reads, heads), np.nan)
        by_position = np.full((*shape, len(self.edges) - 1), np.nan)
        for l, sums in self._sums.items():
            columns = self.mixer.source_columns(l)
            values = [(s / self._tokens[l]).cpu().numpy() for s in sums]
            mean[l, columns], square[l, columns] = values[0], values[1]
            entropy[l], by_position[l, columns] = values[2], values[3]
        return {"mean": mean, "mean_square": square, "entropy": entropy, "by_position": by_position}


class DynamicsRecorder:
    """Magnitude and gradient magnitude of sublayer outputs and of the running stream, one training step.

    The paper's Fig. 5 does not say which norm or which tensor it plots, so three norms of two tensors are
    kept, each [L]: `l2` is the mean over tokens of a token's Euclidean norm, `rms` the root mean square and
    `mean_abs` the mean absolute value over all entries. Gradients are those of the step's mean loss per
    token. Micro-batches of a step are averaged, so that their number does not matter. shared_gradient: the
    gradient of an output counts as that of the stream too (`DepthMixer.stream_has_outputs_gradient`).
    """

    NORMS = ("l2", "rms", "mean_abs")

    def __init__(self, num_sublayers: int, shared_gradient: bool = False) -> None:
        self.num_sublayers, self.shared_gradient = num_sublayers, shared_gradient
        self._sums: dict[tuple[str, int], np.ndarray] = {}
        self._passes: dict[tuple[str, int], int] = {}

    def observe(self, kind: str, l: int, tensor: Tensor) -> None:
        """Pass to `Decoder.loss(..., observe=...)`."""
        self._add(kind, l, tensor.detach())
        if not tensor.requires_grad or (self.shared_gradient and kind == "stream"):
            return
        tensor.register_hook(lambda gradient: self._add(f"{kind}_grad", l, gradient.detach()))
        if self.shared_gradient:
            tensor.register_hook(lambda gradient: self._add("stream_grad", l, gradient.detach()))

    def _add(self, kind: str, l: int, tensor: Tensor) -> None:
        x = tensor.float()
        values = torch.stack([x.norm(dim=-1).mean(), x.square().mean(), x.abs().mean()]).double()
        self._sums[kind, l] = self._sums.get((kind, l), np.zeros(3)) + values.cpu().numpy()
        self._passes[kind, l] = self._passes.get((kind, l), 0) + 1

    def arrays(self, gradient_factor: float = 1.0) -> dict[str, np.ndarray]:
        """All series, NaN where nothing was seen; gradients times `gradient_factor`."""
        kinds = [f"{tensor}{suffix}" for tensor in ("output", "stream") for suffix in ("", "_grad")]
        series = {
            f"{kind}_{norm}": np.full(self.num_sublayers, np.nan) for kind in kinds for norm in self.NORMS
        }
        for (kind, l), sums in self._sums.items():
            l2, square, mean_abs = sums / self._passes[kind, l]
            factor = gradient_factor if kind.endswith("_grad") else 1.0
            for norm, value in zip(self.NORMS, (l2, square**0.5, mean_abs), strict=True):
                series[f"{kind}_{norm}"][l] = value * factor
        return series
