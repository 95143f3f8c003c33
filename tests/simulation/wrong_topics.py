"""Recreated topics that are taken for the ones before; see `mutants`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kafka_ordered_ops.core.group.decisions import adoption
from kafka_ordered_ops.core.group.decisions.adoption import Cause
from kafka_ordered_ops.core.group.decisions.truncation import cut_logs, doubtful
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.kafka.facts import plan_facts, window_facts
from kafka_ordered_ops.testing.reader import MemoryReader
from kafka_ordered_ops.windows import group_facts


def read_by_name(patch: pytest.MonkeyPatch) -> None:
    """Read whatever topic has the name."""
    check = MemoryReader._check

    def unchecked(self: MemoryReader, *args: Any) -> Any:
        self._topic_ids, self._first_ids = {}, {}
        return check(self, *args)

    patch.setattr(MemoryReader, "_check", unchecked)


def ids_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Accept any topic that has the name."""
    for place in (plan_facts, window_facts):
        patch.setattr(place, "check_topic_id", lambda *_: None)


def progress_kept(patch: pytest.MonkeyPatch) -> None:
    """Count the offsets that were done in the other topic as done in this one."""
    exact = adoption._moved

    def kept(partition: Any, moved: Any, steps: Any) -> Any:
        if moved.cause is Cause.RECREATED:
            moved = replace(moved, cause=Cause.FORWARD)
        return exact(partition, moved, steps)

    patch.setattr(adoption, "_moved", kept)


def windows_left_open(patch: pytest.MonkeyPatch) -> None:
    """Abandon no window."""
    exact = adoption.with_moved

    def left(view: GroupView, *args: Any) -> Any:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(GroupView, "open_windows", lambda self: [])
            return exact(view, *args)

    patch.setattr(adoption, "with_moved", left)


def logs_counted_as_cut(patch: pytest.MonkeyPatch) -> None:
    """Do not look at the topics again once logs seem to be cut."""

    def found(lookup: Any, group_id: str, known: Any, ends: Any, _: Mapping[str, Any]) -> Any:
        return cut_logs(known, ends, lookup.diverged(group_id, doubtful(known, ends)))

    for place in (plan_facts, window_facts, group_facts):
        patch.setattr(place, "find_cuts", found)
