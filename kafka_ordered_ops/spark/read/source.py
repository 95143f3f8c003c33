"""The Python data source of `read_windows`: each task reads its slice of the plans from Kafka.

Spark shows a data source's options in ``explain``, in its web pages and in its event log, so neither the plans nor the
settings are options. A class is created and registered for each read and holds them. Spark pickles it for the worker that
plans the read, and that worker assigns the slices to the tasks: a task gets the settings and its own slice, not the other
million ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.records.columns import (
    SOURCE_SCHEMA,
    STAGE_DDL,
    WINDOW_NUMBER,
    WITHOUT_WINDOW,
    judged,
    partition_of,
    to_spark,
)
from kafka_ordered_ops.ordered.records.slices import Slice
from kafka_ordered_ops.spark.read.decoded import Decoding

SOURCE_NAME: Final = "kafka_window"

#: Each batch that a task passes to Java costs about 0.3 ms, so batches larger than the reader's are worth their cache
#: misses.
BATCH_RECORDS: Final = 10_000

#: The columns of `to_spark`'s batches, in order.
SOURCE_DDL: Final = f"{STAGE_DDL}, window_id string, {WINDOW_NUMBER} int"


@dataclass(frozen=True, slots=True)
class WindowRead:
    """All arguments of a read. It holds the secrets of the settings: it is pickled, never shown."""

    settings: ClientSettings
    group_id: str
    isolation: Isolation
    slices: tuple[Slice, ...]
    stall_timeout_s: float = STALL_TIMEOUT_S
    #: Whether records have the columns of their window; a single window does not need them.
    tells_windows: bool = True
    #: How records are decoded; None leaves them as bytes.
    decoding: Decoding | None = None

    @property
    def schema(self) -> StructType | str:
        """The columns of the tasks' batches."""
        if self.decoding is not None:
            return self.decoding.schema_of(SOURCE_SCHEMA if self.tells_windows else WITHOUT_WINDOW)
        return SOURCE_DDL if self.tells_windows else STAGE_DDL


class SliceOfWindow(InputPartition):
    """The pieces of one task."""

    def __init__(self, pieces: Slice) -> None:
        super().__init__(None)
        self.pieces = pieces


class KafkaWindowReader(DataSourceReader):
    """Assign slices to tasks in the planning worker, and read a task's slice in the task."""

    def __init__(self, read: WindowRead) -> None:
        self._read = read

    def partitions(self) -> list[SliceOfWindow]:
        """Return the slices. Without slices, return an empty one: Spark's own one would have no content."""
        return [SliceOfWindow(pieces) for pieces in self._read.slices] or [SliceOfWindow(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one slice; Spark shows the reader's errors as text."""
        pieces = partition.pieces if isinstance(partition, SliceOfWindow) else ()
        decoding, rows = self._read.decoding, self._rows(pieces)
        return rows if decoding is None else decoding(rows)

    def _rows(self, pieces: Slice) -> Iterator[pa.RecordBatch]:
        if not pieces:
            return
        by_partition = {piece.tp: piece for piece in pieces}
        offsets = {piece.tp: piece.wanted for piece in pieces}
        read = self._read
        # This is the only interface to a reader. A task spends most of its time on Python objects for single records. A
        # reader that fills Arrow's buffers itself would avoid that, without a change here.
        with open_reader(
            read.settings,
            read.group_id,
            read.isolation,
            offsets,
            batch_records=BATCH_RECORDS,
            stall_timeout_s=read.stall_timeout_s,
        ) as reader:
            for batch in reader.batches():
                if batch.num_rows:
                    piece = by_partition[partition_of(batch)]
                    stage, owners = judged(batch, piece)
                    yield to_spark(stage, piece, owners if read.tells_windows else None)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark pickles the reader for the tasks, and passes each task its slice separately.
        return KafkaWindowReader, (replace(self._read, slices=()),)


class KafkaWindowSource(DataSource):
    """The data source itself; `source_of` makes the class that is registered."""

    source_name: ClassVar[str] = SOURCE_NAME

    def __init__(self, options: dict[str, str], read: WindowRead | None = None) -> None:
        super().__init__(options)
        self._read = read
        self._schema = SOURCE_DDL if read is None else read.schema

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return cls.source_name

    def schema(self) -> StructType | str:
        """Return the columns; those that are not decoded, as DDL."""
        return self._schema

    def reader(self, schema: StructType) -> KafkaWindowReader:
        """Return the reader; it takes over the read."""
        if self._read is None:
            raise RuntimeError("the reader of this data source has already been created")
            # Spark also pickles this object for the tasks, which only need its name.
        read, self._read = self._read, None
        return KafkaWindowReader(read)

    def __reduce__(self) -> tuple[Any, ...]:
        return KafkaWindowSource, (dict(self.options), self._read)


def source_of(read: WindowRead, name: str) -> type[KafkaWindowSource]:
    """Return the class to register for one read. It cannot be imported, so Spark pickles it with its contents."""

    class OneRead(KafkaWindowSource):
        source_name = name

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options, read)

    return OneRead
