"""One record to be written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, KafkaOrderedOpsError
from kafka_ordered_ops.core.names import is_topic_name, is_whole
from kafka_ordered_ops.core.processing.record import Headers
from kafka_ordered_ops.core.types import INT64_MAX

_PARTITION_MAX: Final = 2**31 - 1


#: The attribute of an error that has the record that was refused.
REFUSED_RECORD: Final = "refused_record"


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be written to Kafka.

    Args:
        topic: the name of an existing topic.
        key: bytes, or None.
        value: bytes, or None for a tombstone.
        headers: pairs of a name and a value, which is bytes or None.
        timestamp_ms: milliseconds since the epoch; None: now.
        partition: None: chosen by the key.

    Raises:
        ConfigError: one of them is something else.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        # Here and not by the client, which would refuse the whole transaction.
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
        """The size of its contents."""
        size = len(self.key or b"") + len(self.value or b"")
        if self.headers:
            size += sum(len(name) + len(value or b"") for name, value in self.headers)
        return size

    def __str__(self) -> str:
        where = self.topic if self.partition is None else f"{self.topic}[{self.partition}]"
        key = "no key" if self.key is None else f"key {self.key[:40]!r}"
        return f"{where}, {key}, {self.content_bytes} bytes"


#: Gets what kept a record from being stored, or None if it is stored.
Report = Callable[[KafkaOrderedOpsError | None], None]
#: What a function may return for a record, once it is checked.
Produced: TypeAlias = NewRecord | tuple[NewRecord, ...] | None


def checked_output(value: object) -> Produced:
    """Return what a function returned for a record, a list as a tuple; raise `TypeError` if it cannot be written."""
    if value is None or isinstance(value, NewRecord):
        return value
    if isinstance(value, list | tuple) and all(isinstance(one, NewRecord) for one in value):
        return tuple(value)
    raise TypeError(
        f"the function returned {shown(value)}: with produce=True, return a NewRecord, a list of them, or None"
    )


def as_records(value: Produced) -> tuple[NewRecord, ...]:
    """Return the records in a checked value."""
    if value is None:
        return ()
    return (value,) if isinstance(value, NewRecord) else value


def _are_headers(headers: object) -> bool:
    return isinstance(headers, list | tuple) and all(
        isinstance(one, list | tuple)
        and len(one) == 2
        and is_whole(one[0])
        and (one[1] is None or isinstance(one[1], bytes))
        for one in headers
    )


def _check_number(value: object, what: str, greatest: int) -> None:
    if value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= greatest:
        raise ConfigError(f"{what} is {shown(value)}: give a whole number, not negative, or None")
