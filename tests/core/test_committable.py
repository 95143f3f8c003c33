"""Windows are refused exactly if the group's state, with them committed, would be too large."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops.core.errors import OffsetMapTooLargeError, PlanTooLargeError
from kafka_ordered_ops.core.group.decisions import committable
from kafka_ordered_ops.core.group.decisions.committable import check_committable
from kafka_ordered_ops.core.group.group_state import GroupState, PartitionState, TopicState
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.types import ProgressFormat, TopicPartition
from kafka_ordered_ops.core.window.plan import PartitionPlan, WindowPlan
from tests.support.stored_values import PLAN, STATE
from tests.support.strategies import offset_sets

#: Of two topics; the group has no progress on the last.
TPS = [TopicPartition(name, number) for name in ("orders", "rates") for number in range(2)]
UNKNOWN = TopicPartition("new", 0)


def state_of(
    done: dict[TopicPartition, OffsetSet], format: ProgressFormat = ProgressFormat.LEDGER
) -> GroupState:
    """A group with these done offsets."""
    topics = {
        name: TopicState(
            "id",
            True,
            {tp.partition: PartitionState(0, done[tp], None) for tp in done if tp.topic == name},
        )
        for name in dict.fromkeys(tp.topic for tp in done)
    }
    return replace(STATE, topics=topics, format=format)


def plan_of(
    parts: dict[TopicPartition, tuple[OffsetSet, OffsetSet]], window_id: str = "w"
) -> WindowPlan:
    """A window that takes and loses these offsets."""
    return replace(
        PLAN,
        window_id=window_id,
        partitions=tuple(
            PartitionPlan(tp, "id", taken, lost, 0, None, LateSteps())
            for tp, (taken, lost) in parts.items()
        ),
    )


progress = st.fixed_dictionaries(dict.fromkeys(TPS, offset_sets))
plans = st.lists(
    st.dictionaries(
        st.sampled_from([*TPS, UNKNOWN]), st.tuples(offset_sets, offset_sets), max_size=5
    ).map(plan_of),
    min_size=1,
    max_size=3,
)


@given(done=progress, windows=plans, limit=st.integers(0, 30))
def test_the_ranges_of_all_partitions_count(
    done: dict[TopicPartition, OffsetSet], windows: list[WindowPlan], limit: int
) -> None:
    """Those that windows touch, with what they take and lose, and the others; the error names the largest topic."""
    after = {
        tp: union_of(
            [
                offsets,
                *(
                    taken
                    for plan in windows
                    for part in plan
                    if part.tp == tp
                    for taken in (part.taken, part.lost)
                ),
            ]
        )
        for tp, offsets in done.items()
    }
    by_topic = dict.fromkeys(("orders", "rates"), 0)
    for tp, offsets in after.items():
        by_topic[tp.topic] += len(offsets)
    with patch.object(committable, "PLAN_RANGES_MAX", limit):
        if sum(by_topic.values()) <= limit:
            check_committable(state_of(done), windows)
            return
        with pytest.raises(PlanTooLargeError) as caught:
            check_committable(state_of(done), windows)
    assert caught.value.topic is not None
    assert by_topic[caught.value.topic] == max(by_topic.values())
    assert f"would have {sum(by_topic.values())} ranges" in caught.value.message
    assert f"{by_topic[caught.value.topic]} of them in topic" in caught.value.message


def test_the_last_window_is_named() -> None:
    """It is the one that is being planned."""
    windows = [
        plan_of({TPS[0]: (OffsetSet.of((n, n + 1)), OffsetSet.of())}, f"w{n}") for n in (2, 4)
    ]
    with (
        patch.object(committable, "PLAN_RANGES_MAX", 1),
        pytest.raises(PlanTooLargeError, match=r"with window w4 committed.*limit 1\)"),
    ):
        check_committable(state_of({TPS[0]: OffsetSet.of()}), windows)


def test_maps_that_fit_no_commit_are_refused_in_a_shared_group_alone() -> None:
    """However few ranges there are; a partition that no window touches is not looked at."""
    holes = OffsetSet.from_ranges([(n * n, n * n + 1) for n in range(1, 4_000)])
    windows = [plan_of({TPS[0]: (holes, OffsetSet.of())})]
    nothing = {TPS[0]: OffsetSet.of(), TPS[1]: OffsetSet.of()}
    check_committable(state_of(nothing), windows)
    with pytest.raises(OffsetMapTooLargeError, match=rf"group {STATE.group_id}:.*orders\[0\]"):
        check_committable(state_of(nothing, ProgressFormat.DUAL), windows)
    others = [plan_of({TPS[1]: (OffsetSet.of((0, 9)), OffsetSet.of())})]
    check_committable(state_of({**nothing, TPS[0]: holes}, ProgressFormat.DUAL), others)
