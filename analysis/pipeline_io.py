"""Block representations sent along an interleaved pipeline, without and with caches (Fig. 3, Eqs. 7 and 8).

P physical stages (ranks), V virtual stages on each, C = P V chunks in order: chunk c runs on rank c mod P in
virtual stage c div P. A chunk reads all block representations that exist, so they travel with its input; one
is d elements per token. N_p is the number of blocks that a chunk completes.

The walk is explicit: which rank holds which blocks when. A rank with a cache keeps the blocks that it was
sent, which is what Eq. 8 counts and Fig. 3 draws; what it completed itself is sent back to it once. Keeping
those too would save more (`CACHED_OWN`, not in the paper).

    python -m analysis.pipeline_io --stages 4 --virtual-stages 2 --blocks-per-chunk 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from analysis import tables
from analysis.tables import EMPTY, Column, Table
from repro.errors import ConfigError

NAIVE, CACHED, CACHED_OWN = WAYS = ("naive", "cached", "cached, own kept")


@dataclass(frozen=True)
class Chunk:
    """A chunk of the walk: blocks cached before it, received with its input, completed in it."""

    rank: int
    virtual_stage: int
    cached: tuple[int, ...]
    received: tuple[int, ...]
    completed: tuple[int, ...]


def walk(
    P: int, V: int, completed: Sequence[Sequence[int]], way: str, at_start: Sequence[int] = ()
) -> list[Chunk]:
    """All C chunks in order. completed: the blocks of each; at_start: blocks that chunk 0 begins with (b_0).

    A ``ValueError`` for fewer or more than C entries of `completed` or an unknown way.
    """
    if len(completed) != P * V or way not in WAYS:
        raise ValueError(f"{len(completed)} chunks for P = {P}, V = {V}, or {way!r} not one of {WAYS}")
    caches: list[set[int]] = [set() for _ in range(P)]
    known = list(at_start)
    chunks = []
    for c, own in enumerate(completed):
        rank = c % P
        held = set() if way == NAIVE else caches[rank]
        received = tuple(block for block in known if block not in held) if c else ()
        chunks.append(Chunk(rank, c // P, tuple(sorted(held)), received, tuple(own)))
        caches[rank] |= set(known) | (set(own) if way == CACHED_OWN else set())
        known += own
    return chunks


def even_walk(P: int, V: int, num_blocks: int, way: str) -> list[Chunk]:
    """The walk of Eqs. 7 and 8: every chunk completes N_p = num_blocks blocks; no embedding."""
    completed = [range(c * num_blocks, (c + 1) * num_blocks) for c in range(P * V)]
    return walk(P, V, completed, way)


def drawn_walk(way: str) -> list[Chunk]:
    """Fig. 3: P = 4, V = 2, each block spans two stages (its footnote 1), b_0 is sent like any block."""
    completed = [((c + 1) // 2,) if c % 2 else () for c in range(8)]
    return walk(4, 2, completed, way, at_start=(0,))


def sent(chunks: Sequence[Chunk]) -> int:
    """Blocks sent over all transitions, in units of d per token."""
    return sum(len(chunk.received) for chunk in chunks)


def peak(chunks: Sequence[Chunk]) -> int:
    """Most blocks sent in one transition."""
    return max(len(chunk.received) for chunk in chunks)


def equation_7(P: int, V: int, num_blocks: int | Fraction) -> Fraction:
    """Naive: C (C - 1) / 2 N_p."""
    C = P * V
    return Fraction(C * (C - 1), 2) * num_blocks


def equation_8(P: int, V: int, num_blocks: int | Fraction) -> Fraction:
    """Cached: (P (P - 1) / 2 + (V - 1) P^2) N_p."""
    return (Fraction(P * (P - 1), 2) + (V - 1) * P**2) * num_blocks


def own_kept(P: int, V: int, num_blocks: int | Fraction) -> Fraction:
    """Cached with a rank's own blocks: (P (P - 1) / 2 + (V - 1) P (P - 1)) N_p (not in the paper)."""
    return (Fraction(P * (P - 1), 2) + (V - 1) * P * (P - 1)) * num_blocks


def traffic_table(shapes: Sequence[tuple[int, int]], title: str, notes: Sequence[str] = ()) -> Table:
    """Closed forms in units of N_p d per token, with the peaks of the walk."""
    columns = (
        Column("P", "P"),
        Column("V", "V"),
        Column("naive", "naive, Eq. 7"),
        Column("cached", "cached, Eq. 8"),
        Column("saved", "saved"),
        Column("peaks", "peak per transition"),
        Column("ratio", "ratio of peaks"),
        Column("own", "own blocks kept"),
    )
    rows: list[Mapping[str, str]] = []
    for record in traffic_records(shapes):
        peaks = record["peak_naive"], record["peak_cached"]
        rows.append(
            {
                "P": str(record["P"]),
                "V": str(record["V"]),
                "naive": str(record["naive"]),
                "cached": str(record["cached"]),
                "saved": str(record["naive"] - record["cached"]),
                "peaks": f"{peaks[0]} to {peaks[1]}",
                "ratio": f"{peaks[0] / peaks[1]:.2f}" if peaks[1] else EMPTY,
                "own": str(record["cached_own_kept"]),
            }
        )
    return Table(title, columns, rows, notes)


def traffic_records(shapes: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    """One record per (P, V), in units of N_p d per token."""
    records = []
    for P, V in shapes:
        naive, cached = even_walk(P, V, 1, NAIVE), even_walk(P, V, 1, CACHED)
        records.append(
            {
                "P": P,
                "V": V,
                "chunks": P * V,
                "naive": int(equation_7(P, V, 1)),
                "cached": int(equation_8(P, V, 1)),
                "cached_own_kept": int(own_kept(P, V, 1)),
                "peak_naive": peak(naive),
                "peak_cached": peak(cached),
            }
        )
    return records


def walk_table(chunks: Sequence[Chunk], title: str, notes: Sequence[str] = ()) -> Table:
    """What each rank holds, receives and completes, chunk by chunk."""
    columns = (
        Column("stage", "virtual stage"),
        Column("rank", "rank"),
        Column("cached", "cached", numeric=False),
        Column("received", "received", numeric=False),
        Column("completed", "completes", numeric=False),
    )
    rows = [
        {
            "stage": str(chunk.virtual_stage),
            "rank": str(chunk.rank),
            "cached": _names(chunk.cached),
            "received": _names(chunk.received),
            "completed": _names(chunk.completed),
        }
        for chunk in chunks
    ]
    return Table(title, columns, rows, notes)


def _names(blocks: Sequence[int]) -> str:
    return ", ".join(f"b{block}" for block in blocks) or EMPTY


def shape_table(P: int, V: int, num_blocks: int) -> Table:
    """Blocks sent at one shape: the equations beside a walk chunk by chunk, which counts them."""
    columns = (
        Column("way", "each rank keeps", numeric=False),
        Column("equation", "closed form"),
        Column("walked", "walked"),
        Column("peak", "peak per transition"),
    )
    kept = {NAIVE: "nothing (Eq. 7)", CACHED: "what it was sent (Eq. 8)", CACHED_OWN: "its own blocks too"}
    forms = {NAIVE: equation_7, CACHED: equation_8, CACHED_OWN: own_kept}
    rows: list[Mapping[str, str]] = []
    for way in WAYS:
        chunks = even_walk(P, V, num_blocks, way)
        counts = {"equation": forms[way](P, V, num_blocks), "walked": sent(chunks), "peak": peak(chunks)}
        rows.append({"way": kept[way], **{key: str(count) for key, count in counts.items()}})
    title = f"Block representations sent, d elements per token each: P = {P}, V = {V}, N_p = {num_blocks}"
    return Table(title, columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the traffic of any shape; exit code 2 and one line for one that cannot be."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.pipeline_io",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shape = {"stages": (4, "P, ranks"), "virtual-stages": (2, "V, on each"), "blocks-per-chunk": (1, "N_p")}
    for key, (default, text) in shape.items():
        parser.add_argument(f"--{key}", type=int, default=default, help=f"{text}; default {default}")
    found = vars(parser.parse_args(arguments))
    for key, value in found.items():
        if value < 1:
            error = ConfigError(f"--{key.replace('_', '-')}", value, "a whole number of at least 1")
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(tables.to_text(shape_table(found["stages"], found["virtual_stages"], found["blocks_per_chunk"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
