"""The cases: literals computed in 50 digits, three larger reads against the float64 reference, and the walks.

Letters: S sources, D width, H heads, L sublayers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from repro import ops

GOLD = Path(__file__).resolve().parents[2] / "tests" / "data" / "attnres_literals.json"
QUANTITIES = ("output", "weights", "grad_sources", "grad_query", "grad_gain")
#: Bound on max |a - b| / max |b| by the dtype an implementation is given. bfloat16 keeps 8 bits.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 1e-2}
#: Power-of-two width, which some kernels ask for: names and numbers of sources.
LARGER = {"width_64_n2": 2, "width_64_n9": 9, "width_64_n33": 33}


@cache
def gold() -> dict[str, Any]:
    if not GOLD.exists():
        raise FileNotFoundError(f"{GOLD.name} is not in tests/data: run from a clone of the repository")
    return json.loads(GOLD.read_text(encoding="utf-8"))


def _larger(name: str, num_sources: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(num_sources)
    sources = torch.randn(num_sources, 64, generator=draw).tolist()
    query = (torch.randn(64, generator=draw) * 0.3).tolist()
    gain = (torch.randn(64, generator=draw) * 0.2 + 1).tolist()
    upstream = torch.randn(64, generator=draw).tolist()
    case = {"name": name, "act": "softmax", "key_norm": True, "heads": 1, "eps": 1e-6}
    return {**case, "sources": sources, "query": query, "key_weight": gain, "upstream": upstream}


def mixes() -> list[dict[str, Any]]:
    """26 single reads of the gold file and the larger ones, which have no literals."""
    return [*gold()["mixes"], *(_larger(name, count) for name, count in LARGER.items())]


def walks() -> list[dict[str, Any]]:
    return gold()["block_walks"]


def walk_name(case: dict[str, Any]) -> str:
    return f"L{case['L']}_S{case['block_size']}"


def inputs(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Sources [S, D], query, gain and upstream [D], rounded to a dtype."""
    names = {"sources": "sources", "query": "query", "gain": "key_weight", "upstream": "upstream"}
    return {name: torch.tensor(case[key], dtype=dtype) for name, key in names.items()}


def expected(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """What a read must give, in float64: the literals, or the reference where there are none.

    A dtype with fewer digits than float32 rounds the inputs, so the reference is computed from those.
    """
    if "mixed" in case and dtype in (torch.float64, torch.float32):
        keys = ("mixed", "weights", "grad_sources", "grad_query", "grad_key_weight")
        return {
            name: torch.tensor(case[key], dtype=torch.float64)
            for name, key in zip(QUANTITIES, keys, strict=True)
        }
    given = {name: value.double() for name, value in inputs(case, dtype).items()}
    sources = [source.requires_grad_() for source in given["sources"].unbind(0)]
    query, gain = given["query"].requires_grad_(), given["gain"].requires_grad_()
    options = {name: case[name] for name in ("act", "key_norm", "heads", "eps")}
    mixed, weights = ops.depth_mix(sources, query, key_weight=gain, backend="reference", **options)
    grads = torch.autograd.grad(mixed, [*sources, query, gain], given["upstream"])
    values = (mixed.detach(), weights.detach().T, torch.stack(grads[:-2]), *grads[-2:])
    return dict(zip(QUANTITIES, values, strict=True))


def terms(case: dict[str, Any], want: dict[str, Tensor]) -> dict[str, float]:
    """Size of the terms whose sum is the gradient of the query, and of the gain.

    Where these sums cancel (one source, a constant or one-hot weighting), what is left has no digits of its
    own, and its error is measured against the terms.
    """
    given = inputs(case, torch.float64)
    keys = given["sources"]
    if case["key_norm"]:
        keys = keys * torch.rsqrt(keys.square().mean(-1, keepdim=True) + case["eps"])
    heads = case["heads"]
    reach = (given["sources"] * given["upstream"]).unflatten(-1, (heads, -1)).sum(-1).abs()  # [S, H]
    size = (want["weights"].T * reach).repeat_interleave(keys.shape[1] // heads, -1) * keys.abs()
    return {
        "grad_query": (size * given["gain"].abs()).sum(0).max().item(),
        "grad_gain": (size * given["query"].abs()).sum(0).max().item(),
    }
