"""The model's doors, with the names and arguments of the doors in `kafka.ports`; it has no sessions and no batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka_ordered_ops.core.group.ledger_rules import check_ledger_name
from kafka_ordered_ops.testing.internal_topics import MemoryInternalTopics, MemoryOutsideCommits
from kafka_ordered_ops.testing.ledger import (
    MemoryLedger,
    read_committed_offsets,
    set_committed_offsets,
)
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.testing.membership import MemoryMember
from kafka_ordered_ops.testing.reader import MemoryReader
from kafka_ordered_ops.testing.writing import MemoryTransactions, MemoryWriter


def _ledger(name: str, _lookup: object, *, topic: str, timeout_s: float) -> MemoryLedger:
    check_ledger_name(topic)
    return MemoryLedger(name, topic=topic, timeout_s=timeout_s)


def _reader(name: str, _group_id: str, *wanted: Any, **options: Any) -> MemoryReader:
    return MemoryReader(name, *wanted, **options)


def _member(
    name: str, *group: Any, on_revoke: Any, timeout_s: float, keeps_maps: bool, **_: object
) -> MemoryMember:
    return MemoryMember(
        name, *group, on_revoke=on_revoke, timeout_s=timeout_s, keeps_maps=keeps_maps
    )


def _transactions(name: str, member: object) -> MemoryTransactions:
    if not isinstance(member, MemoryMember):
        raise AssertionError("a model only has transactions of its own members")
    return MemoryTransactions(name, member)


DOORS: Final[Mapping[str, Callable[..., Any]]] = {
    "open_internal_topics": lambda name, **_: MemoryInternalTopics(name),
    "open_ledger": _ledger,
    "open_lookup": lambda name, **_: MemoryLookup(name),
    "open_member": _member,
    "open_outside_commits": MemoryOutsideCommits,
    "open_reader": _reader,
    "open_transactions": _transactions,
    "open_writer": lambda name, **_: MemoryWriter(name),
    "read_committed_offsets": read_committed_offsets,
    "set_committed_offsets": lambda name, group_id, offsets, **_: set_committed_offsets(
        name, group_id, offsets
    ),
}
