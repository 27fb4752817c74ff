"""The walk: which sources each read of a model's code sees, found by sublayers that write tagged outputs.

Tag 0 is the embedding, tag l the output of sublayer l (from 1). A source is the sum of what its tags say, and
a read is right where its sources are those of the gold file: b0 the embedding, bn the sum of block n,
partial(k) the sum of the k latest outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.conformance.adapter import Setup

WIDTH = 8  # tags; as many as the deepest walk needs, and a power of two


class Sublayer(torch.nn.Module):
    """Stands for a sublayer: keeps what it reads and writes a given output."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output, self.seen = output, list[Tensor]()

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        self.seen.append(x)
        return self.output.expand_as(x)


def tagged(case: dict[str, Any], dtype: torch.dtype) -> Setup:
    """The network of a walk with one-hot embedding and outputs, and queries that weight all sources apart."""
    num_sublayers = case["L"]
    tags = torch.eye(WIDTH, dtype=dtype)
    reads, channels = torch.meshgrid(torch.arange(num_sublayers + 1), torch.arange(WIDTH), indexing="ij")
    queries = torch.cos(1.7 * channels * (reads + 1) + reads).to(dtype)
    outputs = list(tags[1 : num_sublayers + 1].unbind(0))
    return Setup(tags[0], outputs, queries, torch.ones_like(queries), case["block_size"], 1e-6)


def literal(case: dict[str, Any], dtype: torch.dtype) -> Setup:
    """The network of a walk with the embedding, outputs, queries and gains of the gold file."""
    names = ("embedding", "sublayer_outputs", "queries", "key_weights")
    embedding, outputs, queries, gains = (torch.tensor(case[name], dtype=dtype) for name in names)
    return Setup(embedding, list(outputs.unbind(0)), queries, gains, case["block_size"], case["eps"])


def gold_sources(case: dict[str, Any]) -> list[set[tuple[int, ...]]]:
    """Per read, each source as how often it holds tag 0, 1, ...: from the labels of the gold file."""
    size = case["block_size"]

    def tags(label: str, read: int) -> range:
        if label == "b0":
            return range(1)
        if label.startswith("partial("):
            return range(read + 1 - int(label[8:-1]), read + 1)
        block = int(label[1:])
        return range((block - 1) * size + 1, min(block * size, case["L"]) + 1)

    return [
        {tuple(int(tag in tags(label, read)) for tag in range(WIDTH)) for label in entry["sources"]}
        for read, entry in enumerate(case["source_sets"])
    ]


def describe(sources: list[tuple[float, ...]]) -> str:
    """Sources in words: e the embedding, f3 the output of sublayer 3."""

    def one(source: tuple[float, ...]) -> str:
        names = ["e", *(f"f{l}" for l in range(1, WIDTH))]
        parts = [f"{'' if x == 1 else f'{x:g} '}{n}" for n, x in zip(names, source, strict=True) if x]
        return " + ".join(parts) or "zero"

    return ", ".join(one(source) for source in sources)


def judge(case: dict[str, Any], sources: list[list[list[float]]]) -> dict[str, Any]:
    """Verdict on the sources of all reads: one bool per question, and the first wrong read in words.

    sources: per read (the output read last), each source as its amount of every tag.
    """
    last, size = case["L"], case["block_size"]
    found = [[tuple(round(x, 4) for x in source) for source in read] for read in sources]
    want = gold_sources(case)
    right = [
        len(read) == len(wanted) and set(read) == wanted for read, wanted in zip(found, want, strict=True)
    ]
    embedding = (1.0, *[0.0] * (WIDTH - 1))
    wrong = next((l for l in range(last + 1) if not right[l]), None)
    return {
        "embedding": all(embedding in read for read in found[:last]),
        "boundary": all(right[l] for l in range(last) if l % size == 0),
        "partial": all(right[l] for l in range(last) if l % size),
        "output": right[last],
        "first_wrong": "" if wrong is None else _difference(wrong, last, found[wrong], want[wrong]),
    }


def _difference(read: int, last: int, found: list[tuple[float, ...]], want: set[tuple[int, ...]]) -> str:
    name = "output read" if read == last else f"read of sublayer {read + 1}"
    return f"{name} sees {describe(found)}; literal: {describe(sorted(want, reverse=True))}"
