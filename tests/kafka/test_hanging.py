"""Calls of the client that ignore their time-outs: left behind, and counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_ordered_ops import BrokerError
from kafka_ordered_ops.kafka.client.hanging import HUNG_MAX, call_within


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set when the test is over, so that no call stays."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "kafka-call":
            thread.join()


def test_a_call_that_ends_is_as_if_it_was_made_here() -> None:
    """What it does is done, and what it raises is raised."""
    done: list[int] = []
    call_within(5, lambda: done.append(1), doing="adding")
    assert done == [1]
    with pytest.raises(ZeroDivisionError):
        call_within(5, lambda: 1 // 0, doing="dividing")


def test_a_call_that_hangs_is_left_behind(released: threading.Event) -> None:
    """With the client's own error for a missing answer."""
    with pytest.raises(KafkaException) as caught:
        call_within(0.01, released.wait, doing="waiting")
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


def test_calls_that_hang_are_bounded(released: threading.Event) -> None:
    """Each keeps a client; once they end, calls are made again."""
    for _ in range(HUNG_MAX):
        with pytest.raises(KafkaException):
            call_within(0.001, released.wait, doing="waiting")
    with pytest.raises(BrokerError, match=f"adding: .* {HUNG_MAX} earlier calls"):
        call_within(5, lambda: None, doing="adding")
    released.set()
    for thread in threading.enumerate():
        if thread.name == "kafka-call":
            thread.join()
    call_within(5, lambda: None, doing="adding")
