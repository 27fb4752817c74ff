"""Whole models: training steps of arms side by side, and one step compiled as a single graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from hydra import initialize_config_dir
from torch import Tensor, nn

from repro.bench import steps
from repro.bench.entrants import Entrant, Setting, configuration
from repro.bench.gpu_accuracy import error
from repro.bench.racing import Racer
from repro.bench.supervised import Row
from repro.train.paths import config_directory
from repro.train.process import prepare
from repro.train.step_time import BASELINE
from repro.train.sweep import register

#: Relative difference between a compiled step and an eager one in float32: sums in another order.
COMPILED_LIMIT = 1e-4


@contextmanager
def _configured() -> Iterator[None]:
    register()
    prepare()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        yield


def race(
    arm: str, backends: Sequence[str], blocks: int, width: int, overrides: Sequence[str], rounds: int
) -> Iterator[Row]:
    """Steps of one arm by each backend beside PreNorm's, in turns; peak memory.

    DataError where two backends compute different losses.
    """
    arms = (Entrant(BASELINE), *(Entrant(arm, backend=backend) for backend in backends))
    setting = Setting("gpu", blocks, width, arms)
    with _configured():
        configs = {entrant: configuration(setting, entrant, overrides) for entrant in arms}
        budget = configs[arms[0]].budget
        for row in steps.measure(setting, configs, rounds).to_dict("records"):
            time = row["unit"] == "ms"
            yield {
                "operation": f"{row['arm']}, {blocks} blocks",
                "backend": row["backend"],
                "direction": row["quantity"],
                "dtype": configs[arms[0]].precision,
                "tokens": budget.batch_size * budget.context,
                "width": width,
                "sources": row["sources_mean"],
                "quantity": "step time" if time else "peak memory",
                "value": row["median"],
                "unit": row["unit"],
                "ratio": row["ratio_median"],
                "low": row.get("ratio_lower_quartile") if time else None,
                "high": row.get("ratio_upper_quartile") if time else None,
            }


def compiled(arm: str, blocks: int, width: int, overrides: Sequence[str], compiler: str) -> Iterator[Row]:
    """Loss and gradients of one step traced without a break, against the same step launched call by call."""
    setting = Setting("gpu", blocks, width, (Entrant(arm, backend="triton"),))
    with _configured():
        racer = Racer(configuration(setting, setting.entrants[0], overrides))
    decoder, call = racer.decoder, (racer.inputs, racer.targets)
    wanted = _step(decoder, decoder.loss, *call)
    whole = torch.compile(decoder.loss, fullgraph=True, dynamic=False, backend=compiler)
    found = _step(decoder, whole, *call)
    for quantity, value in found.items():
        yield {
            "operation": f"{arm}, {blocks} blocks, compiled",
            "backend": "triton",
            "direction": "forward" if quantity == "loss" else "backward",
            "dtype": "float32",
            "tokens": racer.inputs.numel(),
            "width": width,
            "quantity": f"error of {quantity}",
            "value": error(value, wanted[quantity].double()),
            "limit": COMPILED_LIMIT,
        }


def _step(
    decoder: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Loss, and all gradients as one vector."""
    decoder.zero_grad()
    loss = loss_of(tokens, targets)
    loss.backward()
    grads = [parameter.grad for parameter in decoder.parameters() if parameter.grad is not None]
    return {"loss": loss.detach(), "gradients": torch.cat([grad.flatten() for grad in grads])}
