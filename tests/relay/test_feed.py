"""When reading says that there is nothing more at present: a reader whose brokers are slow must not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.cluster.reading import Turn
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.types import INT64_MAX, Isolation, TopicPartition
from kafka_ordered_ops.relay.leases import feed
from kafka_ordered_ops.relay.leases.feed import Fed, Feed
from tests.support.relay_servers import wait_until

TP = TopicPartition("orders", 0)


class SlowReader:
    """A reader of one partition that brings something when a test lets it."""

    def __init__(self) -> None:
        self.positions = {TP: 0}
        self.log_ends: dict[TopicPartition, int] = {}
        self.reached = 0
        self.turns = 0

    def __enter__(self) -> SlowReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        pass

    def stop(self, tp: TopicPartition) -> None:
        pass

    def turn(self) -> list[Turn]:
        self.turns += 1
        time.sleep(0.01)
        if self.reached == self.positions[TP]:
            return []
        self.positions[TP] = self.reached
        return [Turn(TP, None, self.reached)]


@pytest.mark.slow
def test_an_end_is_reported_where_it_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before anything was fetched, nor while records are on their way; and beyond, an open transaction is waited for."""
    monkeypatch.setattr(feed, "_QUIET_S", 3.0)
    reader = SlowReader()
    monkeypatch.setattr(feed, "open_reader", lambda *_, **__: reader)
    seen: list[Fed] = []

    def on_turn(fed: list[Fed], noted: Callable[[], None]) -> None:
        seen.extend(fed)
        noted()

    def failed(*args: Any) -> None:
        raise AssertionError(args)

    def ends() -> list[int]:
        return [one.position for one in seen if one.is_end]

    def await_turns() -> None:
        wanted = reader.turns + 40
        wait_until(lambda: reader.turns >= wanted)

    reading = Feed(
        ClientSettings.of("localhost:1"),
        "g",
        Isolation.READ_COMMITTED,
        finds_ends=True,
        on_turn=on_turn,
        on_failure=failed,
    )
    try:
        reading.add(TP, OffsetSet.of((0, INT64_MAX)))
        await_turns()
        assert ends() == []
        reader.log_ends = {TP: 10}
        await_turns()
        assert ends() == []
        reader.reached = 10
        wait_until(lambda: ends() == [10])
        # Records of a transaction that is open for long.
        reader.log_ends, reader.reached = {TP: 30}, 20
        await_turns()
        assert ends() == [10]
        wait_until(lambda: ends() == [10, 20])
    finally:
        reading.close(wait=True)
