"""The broker's index says "no such record" although there is one: nothing is taken, skipped or awaited wrongly."""

from __future__ import annotations

from datetime import timedelta

import pytest

from kafka_ordered_ops import AtTime, Earliest, Window
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.facts.time_index import IndexAnswer, first_at_or_after
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.logs import read_plan
from tests.support.windows_support import BASE_MS, at, before, delete_before, offsets_of


@pytest.fixture
def silenced(bootstrap: str, topic: MakeTopic, produce: Produce) -> str:
    """Two segments; the record that made the first one's greatest timestamp was deleted by its offset.

    Offsets 1 to 6 are left, of seconds 10, 20, 30, and in the second segment 7200, 7210, 40.
    """
    name = topic(config={"segment.ms": "3600000"})
    for second in [1800, 10, 20, 30, 7200, 7210, 40]:
        produce([(name, 0, None, b"x", BASE_MS + second * 1000, ())])
    delete_before(bootstrap, name, 1)
    return name


def test_silence_is_told_from_proof(windows: OrderedWindows, silenced: str) -> None:
    """An offset is a proof, and silence above the greatest timestamp; other silence is the log start."""
    tp = TopicPartition(silenced, 0)
    times = [BASE_MS + second * 1000 for second in (5, 1000, 7205, 7211)]
    with Lookup(windows.settings) as lookup:
        plain = lookup.first_at_or_after([tp], times[1], Isolation.READ_UNCOMMITTED)
        assert plain == {tp: None}, "the broker has learned to answer: the detour may go"
        found = first_at_or_after(lookup, {tp: 1}, times)
    assert [found[time_ms][tp] for time_ms in times] == [
        IndexAnswer(1),
        IndexAnswer(1, is_proven=False),
        IndexAnswer(5),
        IndexAnswer(None),
    ]


@pytest.mark.slow
def test_a_window_takes_no_record_past_its_cutoff(windows: OrderedWindows, silenced: str) -> None:
    """The index knows of no record at or after second 1000, and 7200 and 7210 stay all the same."""
    plan = windows.plan(before(silenced, 1000, Earliest()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {1, 2, 3, 6}
    windows.commit(plan)
    rest = windows.plan(before(silenced, 8000), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {4, 5}


def test_a_start_in_time_skips_nothing(windows: OrderedWindows, silenced: str) -> None:
    """From second 1000 on: 7200, 7210, and the older one written behind them."""
    start = AtTime(BASE_MS + 1_000_000)
    plan = windows.plan(Window([silenced], at(8000), starting_offsets=start), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {4, 5, 6}


def test_a_partition_with_a_record_past_the_cutoff_is_live(
    windows: OrderedWindows, silenced: str
) -> None:
    """And not idle, as the index's silence would have it."""
    found = windows.live(before(silenced, 1000), grace=timedelta(0))
    assert found.is_live


def test_an_open_transaction_does_not_silence_the_index(
    bootstrap: str, windows: OrderedWindows, orders: str
) -> None:
    """What lies above the last stable offset proves that all below it is older: nothing needs reading."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"open-{orders}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(orders, value=b"open", partition=0, timestamp=BASE_MS + 1_000_000)
    producer.flush(30)
    plan = windows.plan(before(orders, 500, Earliest()), "w")
    assert offsets_of(read_plan(windows.settings, plan)) == {0, 1, 2, 3, 4, 5}
    assert plan.scanned == 0
    producer.abort_transaction(30)
