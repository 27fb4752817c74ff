"""Which sources each read of an AttnRes scheme sees: block boundaries, windows, and groups of reads.

Block sizes count sublayers: a transformer block is two of them (Section 3.2 of the paper). Reads are
counted like sublayers, from 0; read L is the output read. Source 0 is the embedding, source n block n.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.errors import ConfigError

WINDOW_OUTPUTS = ("all", "window")


def is_whole(value: object, low: int, high: int | None = None) -> bool:
    """Whether a setting is an int (not a bool) from low to high."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and low <= value and (high is None or value <= high)  # type: ignore[operator]


def ends_by_size(num_sublayers: int, block_size: int) -> tuple[int, ...]:
    """End (exclusive) of each block of block_size sublayers; the last block may be shorter."""
    if not is_whole(block_size, 1):
        raise ConfigError("arm.mixer.block_size", block_size, "a whole number of sublayers, at least 1")
    return (*range(block_size, num_sublayers, block_size), num_sublayers)


def ends_by_count(num_sublayers: int, num_blocks: int) -> tuple[int, ...]:
    """End of each of exactly num_blocks blocks, at round(k L / N): sizes differ by at most one."""
    check_num_blocks(num_sublayers, num_blocks)
    return tuple(round(k * num_sublayers / num_blocks) for k in range(1, num_blocks + 1))


def check_num_blocks(num_sublayers: int, num_blocks: int) -> None:
    """ConfigError unless the sublayers can be cut into so many blocks of at least one."""
    if not is_whole(num_blocks, 1, num_sublayers):
        allowed = f"a whole number from 1 to the number of sublayers, {num_sublayers}"
        raise ConfigError("arm.mixer.num_blocks", num_blocks, allowed)


def ends_by_list(num_sublayers: int, boundaries: Any) -> tuple[int, ...]:
    """Ends after the given numbers of sublayers; the last block ends at L, listed or not."""
    key = "arm.mixer.boundaries"
    listed = isinstance(boundaries, Sequence) and not isinstance(boundaries, str) and len(boundaries) > 0
    if not listed or not all(is_whole(end, 1) for end in boundaries):
        raise ConfigError(key, boundaries, "a list of whole numbers of sublayers, each at least 1")
    if any(b <= a for a, b in itertools.pairwise(boundaries)):
        raise ConfigError(key, boundaries, "in ascending order, each boundary once")
    if boundaries[-1] > num_sublayers:
        raise ConfigError(key, boundaries, f"none beyond the number of sublayers, {num_sublayers}")
    return (*(end for end in boundaries if end < num_sublayers), num_sublayers)


def ends_by_fractions(num_sublayers: int, fractions: Any) -> tuple[int, ...]:
    """Ends at round(f L) for the given fractions of the depth, and at L."""
    key = "arm.mixer.fractions"
    listed = isinstance(fractions, Sequence) and not isinstance(fractions, str) and len(fractions) > 0
    if not listed or not all(isinstance(f, float) and 0 < f < 1 for f in fractions):
        raise ConfigError(key, fractions, "a list of numbers above 0 and below 1")
    ends = [0, *(round(f * num_sublayers) for f in fractions), num_sublayers]
    if any(b <= a for a, b in itertools.pairwise(ends)):
        allowed = f"in ascending order and at least one of {num_sublayers} sublayers apart"
        raise ConfigError(key, fractions, allowed)
    return tuple(ends[1:])


def ends_by_weight(num_blocks: int, weights: Sequence[float]) -> tuple[int, ...]:
    """End of each of exactly num_blocks blocks, where the running weight comes nearest to k / N of the whole.

    weights: one per sublayer. Every block has at least one sublayer; of two equally near ends the first.
    """
    num_sublayers = len(weights)
    check_num_blocks(num_sublayers, num_blocks)
    running = [0.0, *itertools.accumulate(weights)]
    ends = [0]
    for k in range(1, num_blocks):
        target = k * running[-1] / num_blocks
        candidates = range(ends[-1] + 1, num_sublayers - (num_blocks - k) + 1)
        ends.append(min(candidates, key=lambda end: abs(running[end] - target)))
    return (*ends[1:], num_sublayers)


def source_plan(
    num_sublayers: int,
    block_size: int | None,
    num_blocks: int | None,
    window: int | None,
    window_output: str,
) -> SourcePlan:
    """The plan of the options of `AttnRes`; ConfigError names the one that cannot be."""
    if block_size is not None and num_blocks is not None:
        raise ConfigError("arm.mixer.num_blocks", num_blocks, "null where block_size is set")
    if num_blocks is not None:
        ends = ends_by_count(num_sublayers, num_blocks)
    else:
        ends = ends_by_size(num_sublayers, 1 if block_size is None else block_size)
    if window is not None and not is_whole(window, 1):
        raise ConfigError("arm.mixer.window", window, "a whole number of sources, at least 1, or null")
    if window is not None and len(ends) != num_sublayers:
        raise ConfigError("arm.mixer.window", window, "null unless block_size is 1 (Full)")
    if window_output not in WINDOW_OUTPUTS:
        raise ConfigError("arm.mixer.window_output", window_output, "one of " + ", ".join(WINDOW_OUTPUTS))
    return SourcePlan(ends, window, window_output == "window")


@dataclass(frozen=True)
class SourcePlan:
    """Source sets of all reads. ends: of the blocks; window: sources seen beside the embedding, or None.

    window_output: whether the output read is windowed too.
    """

    ends: tuple[int, ...]
    window: int | None = None
    window_output: bool = False

    @property
    def num_sublayers(self) -> int:
        return self.ends[-1]

    def completed(self, l: int) -> int:
        """Number of complete sources before read l, the embedding included."""
        return 1 + sum(end <= l for end in self.ends)

    def outputs_in_partial(self, l: int) -> int:
        """Number of sublayer outputs in the partial sum that read l sees, 0 where it sees none."""
        done = self.completed(l)
        return l - (self.ends[done - 2] if done > 1 else 0)

    def visible(self, l: int) -> list[int]:
        """The complete sources that read l sees, in order."""
        done = self.completed(l)
        if self.window is None or (l == self.num_sublayers and not self.window_output):
            return list(range(done))
        return [0, *range(max(1, done - self.window), done)]

    def columns(self, l: int) -> list[int]:
        """Columns of the depth-weight picture; the partial sum of block n shares column n (Fig. 8)."""
        partial = [self.completed(l)] if self.outputs_in_partial(l) else []
        return self.visible(l) + partial

    def labels(self, l: int) -> list[str]:
        """b0, b1, ..., and partial(i) with i outputs in it."""
        inside = self.outputs_in_partial(l)
        return [f"b{i}" for i in self.visible(l)] + ([f"partial({inside})"] if inside else [])

    def readers(self, source: int) -> list[int]:
        """Reads that see a complete source."""
        first = 0 if source == 0 else self.ends[source - 1]
        return [l for l in range(first, self.num_sublayers + 1) if source in self.visible(l)]

    def groups(self, at_least: int) -> tuple[range, ...]:
        """Consecutive reads that share one pass over the history, covering 0..L.

        A group starts where a block starts, since its history is complete there, and takes whole blocks
        until it has at_least reads; the output read joins the last group.
        """
        groups: list[range] = []
        start = 0
        for end in self.ends:
            if end - start >= at_least or end == self.num_sublayers:
                groups.append(range(start, end))
                start = end
        last = groups.pop()
        return (*groups, range(last.start, last.stop + 1))

    def levels(self, sizes: Sequence[int]) -> tuple[tuple[range, ...], ...]:
        """For each read its group at every level, outermost first; a group lies in one of the level above.

        sizes: reads per group at least, from the outer to the inner level. A level in which all groups of
        more than one read are also groups of the level above is left out.
        """
        levels: list[tuple[range, ...]] = []
        starts: set[int] = set()
        for size in sizes:
            starts |= {group.start for group in self.groups(size)}
            edges = [*sorted(starts), self.num_sublayers + 1]
            groups = tuple(range(a, b) for a, b in itertools.pairwise(edges))
            by_read = tuple(group for group in groups for _ in group)
            if any(len(group) > 1 and (not levels or levels[-1][group.start] != group) for group in groups):
                levels.append(by_read)
        return tuple(levels)

    def pieces(
        self, source: int, levels: Sequence[Sequence[range]], num_reads: int
    ) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The reads that a source is scored against when it is complete, and how the scores are cut.

        levels: as from `levels`. A piece, (first read, number of reads), is what one mix uses: a group that
        is still to come, of the outermost level that has one for the read, or a single read.
        """
        first = 0 if source == 0 else self.ends[source - 1]
        reads = tuple(l for l in self.readers(source) if l < num_reads)
        sizes: dict[int, int] = {}
        for l in reads:
            start = next((level[l].start for level in levels if level[l].start >= first), l)
            sizes[start] = sizes.get(start, 0) + 1
        return reads, tuple(sizes.items())
