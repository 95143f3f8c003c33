"""A plan cut into pieces of work of about equal weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.plan import LateSteps, PartitionPlan, WindowPlan
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Piece:
    """Some offsets of one partition, and what decides which of their records are late."""

    tp: TopicPartition
    wanted: OffsetSet
    late: LateSteps


#: What one task reads: at most one piece of each partition.
Slice = tuple[Piece, ...]


def slices_of(plan: WindowPlan, *, tasks: int, least_offsets: int) -> list[Slice]:
    """Cuts a plan into about `tasks` slices; none of fewer than `least_offsets` but for the last ones.

    A large partition becomes several slices of its own. Small ones share a slice, so that a topic of a
    thousand quiet partitions is no thousand tasks. An empty plan has no slices.
    """
    weight = max(least_offsets, -(-plan.offsets // tasks), 1)
    slices: list[Slice] = []
    shared: list[Piece] = []
    room = weight
    for part in plan:
        if part.taken.count > weight:
            slices.extend((piece,) for piece in _cut(part, -(-part.taken.count // weight)))
        elif part.taken:
            if part.taken.count > room:
                slices.append(tuple(shared))
                shared, room = [], weight
            shared.append(_piece(part, part.taken))
            room -= part.taken.count
    if shared:
        slices.append(tuple(shared))
    return slices


def sample_of(plan: WindowPlan, *, runs: int, run_offsets: int) -> list[Slice]:
    """Short runs of offsets at even steps over the whole plan: one slice, to be read before the plan.

    A run is longer than one offset because an offset may hold no visible record.
    """
    step = max(1, plan.offsets // runs)
    before, pieces = 0, []
    for part in plan:
        # Steps run on over the partitions: many small ones are sampled as thinly as one large one.
        ranks = range(-before % step, part.taken.count, step)
        places = _OffsetsByRank(part.taken)
        before += part.taken.count
        if ranks:
            found = OffsetSet.from_ranges(
                (start, start + run_offsets) for start in map(places.offset_at, ranks)
            )
            pieces.append(_piece(part, found & part.taken))
    return [tuple(pieces)] if pieces else []


class _OffsetsByRank:
    """Finds the n-th offset of a set."""

    def __init__(self, offsets: OffsetSet) -> None:
        self._bounds = offsets.bounds
        self._before = np.concatenate(([0], np.cumsum(self._bounds[:, 1] - self._bounds[:, 0])))

    def offset_at(self, rank: int) -> int:
        index = int(np.searchsorted(self._before, rank, side="right")) - 1
        return int(self._bounds[index, 0]) + rank - int(self._before[index])

    def between(self, first: int, end: int) -> OffsetSet:
        """The offsets of rank `first` up to, not including, `end`; at least one."""
        start, last = self.offset_at(first), self.offset_at(end - 1)
        # Copied range by range: intersecting would sort all ranges of the plan for every piece.
        starts, ends = self._bounds[:, 0], self._bounds[:, 1]
        low, high = np.searchsorted(ends, start, "right"), np.searchsorted(starts, last, "right")
        bounds = self._bounds[low:high].copy()
        bounds[0, 0], bounds[-1, 1] = start, last + 1
        return OffsetSet(bounds.ravel())


def _cut(part: PartitionPlan, pieces: int) -> Iterator[Piece]:
    places = _OffsetsByRank(part.taken)
    ranks = [part.taken.count * n // pieces for n in range(pieces + 1)]
    for first, end in pairwise(ranks):
        yield _piece(part, places.between(first, end))


def _piece(part: PartitionPlan, wanted: OffsetSet) -> Piece:
    return Piece(part.tp, wanted, part.late.from_offset(wanted.first))
