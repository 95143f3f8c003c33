"""A topic is deleted and created again between two requests of one call: its logs are not taken for cut ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, Window
from kafka_ordered_ops.core.errors import TopicRecreatedError
from kafka_ordered_ops.core.group.decisions.adoption import Cause
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.testing.lookup import MemoryLookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, at

TOPIC = "orders"


def before(seconds: float) -> Window:
    """Everything stamped before a moment."""
    return Window([TOPIC], at(seconds), starting_offsets=Earliest())


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A topic with five records."""
    with InMemoryKafka() as made:
        made.create_topic(TOPIC)
        for second in range(5):
            made.produce(TOPIC, timestamp_ms=BASE_MS + second * 1000)
        yield made


@pytest.fixture
def windows(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """A group that has committed the first three of them."""
    with OrderedWindows(kafka.settings, "group") as made:
        made.commit(made.plan(before(3), "done"))
        yield made


def at_the_next_logs(patch: pytest.MonkeyPatch, do: Callable[[], None]) -> None:
    """Do something after a call has looked up the topics, and before it looks at their logs."""
    exact, left = MemoryLookup._of_each, [do]

    def asked(self: MemoryLookup, partitions: Any, ask: Any) -> Any:
        if left and any(tp.topic == TOPIC for tp in partitions):
            left.pop()()
        return exact(self, partitions, ask)

    patch.setattr(MemoryLookup, "_of_each", asked)


def recreate(kafka: InMemoryKafka) -> None:
    """Delete the topic, and create another one of its name, with one record."""
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC)
    kafka.produce(TOPIC, timestamp_ms=BASE_MS)


def test_a_plan_reports_it(
    kafka: InMemoryKafka, windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, and by the two ids."""
    at_the_next_logs(monkeypatch, lambda: recreate(kafka))
    with pytest.raises(TopicRecreatedError):
        windows.plan(before(9), "next")


def test_a_commit_reports_it(
    kafka: InMemoryKafka, windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window stays as it was."""
    plan = windows.plan(before(9), "next")
    at_the_next_logs(monkeypatch, lambda: recreate(kafka))
    with pytest.raises(TopicRecreatedError):
        windows.commit(plan)
    assert windows.show("next").status is WindowStatus.PLANNED


def test_an_adoption_rewinds_no_window_for_it(
    kafka: InMemoryKafka, windows: OrderedWindows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks again, and continues with the other topic: what was delivered of the first one stays delivered."""
    windows.plan(before(9), "open")
    at_the_next_logs(monkeypatch, lambda: recreate(kafka))
    adopted = windows.adopt()
    assert [moved.cause for moved in adopted.moved] == [Cause.RECREATED]
    assert (adopted.rewound, adopted.abandoned) == ((), ("open",))
    assert windows.show("done").status is WindowStatus.COMMITTED
    assert windows.plan(before(9), "next").offsets == 1
