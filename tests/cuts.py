"""Reads cut into phases at random places, computed by the operations, and by the definition they must equal.

A `Node` is one `ops.mix`: some sources for some reads, on top of what the node above has mixed for them. Each
of its reads ends there, or takes in a partial sum of its own and ends, or goes on in one of the node's
children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from repro import ops
from tests.toy import normal

EPS = 1e-6


@dataclass(frozen=True)
class Node:
    """sources: first and one past the last.  fates: of each read, `ends`, `merges` or `goes on`."""

    sources: tuple[int, int]
    fates: dict[int, str]
    children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Cut:
    """addends: sources that are sums of two tensors.  partials: reads with a partial sum beside the output.

    threaded: sources are used as the operations return them.  lost: outputs that no loss sees.
    """

    root: Node
    act: str = "softmax"
    heads: int = 1
    groups: int = 1
    addends: frozenset[int] = frozenset()
    partials: frozenset[int] = frozenset()
    threaded: bool = True
    lost: frozenset[str] = frozenset()

    @property
    def num_reads(self) -> int:
        return len(self.root.fates)

    @property
    def num_sources(self) -> int:
        return max(node.sources[1] for node in self.root.walk())

    def ends(self) -> Iterator[tuple[int, int, bool]]:
        """Each read, the number of sources it sees, and whether it sees a partial sum too."""
        for node in self.root.walk():
            for read, fate in node.fates.items():
                if fate != "goes on":
                    yield read, node.sources[1], fate == "merges"

    def leaves(
        self, width: int, leading: tuple[int, ...], dtype: torch.dtype, sharpness: float = 1.0
    ) -> dict[str, Tensor]:
        merging = [read for read, _, merges in self.ends() if merges]
        names = [f"source {i}" for i in range(self.num_sources)]
        names += [f"addend {i}" for i in sorted(self.addends) if i < self.num_sources]
        names += [f"output {read}" for read in merging]
        names += [f"partial {read}" for read in merging if read in self.partials]
        leaves = {name: normal(name, *leading, width, dtype=dtype) for name in names}
        leaves["queries"] = (sharpness * normal("queries", self.num_reads, width)).to(dtype)
        return {name: leaf.requires_grad_() for name, leaf in leaves.items()}


@st.composite
def cuts(draw: st.DrawFn, acts: tuple[str, ...] = ("softmax", "sigmoid", "linear", "normalised")) -> Cut:
    """At most four reads in at most four levels, the priors of three, of at most three sources each."""
    act = draw(st.sampled_from(acts))

    def node(reads: list[int], start: int, level: int) -> Node:
        stop: int = start + draw(st.integers(1, 3))
        allowed = ["ends"] + ["merges"] * (act != "linear") + ["goes on"] * 2 * (level < 3)
        fates = {read: draw(st.sampled_from(allowed)) for read in reads}
        parts: list[list[int]] = [[]]
        for read in (read for read, fate in fates.items() if fate == "goes on"):
            apart: bool = draw(st.booleans())
            if parts[-1] and apart:
                parts.append([])
            parts[-1].append(read)
        return Node((start, stop), fates, tuple(node(part, stop, level + 1) for part in parts if part))

    num_reads = draw(st.integers(1, 4))
    heads, groups = draw(st.sampled_from([(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (4, 4)]))
    root = node(list(range(num_reads)), 0, 0)
    some = st.frozensets(st.integers(0, 11), max_size=3)
    cut = Cut(root, act, heads, groups, draw(some), draw(some), draw(st.booleans()))
    names = sorted(outputs(cut))
    lost = draw(st.frozensets(st.sampled_from(names), max_size=3))
    return Cut(root, act, heads, groups, cut.addends, cut.partials, cut.threaded, lost)


def outputs(cut: Cut) -> set[str]:
    """All that comes out and may have a gradient: reads, partial sums and sources."""
    names = {f"source {i}" for i in range(cut.num_sources)}
    for read, _, merges in cut.ends():
        names |= {f"read {read}"} | ({f"total {read}"} if merges else set())
    return names


def by_definition(cut: Cut, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """h = sum_i weight_i v_i over all that a read sees, plainly, in whatever type the leaves have."""

    def total(kind: str, name: str) -> Tensor:
        return leaves[kind] + leaves[name] if name in leaves else leaves[kind]

    found = {f"source {i}": total(f"source {i}", f"addend {i}") for i in range(cut.num_sources)}
    for read, num_sources, merges in cut.ends():
        values = [found[f"source {i}"] for i in range(num_sources)]
        if merges:
            found[f"total {read}"] = total(f"output {read}", f"partial {read}")
            values.append(found[f"total {read}"])
        stack = torch.stack(values)
        by_head = stack.unflatten(-1, (cut.heads, -1))  # [S, ..., H, D / H]
        keys = by_head
        if cut.groups == 1:
            keys = keys / (stack.square().mean(-1) + EPS).sqrt()[..., None, None]
        elif cut.groups > 1:
            keys = keys / (by_head.square().mean(-1, keepdim=True) + EPS).sqrt()
        z = (keys * leaves["queries"][read].unflatten(-1, (cut.heads, -1))).sum(-1)
        if cut.act == "softmax":
            weights = torch.softmax(z, 0)
        elif cut.act == "linear":
            weights = z
        else:
            weights = torch.sigmoid(z)
            if cut.act == "normalised":
                weights = weights / weights.sum(0)
        found[f"read {read}"] = (weights.unsqueeze(-1) * by_head).sum(0).flatten(-2)
    return found


def by_phases(cut: Cut, leaves: dict[str, Tensor], backend: str = "eager") -> dict[str, Tensor]:
    """The same by `score`, `mix` and `merge`."""
    norm = ops.Norm(cut.heads, cut.groups, EPS)
    act = "softmax" if cut.act == "normalised" else cut.act
    sources: list[Tensor] = []
    logits: list[Tensor] = []
    found: dict[str, Tensor] = {}

    def score(source: Tensor, queries: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        z, source = ops.score(source, queries, norm, addend=addend, backend=backend)
        return ops.log_sigmoid(z) if cut.act == "normalised" else z, source

    def merge(read: int, prior: ops.History) -> tuple[Tensor, Tensor]:
        partial, output = leaves.get(f"partial {read}"), leaves[f"output {read}"]
        if cut.act != "normalised":
            query = leaves["queries"][read]
            return ops.merge(prior, partial, output, query, norm, act=act, backend=backend)
        z, total = score(output, leaves["queries"][read : read + 1], partial)
        (history,), (total,) = ops.mix([total], [z], [prior], act=act, dtype=total.dtype, backend=backend)
        return history.mixed, total

    def visit(node: Node, priors: dict[int, ops.History]) -> None:
        reads, mine = list(node.fates), range(*node.sources)
        histories, passed = ops.mix(
            [sources[i] for i in mine],
            [logits[i][..., reads, :] for i in mine],
            [priors[read] for read in reads if read in priors],
            act=act,
            continued=[fate != "ends" for fate in node.fates.values()],
            backend=backend,
        )
        if cut.threaded:
            sources[mine.start : mine.stop] = passed
        for (read, fate), history in zip(node.fates.items(), histories, strict=True):
            if fate == "ends":
                found[f"read {read}"] = history.mixed.to(sources[0].dtype)
            elif fate == "merges":
                found[f"read {read}"], found[f"total {read}"] = merge(read, history)
        for child in node.children:
            visit(child, dict(zip(reads, histories, strict=True)))

    for i in range(cut.num_sources):
        z, source = score(leaves[f"source {i}"], leaves["queries"], leaves.get(f"addend {i}"))
        logits.append(z)
        sources.append(source if cut.threaded or i in cut.addends else leaves[f"source {i}"])
    visit(cut.root, {})
    return found | {f"source {i}": source for i, source in enumerate(sources)}


def upstream(cut: Cut, like: Tensor) -> dict[str, Tensor]:
    """A random gradient for each output that counts."""
    shape, dtype = like.shape, like.dtype
    return {
        name: normal(f"gradient of {name}", *shape, dtype=dtype) for name in sorted(outputs(cut) - cut.lost)
    }


def loss_of(found: dict[str, Tensor], upstream: dict[str, Tensor]) -> Tensor:
    """Whose gradients these are; not the start of a chain where every output is lost."""
    terms = [(found[name] * grad).sum() for name, grad in upstream.items()]
    return torch.stack(terms).sum() if terms else found["source 0"].sum()


def gradients(loss: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of all leaves, zero where there is none."""
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), grads, strict=True)
    return {
        f"gradient of {name}": torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in pairs
    }


def with_gradients(cut: Cut, found: dict[str, Tensor], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """All outputs and all gradients."""
    return found | gradients(loss_of(found, upstream(cut, leaves["source 0"])), leaves)
