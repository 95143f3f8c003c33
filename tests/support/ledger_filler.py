"""A group with a past: old windows in its ledger, as years of an hourly job leave them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from kafka_ordered_ops import ClientSettings, Earliest, OrderedWindows, Window, WindowPlan
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffsets, TopicFacts
from kafka_ordered_ops.core.group.checks import known_state
from kafka_ordered_ops.core.group.group_state import Change, GroupView, WindowRecord, next_state
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, Decision
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.time_ranges import NO_STEPS
from kafka_ordered_ops.core.types import PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import PartitionPlan
from kafka_ordered_ops.kafka.ports import open_ledger, open_lookup

#: Windows of one transaction: some 5 MB, written well within its time-out.
_AT_ONCE: Final = 2_000

_HOUR: Final = timedelta(hours=1)
_OFFSETS_EACH: Final = 1_000


def fill_ledger(
    settings: ClientSettings,
    group_id: str,
    topic: str,
    count: int,
    *,
    since: datetime,
    ledger: str = LEDGER_TOPIC,
) -> None:
    """Gives a new group of intervals `count` published windows, one an hour, the last one before `since`.

    The interval that begins at `since` is planned and committed truly, and brings the group's state. The old
    ones say of every partition that they took a thousand offsets, which nobody has written: they can be shown,
    listed and pruned like others, and not replayed.
    """
    with OrderedWindows(settings, group_id, ledger_topic=ledger) as windows:
        windows.commit(
            windows.plan(Window([topic], since + _HOUR, Earliest(), since=since), "first")
        )
    with open_lookup(settings) as lookup, open_ledger(settings, lookup, topic=ledger) as door:
        facts = lookup.topics([topic])[topic]
        for at in range(0, count, _AT_ONCE):
            numbers = range(at, min(at + _AT_ONCE, count))
            begins = [since - (count - number) * _HOUR for number in numbers]
            plans = [
                _plan(group_id, facts, number, begin)
                for number, begin in zip(numbers, begins, strict=True)
            ]
            door.update(group_id, partial(_storing, [_published(plan) for plan in plans]))


def old_window_id(number: int) -> str:
    """The id of an old window; the oldest is number 0."""
    return f"old-{number:06}"


def _storing(records: Sequence[WindowRecord]) -> Decision:
    def decide(view: GroupView, _: CommittedOffsets) -> Change:
        return Change(state=next_state(known_state(view)), records=tuple(records))

    return decide


def _published(plan: WindowPlan) -> WindowRecord:
    return WindowRecord(
        plan,
        result={
            "path": f"s3a://lake/orders/window_id={plan.window_id}",
            "records": plan.offsets,
            "files": len(plan.partitions),
        },
        run_id=f"scheduled__{plan.window_id}",
        touched_at_ms=plan.planned_at_ms,
        committed_at_ms=plan.planned_at_ms + 60_000,
    )


def _plan(group_id: str, topic: TopicFacts, number: int, begin: datetime) -> WindowPlan:
    first = number * _OFFSETS_EACH
    end = first + _OFFSETS_EACH
    window = Window([topic.name], begin + _HOUR, since=begin)
    return WindowPlan(
        group_id=group_id,
        window_id=old_window_id(number),
        window=window,
        claim_id=f"{number:016x}",
        attempt=1,
        status=WindowStatus.PUBLISHED,
        content=PlanContent.RECORDS,
        planned_at_ms=window.cutoff_ms,
        partitions=tuple(
            PartitionPlan(
                tp=TopicPartition(topic.name, partition),
                topic_id=topic.topic_id,
                taken=OffsetSet.of((first, end)),
                lost=EMPTY_SET,
                decided_end=end + 10,
                head_end=end,
                late=NO_STEPS,
            )
            for partition in topic.partitions
        ),
    )
