"""Cut the offsets of a read into slices of about equal weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.ordered.records.pieces import Piece

_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2

#: The pieces that one task reads: at most one of each partition.
Slice = tuple[Piece, ...]


def slices_of(pieces: Sequence[Piece], *, tasks: int, least_offsets: int) -> list[Slice]:
    """Cut pieces into about `tasks` slices, each of at least `least_offsets`, except the last ones.

    A large partition becomes several separate slices. Small partitions share a slice, so that a topic of a
    thousand quiet partitions does not need a thousand tasks. Without pieces there are no slices.
    """
    offsets = sum(piece.wanted.count for piece in pieces)
    weight = max(least_offsets, -(-offsets // tasks), 1)
    slices: list[Slice] = []
    shared: list[Piece] = []
    room = weight
    for piece in pieces:
        count = piece.wanted.count
        if count > weight:
            slices.extend((part,) for part in _cut(piece, -(-count // weight)))
        else:
            if count > room:
                slices.append(tuple(shared))
                shared, room = [], weight
            shared.append(piece)
            room -= count
    if shared:
        slices.append(tuple(shared))
    return slices


def sample_of(pieces: Sequence[Piece], *, runs: int, run_offsets: int) -> list[Piece]:
    """Return about `runs` runs of neighbouring offsets, at even steps in each piece."""
    step = max(1, sum(piece.wanted.count for piece in pieces) // runs)
    samples = []
    for number, piece in enumerate(pieces):
        # Each piece starts at another point of its first step. Otherwise partitions of equal size, whose records have
        # the same times, would all be sampled at the same times. Multiples of the golden ratio keep a distance from
        # all earlier ones.
        first = int(number * _GOLDEN_RATIO % 1 * step)
        ranks = range(first, piece.wanted.count, step)
        places = _OffsetsByRank(piece.wanted)
        if ranks:
            sample = OffsetSet.from_ranges(
                (start, start + run_offsets) for start in map(places.offset_at, ranks)
            )
            samples.append(piece.narrowed(sample & piece.wanted))
    return samples


class _OffsetsByRank:
    """Finds the n-th offset of a set."""

    def __init__(self, offsets: OffsetSet) -> None:
        self._bounds = offsets.bounds
        self._before = np.concatenate(([0], np.cumsum(self._bounds[:, 1] - self._bounds[:, 0])))

    def offset_at(self, rank: int) -> int:
        index = int(np.searchsorted(self._before, rank, side="right")) - 1
        return int(self._bounds[index, 0]) + rank - int(self._before[index])

    def between(self, first: int, end: int) -> OffsetSet:
        """Return the offsets of the ranks from `first` to `end`, exclusive; at least one."""
        start, last = self.offset_at(first), self.offset_at(end - 1)
        # A slice of the ranges: an intersection would sort all ranges of the plan for every piece.
        starts, ends = self._bounds[:, 0], self._bounds[:, 1]
        low, high = np.searchsorted(ends, start, "right"), np.searchsorted(starts, last, "right")
        bounds = self._bounds[low:high].copy()
        bounds[0, 0], bounds[-1, 1] = start, last + 1
        return OffsetSet(bounds.ravel())


def _cut(piece: Piece, parts: int) -> Iterator[Piece]:
    places = _OffsetsByRank(piece.wanted)
    ranks = [piece.wanted.count * n // parts for n in range(parts + 1)]
    for first, end in pairwise(ranks):
        yield piece.narrowed(places.between(first, end))
