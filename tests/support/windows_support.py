"""What the tests of windows share: their time, their questions, and what happens to their topics."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import Window
from kafka_ordered_ops.core.window.bounds import Bound
from tests.support.logs import Records

BASE_MS = 1_700_000_000_000
TIMEOUT_S = 30.0


def at(seconds: float) -> datetime:
    """A moment of the tests' time."""
    return datetime.fromtimestamp(BASE_MS / 1000, UTC) + timedelta(seconds=seconds)


def before(topic: str, seconds: float, start: Bound | None = None) -> Window:
    """Everything of a topic stamped before a moment."""
    return Window([topic], at(seconds), starting_offsets=start)


def no_age() -> timedelta:
    """An age of nothing, once all that was written is older: ages are whole milliseconds, and some windows take less."""
    time.sleep(0.002)
    return timedelta(0)


def offsets_of(records: Records) -> set[int]:
    """The offsets of records of one partition."""
    return {offset for _, _, offset in records}


def delete_before(bootstrap: str, topic: str, offset: int, partition: int = 0) -> None:
    """Moves the log start, as retention does."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [done] = admin.delete_records([TopicPartition(topic, partition, offset)]).values()
    done.result(TIMEOUT_S)


def wait_until_gone(bootstrap: str, topic: str) -> None:
    """Until the broker has forgotten a deleted topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + TIMEOUT_S
    while topic in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < deadline
        time.sleep(0.1)
