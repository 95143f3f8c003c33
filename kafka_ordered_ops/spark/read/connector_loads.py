"""The loads of the Kafka connector for several pieces, and the table that selects wanted records afterwards.

The connector reads one range of each partition. Partitions with large holes are therefore read in several segments, and
each load has one segment of each such partition. Small holes are read, and their records dropped.

A table of *runs* decides which records are dropped and which share the others belong to. A run is a range of offsets
of one share. The table is joined by equality, so a million runs cost a record no more than ten. Offsets are divided
into bins of equal width, each run is in every bin that it overlaps, and a record is compared with the runs of its
bin. The width w is the number of offsets read, divided by the runs, rounded up to a power of two. There are therefore
at most three rows for a run, however the runs are spread. A bin with r runs costs at most w * r comparisons: over all
bins that is a small multiple of the offsets read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.ordered.records.pieces import Piece, Share

#: Holes of at least this many offsets are skipped; reading through a smaller one costs less than another load.
HOLE_OFFSETS_MIN: Final = 100_000

#: The connector queries the cluster about every load again for each action.
LOADS_MAX: Final = 8

#: The range to read of each partition.
Load = Mapping[TopicPartition, tuple[int, int]]


def loads_of(pieces: Sequence[Piece], *, hole_offsets_min: int, loads_max: int) -> list[Load]:
    """Return the fewest loads that skip the large holes, at most `loads_max`."""
    loads: list[dict[TopicPartition, tuple[int, int]]] = []
    for piece in pieces:
        for number, segment in enumerate(_segments(piece.wanted, hole_offsets_min, loads_max)):
            if number == len(loads):
                loads.append({})
            loads[number][piece.tp] = segment
    return list(loads)


def _segments(offsets: OffsetSet, hole_offsets_min: int, most: int) -> list[tuple[int, int]]:
    bounds = offsets.bounds
    holes = bounds[1:, 0] - bounds[:-1, 1]
    large = np.flatnonzero(holes >= hole_offsets_min)
    # The largest holes, in the order of their offsets.
    large = np.sort(large[np.argsort(-holes[large], kind="stable")[: most - 1]])
    edges = [0, *(large + 1).tolist(), len(bounds)]
    return [(int(bounds[a, 0]), int(bounds[b - 1, 1])) for a, b in pairwise(edges)]


@dataclass(frozen=True, eq=False)
class Runs:
    """Tables that determine, for every record of a load, whether it is wanted, and its share."""

    #: Indexed by the numbers in `rows`.
    shares: tuple[Share, ...]
    #: Bins have a width of two to this power.
    shift: int
    #: ``topic``, ``partition``, ``origin``, ``first_bin``: the offset ``origin`` is in ``first_bin``.
    partitions: pa.Table
    #: ``bin``, ``start``, ``end``, ``share``: no offset is in two ranges.
    rows: pa.Table

    @classmethod
    def of(cls, pieces: Sequence[Piece], read_offsets: int) -> Runs:
        """Return the tables for several pieces, of which `read_offsets` are read, holes included."""
        shares = [share for piece in pieces for share in piece.shares]
        first_share = np.cumsum([0, *(len(piece.shares) for piece in pieces)])
        runs = [_runs_of(piece) for piece in pieces]
        starts, ends, owners = (np.concatenate(column) for column in zip(*runs, strict=True))
        counts = [len(run_starts) for run_starts, _, _ in runs]
        owners = owners + np.repeat(first_share[:-1], counts)

        shift = max(0, -(-read_offsets // len(starts)) - 1).bit_length()
        origins = np.array([piece.wanted.first for piece in pieces], dtype=np.int64)
        spans = np.array([piece.wanted.end for piece in pieces], dtype=np.int64) - origins
        first_bins = np.concatenate(([0], np.cumsum((spans >> shift) + 1)))[:-1]
        origin, base = np.repeat(origins, counts), np.repeat(first_bins, counts)
        first, last = (starts - origin) >> shift, (ends - 1 - origin) >> shift
        reach = last - first + 1
        # 0, 1, 2, ... for each run again.
        steps = np.arange(reach.sum()) - np.repeat(np.cumsum(reach) - reach, reach)
        bins = np.repeat(base + first, reach) + steps
        rows = {
            "bin": pa.array(bins, pa.int64()),
            "start": pa.array(np.repeat(starts, reach), pa.int64()),
            "end": pa.array(np.repeat(ends, reach), pa.int64()),
            "share": pa.array(np.repeat(owners, reach), pa.int32()),
        }
        partitions = {
            "topic": pa.array([piece.tp.topic for piece in pieces], pa.string()),
            "partition": pa.array([piece.tp.partition for piece in pieces], pa.int32()),
            "origin": pa.array(origins, pa.int64()),
            "first_bin": pa.array(first_bins, pa.int64()),
        }
        return cls(tuple(shares), shift, pa.table(partitions), pa.table(rows))

    @property
    def windows(self) -> pa.Table:
        """``share``, ``window``, ``window_id``, and ``late_from``: the offset below which no record is late."""
        lates = [
            min((offset for _, offset in share.late.pieces), default=None) for share in self.shares
        ]
        return pa.table(
            {
                "share": pa.array(range(len(self.shares)), pa.int32()),
                "window": pa.array([share.window for share in self.shares], pa.int32()),
                "window_id": pa.array([share.window_id for share in self.shares], pa.string()),
                "late_from": pa.array(lates, pa.int64()),
            }
        )

    @property
    def late_steps(self) -> pa.Table:
        """The late records as ``share``, ``since_ms``, ``before_ms``, ``from_offset``, with disjoint times in a share."""
        steps = [
            (number, times.since_ms, times.before_ms, offset)
            for number, share in enumerate(self.shares)
            for times, offset in share.late.pieces
        ]
        names = ("share", "since_ms", "before_ms", "from_offset")
        types = (pa.int32(), pa.int64(), pa.int64(), pa.int64())
        columns = zip(*steps, strict=True) if steps else ((), (), (), ())
        return pa.table(
            {
                name: pa.array(column, kind)
                for name, column, kind in zip(names, columns, types, strict=True)
            }
        )


def _runs_of(piece: Piece) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the starts, ends and shares of the longest ranges of a single share each."""
    offsets = piece.wanted
    changes = piece.starts[(piece.starts > offsets.first) & (piece.starts < offsets.end)]
    points = np.sort(np.concatenate((offsets.boundaries, changes)), kind="stable")
    # A change at a boundary makes an empty range.
    inside = offsets.mask(points[:-1]) & (points[1:] > points[:-1])
    starts, ends = points[:-1][inside], points[1:][inside]
    return starts, ends, piece.owners_of(starts)


def offsets_of(loads: Sequence[Load]) -> int:
    """Return how many offsets are read, holes included."""
    return sum(end - start for load in loads for start, end in load.values())


def needs_runs(pieces: Sequence[Piece], loads: Sequence[Load]) -> bool:
    """Return whether records must be selected: not if one window owns all records that are read, and none is late."""
    read = offsets_of(loads)
    needed = sum(piece.wanted.count for piece in pieces)
    shares = [share for piece in pieces for share in piece.shares]
    return (
        read != needed
        or len({share.window for share in shares}) > 1
        or any(share.late for share in shares)
    )
