"""One record, as a user's function gets it, and its result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from kafka_ordered_ops.core.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

#: The number of each record's attempt.
_FIRST = repeat(1)

#: Names may repeat; a value may be null.
Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record of Kafka."""

    topic: str
    partition: int
    offset: int
    #: Milliseconds since the epoch.
    timestamp_ms: int
    #: Bytes or None; decoded for the function, if the window or the `Processor` says how keys are encoded.
    key: Any
    #: The same; None for a tombstone. A struct is a dict.
    value: Any
    headers: Headers = ()
    #: 1 for the first attempt.
    attempt: int = 1

    @property
    def tp(self) -> TopicPartition:
        """The partition of the record."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class RecordMetadata(NamedTuple):
    """Where a record is stored."""

    topic: str
    partition: int
    offset: int


class Result(NamedTuple):
    """The result of one record."""

    record: Record
    #: What the function returned.
    value: Any = None
    #: The error of the last attempt; None if it succeeded.
    error: BaseException | None = None
    #: Where the records that the function produced are stored, in their order.
    produced: tuple[RecordMetadata, ...] = ()


def content_bytes(records: Iterable[Record]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(record.value or b"") + len(record.key or b"") for record in records)


def records_of(tp: TopicPartition, rows: pa.RecordBatch) -> Iterator[Record]:
    """Return the records of one partition from a batch of `RECORD_SCHEMA`."""
    # Worker processes use this module, and do not need Arrow.
    import pyarrow as pa

    offsets: list[int] = cast(Any, rows.column("offset")).to_numpy().tolist()
    times: list[int] = cast(Any, rows.column("timestamp")).view(pa.int64()).to_numpy().tolist()
    keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
    headers: Any = rows.column("headers")
    header_tuples: Iterable[Headers] = repeat(())
    if headers.null_count < len(headers):
        header_tuples = map(_headers_of, headers.to_pylist())
    fields = zip(
        repeat(tp.topic), repeat(tp.partition), offsets, times, keys, values, header_tuples, _FIRST
    )
    # Takes half the time of calling `Record`, which matters for functions that do little.
    return map(partial(tuple.__new__, cast(Any, Record)), fields)


def _headers_of(pairs: list[dict[str, Any]] | None) -> Headers:
    return tuple((pair["key"], pair["value"]) for pair in pairs or ())
