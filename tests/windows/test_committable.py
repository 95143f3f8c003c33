"""A plan is refused if its commit could not be stored, before anything is claimed."""

from __future__ import annotations

from random import Random

import pytest

from kafka_ordered_ops import Earliest, PlanTooLargeError
from kafka_ordered_ops.core.group.decisions import committable
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, before


@pytest.mark.slow
def test_a_window_that_would_overfill_the_groups_state_is_not_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error has the numbers and the topic; a window that fills the holes is planned, and then all others are."""
    monkeypatch.setattr(committable, "PLAN_RANGES_MAX", 300)
    random = Random(1)
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders", 1)
        for _ in range(2_000):
            time_ms = BASE_MS + random.choice((1_000, 11_000, 21_000))
            kafka.produce("orders", timestamp_ms=time_ms, value=b"")
        now = BASE_MS / 1000 + 1_000
        with OrderedWindows(kafka.settings, "g", clock=lambda: now) as windows:
            with pytest.raises(
                PlanTooLargeError, match=r"4\d\d ranges.*limit 300.*topic orders"
            ) as caught:
                windows.plan(before("orders", 10, Earliest()), "w")
            assert caught.value.topic == "orders"
            assert windows.state() is None
            assert windows.list() == []
            windows.commit(windows.plan(before("orders", 30, Earliest()), "all"))
            windows.commit(windows.plan(before("orders", 40), "more"))
