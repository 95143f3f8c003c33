"""List the groups of a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ordered_ops.core.errors import (
    ConfigError,
    LedgerCorruptError,
    LedgerError,
    RecordTooLargeError,
)
from kafka_ordered_ops.core.group.group_state import GroupState
from kafka_ordered_ops.core.group.ledger.messages import STATE, parse_key
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.group.summaries import WindowSummary
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.log_spans import log_spans
from kafka_ordered_ops.kafka.facts.skipping import Skipping
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.ports import LookupDoor, open_ledger, open_lookup, open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.windows.queries.group_offsets import GroupOffsets, read_offsets


@dataclass(frozen=True, slots=True)
class GroupLook:
    """A group of a ledger. If it cannot be read, only `error` is set."""

    group_id: str
    state: GroupState | None = None
    #: Sorted by cutoff, then by id, without unreadable windows.
    windows: Sequence[WindowSummary] = ()
    error: LedgerError | None = None
    #: Only if they were asked for.
    offsets: GroupOffsets | None = None


def list_groups(
    settings: ClientSettings,
    *,
    ledger_topic: str = LEDGER_TOPIC,
    with_offsets: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> list[GroupLook]:
    """Return the groups of a ledger, by name; an empty list if there is no ledger, which is not created.

    Args:
        settings: how to reach the cluster.
        ledger_topic: the topic that stores plans and progress.
        with_offsets: also read the ends of each group's topics, and its offsets.
        timeout_s: time limit for each request to the cluster; there is one for each group.

    Raises:
        BrokerError, ReadError: the cluster refuses a request, or cannot be reached.
        LedgerError: the topic is not a ledger.
    """
    with open_lookup(settings, timeout_s=timeout_s) as lookup:
        names = _names(settings, lookup, ledger_topic)
        with open_ledger(settings, lookup, topic=ledger_topic, timeout_s=timeout_s) as ledger:
            groups = []
            for name in names:
                try:
                    state, windows = ledger.read(name).state, ledger.summaries(name).windows
                except ConfigError as error:
                    # A name that this package refuses: the client would send another name to the brokers.
                    groups.append(GroupLook(name, error=LedgerCorruptError(error.message)))
                except LedgerError as error:
                    if error.retriable:
                        raise
                    # A damaged group must not hide the others.
                    groups.append(GroupLook(name, error=error))
                else:
                    if state is None:
                        continue
                    offsets = (
                        read_offsets(lookup, ledger, name, (), timeout_s=timeout_s)
                        if with_offsets
                        else None
                    )
                    groups.append(GroupLook(name, state, windows, offsets=offsets))
    return groups


def _names(settings: ClientSettings, lookup: LookupDoor, ledger_topic: str) -> Sequence[str]:
    facts = lookup.existing([ledger_topic]).get(ledger_topic)
    if facts is None:
        return []
    every = [TopicPartition(ledger_topic, number) for number in facts.partitions]
    spans = log_spans(lookup, every, Isolation.READ_COMMITTED)
    ranges = {tp: OffsetSet.of((span.start, span.end)) for tp, span in spans.items()}
    names = set[str]()
    # Nothing is committed: the name only identifies this client to the brokers.
    with open_reader(
        settings, ledger_topic, Isolation.READ_COMMITTED, ranges, columns=["key"]
    ) as reader:
        # Batches that are too large to read have no records of this package.
        skipping = Skipping(reader, ranges, kinds=(RecordTooLargeError,))
        for batch in skipping.through(reader.batches):
            names.update(
                name for key in batch["key"].unique().to_pylist() if (name := _group_of(key))
            )
    return sorted(names)


def _group_of(key: bytes | None) -> str | None:
    """Return the group of a ledger record that is part of a group's state; None for other records."""
    parsed = parse_key(key or b"")
    return None if parsed is None or parsed[1:3] != STATE else parsed[0]
