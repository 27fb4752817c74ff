"""Inside the process of one implementation: every case, one line of JSON each, as soon as it is done.

`python -m repro.conformance.worker MODULE NAME FILE` in the interpreter that has the implementation. Only raw
numbers leave this process; they are judged outside, where nothing of the implementation is loaded.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import torch
from torch import Tensor

from repro.conformance import cases, walk
from repro.conformance.adapter import Adapter, NotExpressible, Read, Setup

#: Upstream gradient of each token in units of the case's. Token 0 holds other values and no gradient, so that
#: an implementation that mixes tokens up is seen; exact in every dtype.
SHARES = (0.0, 0.25, 0.75)


def _tokens(sources: Tensor) -> list[Tensor]:
    """S of [1, 3, D]: other values, then the case twice."""
    other = sources.flip(0, 1) * 0.5 - 0.25
    return [torch.stack(rows)[None].contiguous() for rows in zip(other, sources, sources, strict=True)]


def read_case(adapter: Adapter, case: dict[str, Any], device: str) -> dict[str, Any]:
    """Numbers of one read: output, weights [S, H, T], and the gradients."""
    assert adapter.mix is not None
    given = {k: v.to(device) for k, v in cases.inputs(case, getattr(torch, adapter.dtype)).items()}
    sources = [source.requires_grad_() for source in _tokens(given["sources"])]
    query, gain = given["query"].requires_grad_(), given["gain"].requires_grad_()
    options = {name: case[name] for name in ("act", "key_norm", "heads", "eps")}
    folded = (query, gain) if adapter.gain == "own" else (query * gain, None)
    mixed, weights = adapter.mix(Read(sources, *folded, **options))
    upstream = torch.tensor(SHARES, device=device)[None, :, None] * given["upstream"]
    mixed.backward(upstream.to(mixed.dtype))
    grads = [source.grad if source.grad is not None else torch.zeros_like(source) for source in sources]
    values = {
        "output": mixed[0],
        "weights": None if weights is None else weights.reshape(len(sources), -1, len(SHARES)),
        "grad_sources": torch.stack(grads)[:, 0],
        "grad_query": torch.zeros_like(query) if query.grad is None else query.grad,
        "grad_gain": torch.zeros_like(gain) if gain.grad is None else gain.grad,
    }
    return {name: None if value is None else value.double().tolist() for name, value in values.items()}


def walk_case(adapter: Adapter, setups: tuple[Setup, Setup]) -> dict[str, Any]:
    """Sources of all reads by tags, and the values with the literal outputs and queries."""
    assert adapter.walk is not None
    with torch.no_grad():
        tagged, literal = (adapter.walk(setup) for setup in setups)
    return {
        "sources": [[source.tolist() for source in read] for read in tagged.sources],
        "values": [value.tolist() for value in literal.values],
        "num_queries": tagged.num_queries,
        "zero_init": tagged.zero_init,
    }


def about(adapter: Adapter, device: str) -> dict[str, Any]:
    version = importlib.metadata.version
    found = {name: version(name) for name in (adapter.distribution, *adapter.needs)}
    return {"versions": found, "python": platform.python_version(), "device": device}


def main(module: str, name: str, file: str) -> None:
    adapter = next(a for a in importlib.import_module(module).ADAPTERS if a.name == name)
    dtype = getattr(torch, adapter.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with open(file, "a", encoding="utf-8") as out:
        try:
            _line(out, kind="about", **about(adapter, device))
        except importlib.metadata.PackageNotFoundError as missing:
            _line(out, kind="missing", package=str(missing.name))
            return
        if adapter.mix is not None:
            for case in cases.mixes():
                refusal = adapter.refusal(case)
                _one(out, "mix", case["name"], refusal, partial(read_case, adapter, case, device))
        if adapter.walk is not None:
            for case in cases.walks():
                setups = (walk.tagged(case, dtype), walk.literal(case, dtype))
                _one(out, "walk", cases.walk_name(case), None, partial(walk_case, adapter, setups))
        _line(out, kind="end")


def _one(
    out: IO[str], kind: str, case: str, refusal: str | None, compute: Callable[[], dict[str, Any]]
) -> None:
    if refusal is None:
        try:
            return _line(out, kind=kind, case=case, values=compute())
        except NotExpressible as reason:
            refusal = str(reason)
        except Exception as error:  # whatever a peer raises is its outcome
            text = " ".join(str(error).split())
            return _line(out, kind=kind, case=case, raised=f"{type(error).__name__}: {text[:200]}")
    return _line(out, kind=kind, case=case, refused=refusal)


def _line(out: IO[str], **fields: Any) -> None:
    out.write(json.dumps(fields) + "\n")
    out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
