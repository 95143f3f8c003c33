"""The relay's log: its topics, and writing to it."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from typing import Final

from kafka_ordered_ops.core.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.new_record import NewRecord, Report
from kafka_ordered_ops.core.relay.log_records import Acknowledged, LogRecord, encode
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import LookupDoor, WriterDoor, open_internal_topics, open_writer
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.relay.tokens import SECRET_BYTES

#: Before the name of a topic: the log of its partitions, in as many.
PREFIX: Final = "__kafka_ordered_ops_relay."
#: The secret that signs tokens: the first record in it.
SECRET_TP: Final = TopicPartition("__kafka_ordered_ops_relay", 0)

#: Nothing is ever deleted but what the relay itself deletes.
_LOG_CONFIG: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
#: A deletion by age or size would make a new secret, and all tokens invalid.
_SECRET_CONFIG: Final[Mapping[str, str]] = {"cleanup.policy": "compact"}

#: Thousands of small records are written each second: together, they cost a tenth.
_BATCH_RECORDS: Final = 1_000
_LINGER_MS: Final = 1
_TOPIC_NAME_MAX: Final = 249
#: Ranges of offsets in one record: 160 KB at most.
_RANGES_MAX: Final = 10_000


def log_tp(tp: TopicPartition) -> TopicPartition:
    """Return the partition of the log that is about a partition."""
    return TopicPartition(PREFIX + tp.topic, tp.partition)


def data_tp(tp: TopicPartition) -> TopicPartition:
    """Return the partition that a partition of the log is about."""
    return TopicPartition(tp.topic.removeprefix(PREFIX), tp.partition)


def check_topics(topics: Collection[str]) -> None:
    """Raise `ConfigError` for topics that can have no log."""
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
    """Create the topics of the log, or bring them to as many partitions as the topics have; raises `BrokerError`."""
    names = {PREFIX + name: len(facts.partitions) for name, facts in topics.items()}
    found = lookup.existing([SECRET_TP.topic, *names])
    with open_internal_topics(settings, timeout_s=timeout_s) as internal:
        if SECRET_TP.topic not in found:
            internal.ensure(SECRET_TP.topic, 1, _SECRET_CONFIG)
        for name, partitions in names.items():
            if name not in found:
                internal.ensure(name, partitions, _LOG_CONFIG)
            elif len(found[name].partitions) < partitions:
                internal.grow(name, partitions)


def new_secret() -> NewRecord:
    """Return a record with a new secret. Its key is its own: compaction removes none."""
    return NewRecord(
        SECRET_TP.topic,
        secrets.token_bytes(16),
        secrets.token_bytes(SECRET_BYTES),
        partition=SECRET_TP.partition,
    )


def acknowledged(group: str, offsets: OffsetSet) -> Iterator[Acknowledged]:
    """Return the records that say that offsets are done, each of a size that a broker takes."""
    edges = offsets.edges
    for at in range(0, len(edges), 2 * _RANGES_MAX):
        yield Acknowledged(group, OffsetSet.from_edges(edges[at : at + 2 * _RANGES_MAX]))


class LogWriter:
    """Writes records to the log, as many at a time as there are; nothing here waits."""

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
        """Send what found no room, and make the reports that are due."""
        while self._unsent and self._writer.send(*self._unsent[0]):
            self._unsent.popleft()
        if self._writer.waiting:
            self._writer.poll(0)
