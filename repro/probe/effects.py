"""Loss change when one source is taken away or replaced, for every read and source (not in the paper).

Everything is paired: the same tokens with and without the intervention. Letters as in `repro.probe.sources`;
M methods of `repro.probe.mixers.METHODS`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repro.data.batches import IGNORE, ValidationWindows
from repro.model.decoder import Decoder
from repro.probe.mixers import METHODS, Intervention
from repro.probe.passes import losses_from, repeated, states_of
from repro.probe.sources import SourceRecorder, num_columns
from repro.probe.trained import Say

ROWS = 16  # windows of one batch
PASS_TOKENS = 4096  # of the copies of a batch that go through one pass, each with its intervention
#: On single reads by default: 2 x 560 passes for Full with 32 sublayers. Spans of reads get every method.
PER_READ = ("remove", "equal_mass")
REPORT_SECONDS = 15.0


def measure(
    decoder: Decoder,
    windows: ValidationWindows,
    bucket_of_token: np.ndarray,
    *,
    per_read: Collection[str] = PER_READ,
    seed: int = 0,
    say: Say = print,
) -> dict[str, Any]:
    """All interventions on the given windows; per_read: the methods tried on single reads.

    Returns `methods` [M]; `window_loss` [W], the untouched mean loss in nats per token; `window_tokens` [W];
    `effect` [M, R, C, W], change of that loss where one read is touched; `effect_later` [M, C, W], where
    every read is touched that has the source and another one; `removed_mass` [M, R, C], weight that `remove`
    and `equal_mass` took away; `first_read` [C]; and the arrays of `SourceRecorder`. NaN where a read has no
    such source, or no other, or the scheme no such method.
    """
    mixer: Any = decoder.mixer
    reads, columns = mixer.num_sublayers + 1, num_columns(mixer)
    batches = [batch[:2] for batch in windows]
    shape = (len(METHODS), reads, columns, sum(len(tokens) for tokens, _ in batches))
    found = {
        "effect": np.full(shape, np.nan, dtype=np.float32),
        "effect_later": np.full((shape[0], *shape[2:]), np.nan, dtype=np.float32),
        "removed_mass": np.full(shape[:3], np.nan),
    }
    device = decoder.head.device
    recorder = SourceRecorder(mixer, decoder.context, bucket_of_token)
    batches = [(tokens.to(device), targets.to(device)) for tokens, targets in batches]
    bases = []
    for tokens, targets in batches:
        mixer.tap = recorder.tap
        states = states_of(decoder, tokens)
        mixer.finish(states[-1])
        mixer.tap = None
        recorder.add(states, tokens, targets != IGNORE)
        bases.append(_by_window(losses_from(decoder, states[-1], mixer.num_sublayers, targets), targets))
    means = recorder.means
    started = said = time.monotonic()
    first_rows = np.cumsum([0, *(len(tokens) for tokens, _ in batches)])
    for number, ((tokens, targets), base) in enumerate(zip(batches, bases, strict=True)):
        states = states_of(decoder, tokens)  # again, since keeping those of all batches would fill the memory
        rows = slice(first_rows[number], first_rows[number + 1])
        for l, group in _grouped(_plans(mixer, means, states[0], per_read, seed + 1000 * number), tokens):
            size = len(tokens)
            mixer.interventions = [
                (slice(k * size, (k + 1) * size), plan) for k, (_, plan) in enumerate(group)
            ]
            mixer.removed_mass = {}
            many = targets.repeat(len(group), 1)
            losses = losses_from(decoder, repeated(states[l], len(group), size), l, many)
            changes = _by_window(losses, many) - base.repeat(len(group))
            mixer.interventions = ()
            for k, (place, plan) in enumerate(group):
                change = changes[k * size : (k + 1) * size].cpu().numpy()
                m = METHODS.index(plan.method)
                if place == "later":
                    found["effect_later"][m, plan.column, rows] = change
                    continue
                found["effect"][m, l, plan.column, rows] = change
                if plan.method in ("remove", "equal_mass"):
                    cell = m, l, plan.column
                    mass = mixer.removed_mass.get(k, np.nan)
                    earlier = 0.0 if number == 0 else found["removed_mass"][cell] * number
                    found["removed_mass"][cell] = (earlier + mass) / (number + 1)
            if time.monotonic() - said > REPORT_SECONDS:
                said = time.monotonic()
                say(f"batch {number + 1} of {len(batches)}, read {l} of {reads - 1}, {said - started:.0f} s")
    return {
        **found,
        **recorder.arrays(),
        "methods": np.array(METHODS),
        "window_loss": torch.cat(bases).cpu().numpy(),
        "window_tokens": torch.cat([(t != IGNORE).sum(1) for _, t in batches]).cpu().numpy(),
        "first_read": np.array([_first_read(mixer, c) for c in range(columns)]),
        "labels": _labels(mixer, reads, columns),
    }


def _plans(
    mixer: Any, means: dict[tuple[int, int], Tensor], state: Any, per_read: Collection[str], seed: int
) -> Iterator[tuple[str, Intervention]]:
    """("read" | "later", intervention), read by read."""
    like = mixer.sources_at(state, 0)[0]  # [B, T, D]
    for l in range(mixer.num_sublayers + 1):
        seen = mixer.source_columns(l)
        for column in seen if len(seen) > 1 else ():
            first = _first_read(mixer, column)
            for method in mixer.methods:
                later = l == first and method != "equal_mass"
                if method not in per_read and not later:
                    continue
                options = _options(method, l, column, len(seen), means, like, seed)
                if method in per_read:
                    yield "read", Intervention(l, l, column, method, **options)
                if later:
                    yield "later", Intervention(l, mixer.num_sublayers, column, method, **options)


def _grouped(
    plans: Iterable[tuple[str, Intervention]], tokens: Tensor
) -> Iterator[tuple[int, list[tuple[str, Intervention]]]]:
    """Plans that begin at the same read, as many as one pass takes: small passes are bound by operators."""
    at_once = max(1, PASS_TOKENS // tokens.numel())
    for l, same in itertools.groupby(plans, key=lambda item: item[1].first):
        group = list(same)
        yield from ((l, group[k : k + at_once]) for k in range(0, len(group), at_once))


def _options(
    method: str, l: int, column: int, size: int, means: Any, like: Tensor, seed: int
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + column * 1009 + l)
    if method == "mean":
        return {"means": {read: mean for (read, c), mean in means.items() if c == column}}
    if method == "random":
        noise = torch.randn(like.shape, generator=generator).to(like)
        return {"direction": noise / noise.norm(dim=-1, keepdim=True)}
    if method == "equal_mass":
        return {"order": tuple(torch.randperm(size, generator=generator).tolist())}
    return {}


def _first_read(mixer: Any, column: int) -> int:
    """The first read that has this source and another one."""
    reads: Iterable[int] = range(mixer.num_sublayers + 1)
    return next(l for l in reads if column in (seen := mixer.source_columns(l)) and len(seen) > 1)


def _by_window(losses: Tensor, targets: Tensor) -> Tensor:
    """Mean loss of each window over its targets [B]."""
    return losses.double().sum(1) / (targets != IGNORE).sum(1).clamp_min(1)


def _labels(mixer: Any, reads: int, columns: int) -> np.ndarray:
    names = np.full((reads, columns), "", dtype="<U16")
    for l in range(reads):
        names[l, mixer.source_columns(l)] = mixer.source_labels(l)
    return names
