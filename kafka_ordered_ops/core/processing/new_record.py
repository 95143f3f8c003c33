"""One record to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.cluster.names import is_topic_name, is_whole
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.processing.record import Headers, RecordMetadata
from kafka_ordered_ops.core.types import INT64_MAX

_PARTITION_MAX: Final = 2**31 - 1


#: The attribute of an error with the refused record.
REFUSED_RECORD: Final = "refused_record"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to write to Kafka.

    Args:
        topic: the name of an existing topic.
        key: bytes, or None.
        value: bytes, or None for a tombstone.
        headers: pairs of a name and a value, which is bytes or None.
        timestamp_ms: milliseconds since the epoch; None means now.
        partition: the number of the partition; None means that the key chooses it.

    Raises:
        ConfigError: an invalid value.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        # Checked here: the client would refuse the whole transaction.
        topic: object = self.topic
        if not is_topic_name(topic):
            raise ConfigError(f"topic is {shown(topic)}: give the name of a topic")
        for what, content in (("key", self.key), ("value", self.value)):
            if content is not None and not isinstance(content, bytes):
                raise ConfigError(f"{what} is {shown(content)}: give bytes, or None")
        if self.headers and not _are_headers(self.headers):
            raise ConfigError(
                f"headers is {shown(self.headers)}: give pairs of a name, which is UTF-8 text without a NUL, and bytes, or "
                "None for a value"
            )
        _check_number(self.timestamp_ms, "timestamp_ms", INT64_MAX)
        _check_number(self.partition, "partition", _PARTITION_MAX)

    @property
    def content_bytes(self) -> int:
        """The size of key, value and headers."""
        size = len(self.key or b"") + len(self.value or b"")
        if self.headers:
            size += sum(len(name) + len(value or b"") for name, value in self.headers)
        return size

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}[{self.partition}]"
        key = "no key" if self.key is None else f"key {self.key[:40]!r}"
        return f"{where}, {key}, {self.content_bytes} bytes"


#: Called with the error that kept a record from being stored, or None if it is stored.
Report = Callable[[KafkaOrderedOpsError | None], None]
#: Called with the place where a record is stored, before its report.
OnStored = Callable[[RecordMetadata], None]
#: The checked result of a function for a record.
Output: TypeAlias = NewRecord | tuple[NewRecord, ...] | None


def checked_output(value: object) -> Output:
    """Return the checked result of a function for a record; raise `TypeError` if it cannot be written."""
    if value is None or isinstance(value, NewRecord):
        return value
    if isinstance(value, list | tuple) and all(isinstance(record, NewRecord) for record in value):
        return tuple(value)
    raise TypeError(
        f"the function returned {shown(value)}: to produce, return a NewRecord, a list of them, or None"
    )


def as_records(value: Output) -> tuple[NewRecord, ...]:
    """Return the records in a checked value."""
    if value is None:
        return ()
    return (value,) if isinstance(value, NewRecord) else value


def _are_headers(headers: object) -> bool:
    return isinstance(headers, list | tuple) and all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and is_whole(pair[0])
        and (pair[1] is None or isinstance(pair[1], bytes))
        for pair in headers
    )


def _check_number(value: object, what: str, greatest: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= greatest:
        raise ConfigError(f"{what} is {shown(value)}: give a whole number, not negative, or None")
