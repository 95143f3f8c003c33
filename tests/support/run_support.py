"""A group in memory, and the windows that tests of `run` ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kafka_ordered_ops import (
    OrderedWindows,
    Window,
)
from kafka_ordered_ops.testing import InMemoryKafka
from tests.support.windows_support import BASE_MS, at

#: Seconds of the records at offsets 0 to 5 of the one partition; see the fixture `orders`.
SECONDS = [0, 10, 20, 5, 30, 15]


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """A Kafka in memory with the topic `orders`, as the fixture of that name makes it on a broker."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in SECONDS:
            kafka.produce("orders", value=b"x", timestamp_ms=BASE_MS + second * 1000)
        yield kafka


@pytest.fixture
def face(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The public service, for a fresh group."""
    with OrderedWindows(kafka.bootstrap, group_id="g") as windows:
        yield windows


def hour(topic: str = "orders", before: float = 25, **more: Any) -> Window:
    """All that is stamped before a second."""
    return Window(topic, cutoff=at(before), starting_offsets="earliest", **more)
