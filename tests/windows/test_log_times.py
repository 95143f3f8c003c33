"""Timestamps that are missing, negative, far away, or the broker's own, each window against a plain consumer."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import CREATE_TIME, LOG_APPEND_TIME
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.logs import read_ranges, visible_records
from tests.support.window_oracle import WindowOracle, stamped
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, offsets_of
from tests.support.wire import WireError, write_batch

YEAR_1 = -62_135_596_800_000
YEAR_9999 = 253_402_300_799_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def oracle_of(bootstrap: str, windows: OrderedWindows) -> Callable[..., WindowOracle]:
    """An oracle for the group's windows over the topics named."""
    return lambda *topics: WindowOracle(windows, bootstrap, topics)


def of_ms(time_ms: int) -> datetime:
    """A moment by its milliseconds since the epoch."""
    return EPOCH + timedelta(milliseconds=time_ms)


@pytest.mark.long
@pytest.mark.parametrize("rising", [True, False])
def test_odd_timestamps_are_times_like_any_other(
    bootstrap: str, topic: MakeTopic, oracle_of: Callable[..., WindowOracle], rising: bool
) -> None:
    """No timestamp (-1), zero, negative and far away ones: each comes with the first cutoff above it.

    A record stamped beyond the year 9999 has no such cutoff: it stays, and progress stays before it.
    """
    name = topic(partitions=3, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    odd = [BASE_MS, -1, 0, 1, YEAR_1, YEAR_9999, -5, BASE_MS + 1, YEAR_1 - 1, -(2**62)]
    write_batch(bootstrap, name, odd)
    for time_ms in sorted(odd):
        write_batch(bootstrap, name, [time_ms], partition=1)
    # Above every cutoff: the index answers with the first of these for each later time.
    write_batch(bootstrap, name, [2**63 - 1, 5, -1, BASE_MS, YEAR_9999, 2**62], partition=2)
    cutoffs = [YEAR_1 + 1, -4, -1, 0, 1, 2, 1_000, BASE_MS, BASE_MS + 1, YEAR_9999]
    oracle = oracle_of(name)
    for cutoff_ms in cutoffs if rising else reversed(cutoffs):
        oracle.window(of_ms(cutoff_ms))
    oracle.window(of_ms(YEAR_9999 + 1))
    ends = {TopicPartition(name, number): end for number, end in enumerate([10, 10, 6])}
    left = visible_records(bootstrap, ends).keys() - oracle.delivered.keys()
    assert {key[1:] for key in left} == {(2, 0), (2, 5)}
    assert list(oracle.committed(list(ends)).values()) == [10, 10, 0]


def test_timestamps_that_the_broker_refuses(topic: MakeTopic, bootstrap: str) -> None:
    """What can lie in a log ends above -2**63, and by the broker's default an hour from now."""
    name = topic()
    for time_ms in (-(2**63), YEAR_9999, 2**63 - 1):
        with pytest.raises(WireError, match="32"):  # INVALID_TIMESTAMP
            write_batch(bootstrap, name, [time_ms])


@pytest.mark.slow
def test_one_record_from_the_future_hides_nothing(
    topic: MakeTopic, produce: Produce, oracle_of: Callable[..., WindowOracle]
) -> None:
    """It is the index's answer for every later time, and what lies behind it is found all the same."""
    name = topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    future = (YEAR_9999 - BASE_MS) / 1000
    produce(stamped(name, 0, 1, future, 2, 12, 3, 40, 4))
    oracle = oracle_of(name)
    assert offsets_of(oracle.window(at(12))) == {0, 2, 4, 6}
    assert offsets_of(oracle.window(at(100))) == {3, 5}
    assert oracle.committed([TopicPartition(name, 0)]) == {TopicPartition(name, 0): 1}
    oracle.window(of_ms(YEAR_9999 + 1))
    oracle.check_complete()


@pytest.mark.slow
def test_create_time_and_append_time_in_one_log(
    bootstrap: str, topic: MakeTopic, produce: Produce, oracle_of: Callable[..., WindowOracle]
) -> None:
    """The topic's setting changes twice: each record counts by the time it was stored with."""
    name = topic(partitions=2)
    produce(stamped(name, 0, 0, 30, 5) + stamped(name, 1, 30))
    append_from = set_time_type(bootstrap, produce, name, "LogAppendTime")
    produce(stamped(name, 0, 1, 2) + stamped(name, 1, 1))
    create_from = set_time_type(bootstrap, produce, name, "CreateTime")
    produce(stamped(name, 0, 31, 3) + stamped(name, 1, 2))
    oracle = oracle_of(name)
    # Second 12 of the tests' time is years before any append.
    early = {key for key in oracle.window(at(12)) if key[1] == 0}
    assert {offset for _, _, offset in early} & {*range(append_from, create_from)} == set()
    oracle.window(at(31))
    now = datetime.now(UTC)
    oracle.window(now - timedelta(minutes=10))
    assert len(oracle.window(now + timedelta(minutes=10))) >= 3
    oracle.check_complete()


def set_time_type(bootstrap: str, produce: Produce, topic: str, wanted: str) -> int:
    """Sets the topic's timestamp type; the offset in partition 0 of the first record that has it.

    The broker takes it over some time after it was set: records are written until one has it.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry(
        "message.timestamp.type", wanted, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    kind = {"CreateTime": CREATE_TIME, "LogAppendTime": LOG_APPEND_TIME}[wanted]
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        [offset] = produce(stamped(topic, 0, 4))
        if time_type_of(bootstrap, topic, offset) == kind:
            return offset
        assert time.monotonic() < deadline, f"{topic} does not take {wanted}"
        time.sleep(0.1)


def time_type_of(bootstrap: str, topic: str, offset: int) -> int:
    """The timestamp type of one record in partition 0."""
    wanted = {TopicPartition(topic, 0): OffsetSet.of((offset, offset + 1))}
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    [batch] = read_ranges(settings, "g", Isolation.READ_COMMITTED, wanted)
    [kind] = batch.column("timestamp_type").to_pylist()
    assert isinstance(kind, int)
    return kind
