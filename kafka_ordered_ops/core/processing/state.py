"""The state of a processing run, for monitoring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Counts:
    """The progress of processing, in records."""

    succeeded: int = 0
    #: Failed in their last attempt: skipped, or in the dead-letter topic.
    failed: int = 0
    #: Failed attempts that were followed by another one.
    retried: int = 0
    #: Being processed now.
    in_flight: int = 0
    #: Read and not done, including records in flight.
    held: int = 0


@dataclass(frozen=True, slots=True)
class KeyState:
    """The records of one key in one partition that were read and are not done."""

    topic: str
    partition: int
    key: bytes | None
    #: All of them.
    held: int
    #: Taken by workers.
    in_flight: int
    #: Failed and waiting for their next attempt.
    waiting_for_retry: int


@dataclass(frozen=True, slots=True)
class ProcessorState:
    """The state of one running iterator of a `Processor`."""

    is_paused: bool
    #: Records that were read and are not done, including records in flight and records waiting for a retry.
    held: int
    in_flight: int
    waiting_for_retry: int
    #: Keys with records in flight first, then keys waiting for a retry; each group by topic, partition and key.
    keys: tuple[KeyState, ...]
    #: The error of the last commit of progress; None if it is stored, or if there was none.
    commit_error: BaseException | None


def key_states(
    queued: Iterable[Record], retrying: Iterable[Record], in_flight: Iterable[Record]
) -> tuple[KeyState, ...]:
    """Return the states of keys from the records that are queued, wait for a retry, and are in flight."""
    working, waiting = Counter(map(_key, in_flight)), Counter(map(_key, retrying))
    held = Counter(map(_key, queued)) + working + waiting
    states = [
        KeyState(tp.topic, tp.partition, key, count, working[tp, key], waiting[tp, key])
        for (tp, key), count in held.items()
    ]
    return tuple(sorted(states, key=_rank))


def _key(record: Record) -> tuple[TopicPartition, bytes | None]:
    return record.tp, record.key


def _rank(state: KeyState) -> tuple[int, int, str, int, bytes]:
    return (
        -state.in_flight,
        -state.waiting_for_retry,
        state.topic,
        state.partition,
        state.key or b"",
    )
