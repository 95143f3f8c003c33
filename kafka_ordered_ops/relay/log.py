"""The relay's log: create its topics, and write to it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import (
    ConfigError,
    RelayLogCorruptError,
    RelayLogVersionError,
)
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.new_record import NewRecord, Report
from kafka_ordered_ops.core.relay.log_records import (
    VERSION_MAX,
    Acknowledged,
    LogRecord,
    encode,
)
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import LookupDoor, WriterDoor, open_internal_topics, open_writer
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.relay.tokens import SECRET_BYTES

#: The prefix of a log's topic, before the name of the served topic; both have the same number of partitions.
PREFIX: Final = "__kafka_ordered_ops_relay."
#: The partition with the secret that signs tokens, as its first record.
SECRET_TP: Final = TopicPartition("__kafka_ordered_ops_relay", 0)
_SECRET_VERSION: Final = 1

#: Only the relay itself deletes records.
_LOG_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
#: Deletion by age or size would lead to a new secret, and invalidate all tokens.
_SECRET_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

#: Thousands of small records are written per second: in batches, they cost a tenth.
_BATCH_RECORDS: Final = 1_000
_LINGER_MS: Final = 1
_TOPIC_NAME_MAX: Final = 249
#: Offset ranges in one record: at most 160 KB.
_RANGES_MAX: Final = 10_000


def log_tp(tp: TopicPartition) -> TopicPartition:
    """Return the log's partition for a served partition."""
    return TopicPartition(PREFIX + tp.topic, tp.partition)


def data_tp(tp: TopicPartition) -> TopicPartition:
    """Return the served partition for a partition of the log."""
    return TopicPartition(tp.topic.removeprefix(PREFIX), tp.partition)


def check_topics(topics: Collection[str]) -> None:
    """Raise `ConfigError` for topics that cannot have a log."""
    for name in topics:
        if name.startswith(SECRET_TP.topic):
            raise ConfigError(f"topic {name} is one of the relay's own: serve another one")
        if len(PREFIX + name) > _TOPIC_NAME_MAX:
            raise ConfigError(
                f"topic {name} has a name of {len(name)} characters, and its log would be named {PREFIX}<topic>: a name "
                f"has at most {_TOPIC_NAME_MAX} characters"
            )


def prepare_topics(
    settings: ClientSettings, lookup: LookupDoor, topics: Mapping[str, TopicFacts], timeout_s: float
) -> None:
    """Create the topics of the log, or grow them to the number of partitions of the topics; raise `BrokerError`."""
    names = {PREFIX + name: len(facts.partitions) for name, facts in topics.items()}
    existing = lookup.existing([SECRET_TP.topic, *names])
    with open_internal_topics(settings, timeout_s=timeout_s) as internal:
        if SECRET_TP.topic not in existing:
            internal.ensure(SECRET_TP.topic, 1, _SECRET_CONFIG)
        for name, partitions in names.items():
            if name not in existing:
                internal.ensure(name, partitions, _LOG_CONFIG)
            elif len(existing[name].partitions) < partitions:
                internal.grow(name, partitions)


def new_secret() -> NewRecord:
    """Return a record with a new secret. Its key is unique, so compaction does not remove it."""
    return NewRecord(
        SECRET_TP.topic,
        secrets.token_bytes(16),
        secret_value(secrets.token_bytes(SECRET_BYTES)),
        partition=SECRET_TP.partition,
    )


def secret_value(secret: bytes) -> bytes:
    """Return the value of a record with a secret: a version, and the bytes."""
    return bytes([_SECRET_VERSION]) + secret


def secret_of(value: bytes) -> bytes:
    """Parse the value of `secret_value`.

    Raises:
        RelayLogCorruptError: another program wrote the record.
        RelayLogVersionError: a newer server wrote it.
    """
    version = value[0] if value else 0
    if _SECRET_VERSION < version <= VERSION_MAX:
        raise RelayLogVersionError(
            f"the relay's secret in {SECRET_TP} has version {version}; this server reads version {_SECRET_VERSION}: a newer "
            "server wrote it. Upgrade this server",
            version=version,
        )
    if version != _SECRET_VERSION or len(value) != 1 + SECRET_BYTES:
        raise RelayLogCorruptError(
            f"the first record of {SECRET_TP} is not the relay's secret: another program wrote it. Delete the topic, and start "
            "the servers again; leases that clients hold end then"
        )
    return value[1:]


def acknowledged(group: str, offsets: OffsetSet) -> Iterator[Acknowledged]:
    """Yield records that acknowledge offsets, each of a size that a broker accepts."""
    edges = offsets.edges
    for at in range(0, len(edges), 2 * _RANGES_MAX):
        yield Acknowledged(group, OffsetSet.from_edges(edges[at : at + 2 * _RANGES_MAX]))


class LogWriter:
    """Write records to the log in batches, without waiting."""

    def __init__(
        self,
        settings: ClientSettings,
        stack: ExitStack,
        *,
        doing: str = "writing to the relay's log",
        timeout_s: float,
        batch_records: int = _BATCH_RECORDS,
    ) -> None:
        self._writer: WriterDoor = stack.enter_context(
            open_writer(
                settings,
                doing=doing,
                timeout_s=timeout_s,
                batch_records=batch_records,
                linger_ms=_LINGER_MS,
            )
        )
        self._unsent: deque[tuple[NewRecord, Report]] = deque()

    @property
    def waiting(self) -> int:
        """How many records are not reported yet."""
        return len(self._unsent) + self._writer.waiting

    def append(self, tp: TopicPartition, record: LogRecord, report: Report) -> None:
        """Write a record about a partition; `report` is called in `turn`."""
        log = log_tp(tp)
        self.send(NewRecord(log.topic, None, encode(record), partition=log.partition), report)

    def send(self, record: NewRecord, report: Report) -> None:
        """Write any record."""
        if self._unsent or not self._writer.send(record, report):
            self._unsent.append((record, report))

    def turn(self) -> None:
        """Send records that found no room before, and call the reports that are due."""
        while self._unsent and self._writer.send(*self._unsent[0]):
            self._unsent.popleft()
        if self._writer.waiting:
            self._writer.poll(0)
