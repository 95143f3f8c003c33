"""The package's ordered read: a topic up to the end of its log, in one order."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from benchmarks.order_breaks import OrderBreaks
from benchmarks.usage import peak_memory_bytes
from benchmarks.values import Outcome, Place, Work
from kafka_ordered_ops import OrderedReader
from kafka_ordered_ops.ordered.options import Ordering, ReadLimits


class Way(StrEnum):
    """How records are put in order."""

    #: By timestamp, whatever the timestamps are: all are read before the first is returned.
    EXACT = "exact"
    #: By timestamp; records wait for as long as the name says, and those that come later are marked as late.
    STREAMING = "streaming 0"
    STREAMING_1S = "streaming 1 s"
    STREAMING_1H = "streaming 1 h"
    #: By timestamp, but never before an earlier record of the same partition.
    PARTITION = "partition"


_MAX_OUT_OF_ORDERNESS: Final[Mapping[Way, timedelta]] = {
    Way.STREAMING: timedelta(0),
    Way.STREAMING_1S: timedelta(seconds=1),
    Way.STREAMING_1H: timedelta(hours=1),
}


@dataclass(frozen=True)
class OrderedRead:
    """Reads a topic from its earliest record to its end. Records in time are checked for their order."""

    topic: str
    way: Way

    def start(self, place: Place) -> Work:
        """Needs nothing: connecting is part of each run, as it is for all readers."""

        def run(_: int) -> Outcome:
            breaks, late_records = OrderBreaks(), 0
            started = time.perf_counter()
            with self._reader(place) as batches:
                for batch in batches:
                    in_time = _in_time(batch)
                    late_records += batch.num_rows - in_time.num_rows
                    breaks.look(in_time)
            return Outcome(
                seconds=time.perf_counter() - started,
                records=breaks.records + late_records,
                memory_bytes=peak_memory_bytes(),
                order_breaks=breaks.count,
                late_records=late_records,
            )

        return Work(run)

    def _reader(self, place: Place) -> OrderedReader:
        return OrderedReader(
            place.bootstrap,
            self.topic,
            order=Ordering(
                "partition" if self.way is Way.PARTITION else "timestamp",
                max_out_of_orderness=_MAX_OUT_OF_ORDERNESS.get(self.way),
            ),
            limits=ReadLimits(temporary_folder=place.folder),
        )


def _in_time(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records that are not late."""
    late: Any = batch.column("late")
    if not late.true_count:
        return batch
    return batch.filter(pa.array(~late.to_numpy(zero_copy_only=False)))
