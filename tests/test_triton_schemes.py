"""Whole passes through AttnRes on the Triton kernels, in all phases, against the definition in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.passes import build, results, same

DEVICE_RUNS_KERNELS = not torch.cuda.is_available()  # passes of these tests are on the CPU: the interpreter


@pytest.mark.skipif(not DEVICE_RUNS_KERNELS, reason="with a GPU, kernels are not interpreted")
@pytest.mark.parametrize("execution", ["two_phase", "score_on_write", "per_read"])
@pytest.mark.parametrize(
    "options",
    [
        {"block_size": 4},
        {"block_size": 1},
        {"num_blocks": 3, "heads": 2},
        {"block_size": 3, "act": "sigmoid"},
        {"block_size": 4, "act": "sigmoid_normalized"},
        {"block_size": 1, "window": 3, "key_norm": False},
    ],
    ids=str,
)
def test_every_execution_on_the_kernels(options: dict[str, Any], execution: str) -> None:
    """Reads, weights and every gradient of ten sublayers."""
    expected = results(build(10, **options, execution="per_read", backend="reference"))
    same(results(build(10, **options, execution=execution, backend="triton")), expected, 1e-12)
