"""Waiting for members of a live group, all polled by one thread."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka_ordered_ops.core.cluster.membership import MembershipChange
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import MembershipDoor
from tests.support.windows_support import TIMEOUT_S


def until(holds: Callable[[], bool], *members: MembershipDoor) -> list[MembershipChange]:
    """Polls members until something holds; the changes of the first of them."""
    changes: list[MembershipChange] = []
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, [sorted(one.assignment) for one in members]
        for number, one in enumerate(members):
            change = one.poll()
            if change is not None and number == 0:
                changes.append(change)
        time.sleep(0.01)
    return changes


def until_shared(*members: MembershipDoor, partitions: int) -> list[MembershipChange]:
    """Until every partition has one owner, and every member some; the changes of the first member."""

    def is_shared() -> bool:
        parts = [one.assignment for one in members]
        whole = frozenset[TopicPartition]().union(*parts)
        return len(whole) == sum(map(len, parts)) == partitions and all(parts)

    return until(is_shared, *members)
