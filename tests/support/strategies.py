"""Hypothesis strategies for the package's values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from kafka_ordered_ops import Window, WindowPlan
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.time_ranges import LateSteps, TimeRange
from kafka_ordered_ops.core.types import INT64_MIN, PlanContent, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.plan import PartitionPlan, PlanPart

small_offsets = st.integers(0, 60)
ranges = st.lists(st.tuples(small_offsets, small_offsets), max_size=12)
large_ranges = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=12)
offset_sets = ranges.map(OffsetSet.from_ranges)
large_offset_sets = large_ranges.map(OffsetSet.from_ranges)
timestamps = st.integers(-3, 40)

#: Times from a moment, or from the beginning of time, to a later one.
time_ranges = st.tuples(st.just(INT64_MIN) | timestamps, timestamps).map(
    lambda pair: TimeRange(pair[0], max(pair[1], pair[0] + 1))
)

late_steps = st.lists(st.tuples(small_offsets, time_ranges), max_size=5).map(
    lambda steps: _steps(steps)
)


def _steps(steps: list[tuple[int, TimeRange]]) -> LateSteps:
    made = LateSteps()
    for offset, times in steps:
        made = made.with_step(offset, times)
    return made


def members(offsets: OffsetSet) -> set[int]:
    """The offsets as a plain set: the model that the algebra is checked against."""
    return {offset for start, end in offsets for offset in range(start, end)}


moments = st.datetimes(timezones=st.just(UTC)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)


def _window(since: datetime | None, cutoff: datetime, **arguments: Any) -> Window:
    if since is not None and since >= cutoff:
        since = None
    return Window(since=since, cutoff=cutoff, **arguments)


windows = st.builds(
    _window,
    since=st.none() | moments,
    topics=st.lists(st.sampled_from(["orders", "payments", "^audit\\..*"]), min_size=1, max_size=3),
    cutoff=moments,
    max_out_of_orderness=st.none()
    | st.integers(0, 10**9).map(lambda ms: timedelta(milliseconds=ms)),
)

partition_plans = st.builds(
    PartitionPlan,
    tp=st.builds(TopicPartition, st.sampled_from(["orders", "payments"]), st.integers(0, 9)),
    topic_id=st.text(max_size=22),
    taken=large_offset_sets,
    lost=large_offset_sets,
    decided_end=st.integers(0, 2**62),
    head_end=st.none() | st.integers(0, 2**62),
    late=late_steps,
    lost_untimed=large_offset_sets,
    earlier=large_offset_sets,
)


def _asking(plan: WindowPlan) -> WindowPlan:
    """The plan of a window that asks for the topics of its partitions."""
    topics = {*plan.window.topics, *plan.topics}
    return replace(plan, window=replace(plan.window, topics=tuple(sorted(topics))))


window_plans = st.builds(
    WindowPlan,
    group_id=st.text(min_size=1, max_size=20),
    window_id=st.text(min_size=1, max_size=20),
    window=windows,
    claim_id=st.text(max_size=16),
    attempt=st.integers(0, 9),
    status=st.sampled_from(WindowStatus),
    content=st.sampled_from(PlanContent),
    planned_at_ms=st.integers(0, 2**47),
    partitions=st.lists(partition_plans, max_size=4, unique_by=lambda part: part.tp).map(tuple),
    scanned=st.integers(0, 2**50),
    part=st.none() | st.builds(PlanPart, st.integers(0, 3), st.integers(4, 9)),
    stepped_around=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    ledger_id=st.text(max_size=10),
    replaces=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    allow_fewer=st.booleans(),
).map(_asking)
