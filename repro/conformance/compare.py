"""Errors of what an implementation gave, as max |a - b| / max |b| against float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from repro.conformance import cases, walk
from repro.conformance.run import Outcome
from repro.conformance.worker import SHARES


@dataclass(frozen=True)
class Verdict:
    """One case of one implementation."""

    kind: str  # mix or walk
    case: str
    status: str  # pass, fail, raised, not expressible
    errors: dict[str, float] = field(default_factory=dict)  # by quantity
    reason: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # of a walk


def relative(value: Tensor, want: Tensor, scale: float = 0.0) -> float:
    """max |a - b| / max(max |b|, scale); 0 where both are zero, infinite for other shapes and for NaN."""
    if value.shape != want.shape:
        return math.inf
    difference = (value - want).abs().max().item() if want.numel() else 0.0
    size = max(want.abs().max().item(), scale)
    if math.isnan(difference):
        return math.inf
    return difference / size if size > 0 else (0.0 if difference == 0 else math.inf)


def mix_errors(case: dict[str, Any], values: dict[str, Any], dtype: str) -> dict[str, float]:
    """Error of each quantity over both tokens that hold the case; weights only where they were given."""
    want = cases.expected(case, getattr(torch, dtype))
    got = {k: torch.tensor(v, dtype=torch.float64) for k, v in values.items() if v is not None}
    sizes = {
        name: size
        for name, size in cases.terms(case, want).items()
        if want[name].abs().max() < 1e-4 * size  # cancels
    }
    errors: dict[str, float] = {}
    for token, share in enumerate(SHARES[1:], start=1):
        for name, value in (
            ("output", got["output"][token]),
            ("weights", got["weights"][..., token].T if "weights" in got else None),
            ("grad_sources", got["grad_sources"][:, token] / share),
        ):
            if value is not None:
                errors[name] = max(errors.get(name, 0.0), relative(value, want[name]))
    if got["grad_sources"][:, 0].any() or got["grad_sources"].isnan().any():  # no gradient came from token 0
        errors["grad_sources"] = math.inf
    for name in ("grad_query", "grad_gain"):
        errors[name] = relative(got[name], want[name], sizes.get(name, 0.0))
    return errors


def walk_errors(case: dict[str, Any], values: list[list[float]]) -> dict[str, float]:
    """Error of the reads and of the output read, each as the largest over its own literal's size."""
    reads = [*case["reads"], case["output_read"]]
    each = [
        relative(torch.tensor(value, dtype=torch.float64), torch.tensor(want, dtype=torch.float64))
        for value, want in zip(values, reads, strict=True)
    ]
    return {"output": max(each[:-1]), "output_read": each[-1]}


def judge(outcome: Outcome) -> list[Verdict]:
    """A verdict on every case of an implementation that it got to."""
    dtype = outcome.adapter.dtype
    tolerance = cases.TOLERANCES[dtype]
    verdicts = []
    mixes = {case["name"]: case for case in cases.mixes()}
    walks = {cases.walk_name(case): case for case in cases.walks()}
    for entry in [*outcome.mixes, *outcome.walks]:
        kind, name = entry["kind"], entry["case"]
        if "refused" in entry:
            verdicts.append(Verdict(kind, name, "not expressible", reason=entry["refused"]))
        elif "raised" in entry:
            verdicts.append(Verdict(kind, name, "raised", reason=entry["raised"]))
        elif kind == "mix":
            errors = mix_errors(mixes[name], entry["values"], dtype)
            status = "pass" if max(errors.values()) < tolerance else "fail"
            verdicts.append(Verdict(kind, name, status, errors))
        else:
            values = entry["values"]
            facts = walk.judge(walks[name], values["sources"])
            errors = walk_errors(walks[name], values["values"])
            facts |= {"num_queries": values["num_queries"], "zero_init": values["zero_init"]}
            right = all(facts[key] for key in ("embedding", "boundary", "partial", "output"))
            right = right and facts["zero_init"] is not False and max(errors.values()) < tolerance
            status = "pass" if right else "fail"
            verdicts.append(Verdict(kind, name, status, errors, facts["first_wrong"], facts))
    return verdicts
