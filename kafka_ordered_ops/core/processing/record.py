"""One record, as a user's function gets it, and what came of it."""

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
    key: bytes | None
    #: None: a tombstone.
    value: bytes | None
    headers: Headers = ()
    #: 1 for the first try.
    attempt: int = 1

    @property
    def tp(self) -> TopicPartition:
        """The partition that it is in."""
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


class Result(NamedTuple):
    """What came of one record."""

    record: Record
    #: What the function returned.
    value: Any = None
    #: Of the last attempt; None: it succeeded.
    error: BaseException | None = None


def content_bytes(records: Iterable[Record]) -> int:
    """Return the bytes of keys and values."""
    return sum(len(one.value or b"") + len(one.key or b"") for one in records)


def records_of(tp: TopicPartition, rows: pa.RecordBatch) -> Iterator[Record]:
    """Return the records of one partition from a batch of `RECORD_SCHEMA`."""
    # A worker process knows records, and has no use for Arrow.
    import pyarrow as pa

    offsets: list[int] = cast(Any, rows.column("offset")).to_numpy().tolist()
    times: list[int] = cast(Any, rows.column("timestamp")).view(pa.int64()).to_numpy().tolist()
    keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
    headers: Any = rows.column("headers")
    found: Iterable[Headers] = repeat(())
    if headers.null_count < len(headers):
        found = map(_headers_of, headers.to_pylist())
    fields = zip(
        repeat(tp.topic), repeat(tp.partition), offsets, times, keys, values, found, _FIRST
    )
    # Half of what `Record` itself takes, which is much where the function does little.
    return map(partial(tuple.__new__, cast(Any, Record)), fields)


def _headers_of(found: list[dict[str, Any]] | None) -> Headers:
    return tuple((one["key"], one["value"]) for one in found or ())
