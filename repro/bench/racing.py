"""Interleaved rounds: every entrant takes one turn per round, so that a slow spell hits all of them.

Times are read as ratios to PreNorm within a round. The order of a round is drawn anew, since a pass leaves
the caches and the allocator in a state that depends on who came before.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import DictConfig
from torch import nn

from repro.errors import DataError
from repro.train.step_time import Contestant

#: forward: logits without gradient.  forward_backward: loss and gradients.  step: a whole training step.
QUANTITIES = ("forward", "forward_backward", "step")
Seconds = dict[str, dict[str, NDArray[np.float64]]]  # quantity -> entrant -> one value per round


class Racer(Contestant):
    """A contestant whose passes can be timed apart, eager or compiled; its depth weights are not uniform."""

    def __init__(self, config: DictConfig, compiled: bool = False) -> None:
        super().__init__(config)
        _draw_queries(self.decoder)
        self._logits = self.decoder.forward
        if compiled:
            self._logits = torch.compile(self.decoder.forward, dynamic=False)
            self.decoder.loss = torch.compile(self.decoder.loss, dynamic=False)  # type: ignore[method-assign]

    def turn(self) -> dict[str, float]:
        """Seconds of each of QUANTITIES; forward_backward is the first part of the step."""
        clock = [self._time()]
        with torch.no_grad(), self.autocast:
            self._logits(self.inputs)
        clock.append(self._time())
        self.backward()
        clock.append(self._time())
        self.update()
        clock.append(self._time())
        return dict(
            zip(QUANTITIES, (clock[1] - clock[0], clock[2] - clock[1], clock[3] - clock[1]), strict=True)
        )

    def _time(self) -> float:
        self.wait()
        return time.perf_counter()

    def loss(self) -> float:
        """Loss at the current weights, in nats per token."""
        with torch.no_grad(), self.autocast:
            logits = self.decoder(self.inputs)
        return float(nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten()))


def _draw_queries(decoder: nn.Module, scale: float = 0.1) -> None:
    """Pseudo-queries from one seeded draw, whichever parameters hold them; zero ones would only average."""
    queries = [p for p in decoder.parameters() if getattr(p, "group", "") == "query"]
    values = torch.randn(sum(p.numel() for p in queries), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for query, part in zip(queries, values.split([p.numel() for p in queries]), strict=True):
            query.copy_(scale * part.view_as(query))


def check_agreement(losses: Mapping[str, float], arms: Mapping[str, str], tolerance: float) -> None:
    """DataError unless entrants of one arm have the same loss before training: a wrong way is not timed."""
    first: dict[str, str] = {}
    for name, loss in losses.items():
        other = first.setdefault(arms[name], name)
        if not abs(loss - losses[other]) <= tolerance * abs(losses[other]):
            raise DataError(f"{name} computes another loss than {other}: {loss:.7g}, {losses[other]:.7g}")


def race(racers: Mapping[str, Racer], rounds: int) -> Seconds:
    """Seconds of every pass of every entrant, `rounds` values each; the caller has warmed them up."""
    names = list(racers)
    seconds: Seconds = {quantity: {name: np.empty(rounds) for name in names} for quantity in QUANTITIES}
    for r in range(rounds):
        gc.collect()  # outside the timed passes
        for index in np.random.default_rng(r).permutation(len(names)):
            for quantity, value in racers[names[index]].turn().items():
                seconds[quantity][names[index]][r] = value
    return seconds


def paired(own: NDArray[np.float64], baseline: NDArray[np.float64]) -> dict[str, float]:
    """Median in ms; median and quartiles of the ratio within a round; median of the extra ms."""
    low, median, high = np.quantile(own / baseline, [0.25, 0.5, 0.75])
    return {
        "median": 1e3 * float(np.median(own)),
        "ratio_median": float(median),
        "ratio_lower_quartile": float(low),
        "ratio_upper_quartile": float(high),
        "extra_median": 1e3 * float(np.median(own - baseline)),
    }


def spread(seconds: Sequence[float] | NDArray[np.float64]) -> float:
    """Interquartile range over the median."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return float((high - low) / median)
