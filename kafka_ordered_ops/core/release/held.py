"""All held records: by partition in memory, and as sorted runs on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.release.lanes import EVERYTHING, Bound, Lane
from kafka_ordered_ops.core.release.sorting import Batch, Piece, in_order
from kafka_ordered_ops.core.release.spilled import KEY_COLUMN, LANE_COLUMN, Spill, SpilledRun
from kafka_ordered_ops.core.types import INT64_MAX

#: Runs on disk. Each has a batch in memory while it is merged; with more runs, some are merged into one.
SPILLED_RUNS_MAX: Final = 64
RUNS_MERGED: Final = 16
#: The size of a batch of a run on disk.
SPILL_BATCH_BYTES: Final = 2 * 1024**2
#: Records that are sorted at a time on their way to disk, about; every `STEP_EVERY`-th key is sampled to find the ends.
STEP_RECORDS: Final = 65_536
STEP_EVERY: Final = 64


class Held:
    """Records by lane, one lane per partition. Arguments named `ranks` have each lane's place in the order."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._runs: list[SpilledRun] = []
        #: The number of records in memory, and the size of their Arrow data.
        self.records_in_memory = self.nbytes_in_memory = 0

    def add_lane(self) -> None:
        """Add the next lane."""
        self._lanes.append(Lane(len(self._lanes)))

    def add(
        self, lane: int, keys: Int64Array, rows: pa.RecordBatch, offset_min: int, row_bytes: int
    ) -> None:
        """Hold records of a lane, by offset."""
        held = self._lanes[lane]
        before = held.nbytes
        held.add(keys, rows, offset_min, row_bytes)
        self.records_in_memory += keys.size
        self.nbytes_in_memory += held.nbytes - before

    @property
    def records(self) -> int:
        """The number of held records."""
        return self.records_in_memory + sum(run.records for run in self._runs)

    @property
    def nbytes_on_disk(self) -> int:
        """The size of the runs on disk."""
        return sum(run.nbytes for run in self._runs)

    def records_of(self, lane: int) -> int:
        """Return the number of records of a lane."""
        return self._lanes[lane].records + sum(run.count_of(lane) for run in self._runs)

    def offset_min_of(self, lane: int) -> int | None:
        """Return an offset at or below all records of a lane; None if it has none."""
        on_disk = [run.offsets_min[lane] for run in self._runs if run.count_of(lane)]
        in_memory = self._lanes[lane].offset_min
        return min([*on_disk, *([] if in_memory is None else [in_memory])], default=None)

    def keys_and_offsets(self, lane: int) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield the keys and offsets of a lane's records, piece by piece."""
        yield from self._lanes[lane].keys_and_offsets()
        for run in self._runs:
            yield from run.keys_and_offsets(lane)

    def below(self, bound: Bound, ranks: Int64Array) -> Iterator[list[Piece]]:
        """Take the records below a bound, step by step in order; each step's pieces are in the order of arrival."""
        while True:
            step, decider = _step(self._runs, bound, ranks)
            pieces = [*_take_to(self._runs, step, decider, ranks)]
            self._runs = [run for run in self._runs if run.records]
            in_memory = step if decider is None else _just_below(step)
            for lane in self._lanes:
                pieces += lane.take(in_memory, int(ranks[lane.number]))
            self._count()
            if pieces:
                yield pieces
            if decider is None:
                break
        for lane in self._lanes:
            lane.compact()
        self._count()

    def to_disk(self, spill: Spill, ranks: Int64Array) -> None:
        """Move the records in memory to a new run; merge runs if there are too many.

        Raises:
            SpillError: writing fails.
        """
        counts = np.array([lane.records for lane in self._lanes], dtype=np.int64)
        if not counts.any():
            return
        offsets_min = {
            lane.number: least for lane in self._lanes if (least := lane.offset_min) is not None
        }
        first_key = min(int(keys[0]) for lane in self._lanes for keys in lane.rising_keys())
        steps = (
            in_order(pieces, ranks, bytes_max=SPILL_BATCH_BYTES) for pieces in self._steps(ranks)
        )
        run = SpilledRun(
            spill.write(map(_for_disk, chain.from_iterable(steps))),
            first_key=first_key,
            counts=counts,
            offsets_min=offsets_min,
        )
        self._runs.append(run)
        if len(self._runs) > SPILLED_RUNS_MAX:
            # Merge neighbours, so that runs stay in the order of arrival; merging the smallest ones is fastest.
            size = [run.records for run in self._runs]
            firsts = range(len(size) - RUNS_MERGED + 1)
            first = min(firsts, key=lambda n: sum(size[n : n + RUNS_MERGED]))
            merged = self._runs[first : first + RUNS_MERGED]
            self._runs[first : first + RUNS_MERGED] = [_merged(spill, merged, ranks)]

    def put_front(self, batches: Sequence[Batch]) -> None:
        """Hold records again that were taken in order: in memory, and before all later records."""
        if not batches:
            return
        lanes, counts = np.unique(
            np.concatenate([batch.lanes for batch in batches]), return_counts=True
        )
        by_lane = np.zeros(len(self._lanes), dtype=np.int64)
        by_lane[lanes] = counts
        offsets_min = {
            lane: min(
                least for batch in batches if (least := batch.offset_min_of(lane)) is not None
            )
            for lane in lanes.tolist()
        }
        run = SpilledRun(
            _InMemory([_for_disk(batch._replace(columns=None)) for batch in batches]),
            first_key=int(batches[0].keys[0]),
            counts=by_lane,
            offsets_min=offsets_min,
        )
        self._runs.insert(0, run)

    def drop(self, lane: int) -> None:
        """Forget the records of a lane."""
        self._lanes[lane] = Lane(lane)
        self._count()
        for run in self._runs:
            run.drop(lane)
        self._runs = [run for run in self._runs if run.records]

    def close(self) -> None:
        """Free the disk."""
        runs, self._runs = self._runs, []
        for run in runs:
            run.remove()

    def _steps(self, ranks: Int64Array) -> Iterator[list[Piece]]:
        """Take the records in memory, step by step in order: sorting in small steps stays in the CPU caches."""
        sample = np.sort(
            np.concatenate(
                [keys[::STEP_EVERY] for lane in self._lanes for keys in lane.rising_keys()]
            )
        )
        ends = np.unique(sample[:: STEP_RECORDS // STEP_EVERY][1:]).tolist()
        for bound in [*(Bound(key, INT64_MAX) for key in ends), EVERYTHING]:
            pieces = [
                piece for lane in self._lanes for piece in lane.take(bound, int(ranks[lane.number]))
            ]
            self._count()
            if pieces:
                yield pieces

    def _count(self) -> None:
        self.records_in_memory = sum(lane.records for lane in self._lanes)
        self.nbytes_in_memory = sum(lane.nbytes for lane in self._lanes)


class _InMemory:
    """A run that is not on disk; see `SpilledBatches`."""

    nbytes = 0

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = [*batches]
        self.num_batches = len(batches)

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one batch."""
        return self._batches[number]

    def remove(self) -> None:
        """Free the memory."""
        self._batches.clear()


def _step(runs: Sequence[SpilledRun], bound: Bound, ranks: Int64Array) -> tuple[Bound, int | None]:
    """Return the place up to which all runs have loaded their records, and the first run that ends there.

    The run is None if the place is the bound.
    """
    step, decider = bound, None
    # Runs that begin after the step stay on disk.
    for number in sorted(range(len(runs)), key=lambda n: runs[n].first_key):
        run = runs[number]
        run.load(step)
        last = run.last_loaded(ranks)
        if last is not None and (
            last < step or (last == step and (decider is None or number < decider))
        ):
            step, decider = last, number
    return step, decider


def _take_to(
    runs: Sequence[SpilledRun], step: Bound, decider: int | None, ranks: Int64Array
) -> Iterator[Piece]:
    """Take the records of the runs up to a step.

    The deciding run may have more records of the same key and partition, which are not loaded yet. They arrived before
    the records of later runs.
    """
    for number, run in enumerate(runs):
        is_after = decider is not None and number > decider
        yield from run.take(_just_below(step) if is_after else step, ranks)


def _just_below(bound: Bound) -> Bound:
    return Bound(bound.key, bound.rank - 1)


def _merged(spill: Spill, runs: Sequence[SpilledRun], ranks: Int64Array) -> SpilledRun:
    """Write several runs as one."""

    def batches() -> Iterator[pa.RecordBatch]:
        left = list(runs)
        while left:
            step, decider = _step(left, EVERYTHING, ranks)
            pieces = [*_take_to(left, step, decider, ranks)]
            left = [run for run in left if run.records]
            yield from map(_for_disk, in_order(pieces, ranks, bytes_max=SPILL_BATCH_BYTES))

    lanes = max(run.counts.size for run in runs)
    counts = sum(
        (np.pad(run.counts, (0, lanes - run.counts.size)) for run in runs),
        np.zeros(lanes, np.int64),
    )
    offsets_min = {
        lane: min(run.offsets_min[lane] for run in runs if run.count_of(lane))
        for lane in np.flatnonzero(counts).tolist()
    }
    first_key = min(run.first_key for run in runs)
    return SpilledRun(
        spill.write(batches()), first_key=first_key, counts=counts, offsets_min=offsets_min
    )


def _for_disk(batch: Batch) -> pa.RecordBatch:
    rows = batch.rows()
    added: dict[str, Any] = {KEY_COLUMN: batch.keys, LANE_COLUMN: batch.lanes.astype(np.int32)}
    for name, values in added.items():
        rows = rows.append_column(name, pa.array(values))
    return rows
