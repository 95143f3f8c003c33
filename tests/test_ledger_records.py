"""What lies in the ledger besides our own healthy records: foreign, damaged, newer, left open."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops.core import types as core
from kafka_ordered_ops.core.bounds import Earliest
from kafka_ordered_ops.core.errors import (
    LedgerCorruptError,
    LedgerLostError,
    LedgerUnavailableError,
    LedgerVersionError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.kafka.offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic
from tests.logs import read_plan
from tests.windows_support import TIMEOUT_S, before, offsets_of

#: What `plan` and `commit` may wait for, where something keeps them from the ledger.
_PATIENCE_S = 3.0

Headers = dict[str, str | bytes | None]
#: A record of the ledger by its key: value and headers.
Stored = dict[bytes, tuple[bytes, Headers]]


@pytest.fixture
def ledger(topic: MakeTopic) -> str:
    """A ledger topic of this test's own."""
    return topic(
        f"ledger-{uuid.uuid4().hex[:12]}", partitions=16, config={"cleanup.policy": "compact"}
    )


@pytest.fixture
def windows(bootstrap: str, group: str, ledger: str) -> Iterator[OrderedWindows]:
    """The service, for a fresh group in that ledger."""
    with service(bootstrap, group, ledger) as opened:
        yield opened


def service(bootstrap: str, group: str, ledger: str, timeout_s: float = 60) -> OrderedWindows:
    """Another process's service for a group."""
    return OrderedWindows(
        {"bootstrap.servers": bootstrap}, group, ledger_topic=ledger, timeout_s=timeout_s
    )


def place_of(ledger: str, group: str) -> TopicPartition:
    """Where a group's records are: the rule can never change, or ledgers are lost."""
    return TopicPartition(ledger, zlib.crc32(group.encode()) % 16)


def put(
    bootstrap: str,
    place: TopicPartition,
    key: bytes,
    value: bytes | None,
    headers: Headers | None = None,
) -> None:
    """Writes to the ledger what another program, or a hand, might."""
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        place.topic,
        key=key,
        value=value,
        headers=list((headers or {}).items()),
        partition=place.partition,
        on_delivery=lambda error, _: failures.append(error) if error else None,
    )
    assert (producer.flush(TIMEOUT_S), failures) == (0, [])


def stored(bootstrap: str, place: TopicPartition) -> Stored:
    """The newest record of each key, as a plain consumer finds it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"look-{uuid.uuid4().hex}",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # The end is told by an empty answer.
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(place.topic, place.partition, 0)])
    found: Stored = {}
    while True:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, "the ledger's end was not reached"
        if message.error():
            break
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            found.pop(key, None)
        else:
            found[key] = bytes(value), dict(message.headers() or [])
    consumer.close()
    return found


def key_of(group: str, kind: str, name: str) -> bytes:
    """The key of the first part of a record of ours."""
    return json.dumps([group, kind, name, 0], separators=(",", ":")).encode()


# --- foreign records --------------------------------------------------------------------------------

scalar = st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3)
word = st.sampled_from(["GROUP", "state", "window", "times", "done", ""])
foreign_key = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"[" * 100_000, b'["GROUP","state","",' + b"9" * 5_000 + b"]"]),
    st.lists(word | scalar, max_size=6).map(lambda parts: json.dumps(parts).encode()),
)
ours_like = st.just({"koo-generation": "7", "koo-parts": "1"})


@settings(
    max_examples=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.lists(
        st.tuples(foreign_key, st.none() | st.binary(max_size=20), st.none() | ours_like),
        min_size=1,
        max_size=20,
    )
)
def test_foreign_records_change_nothing(
    bootstrap: str,
    windows: OrderedWindows,
    orders: str,
    ledger: str,
    records: list[tuple[bytes, bytes | None, Headers | None]],
) -> None:
    """Any bytes another program writes to the topic: neither a running nor a new process sees a difference."""
    window = before(orders, 12, Earliest())
    windows.commit(windows.plan(window, "done"))
    expected = windows.list(), windows.state()
    place = place_of(ledger, windows.group)
    for key, value, headers in records:
        key = key.replace(b"GROUP", windows.group.encode())
        if not is_ours(key, windows.group):
            put(bootstrap, place, key, value, headers)
    assert (windows.list(), windows.state()) == expected
    with service(bootstrap, windows.group, ledger) as cold:
        assert (cold.list(), cold.state()) == expected
        assert cold.commit(cold.plan(window, "done")).status is WindowStatus.COMMITTED


def is_ours(key: bytes, group: str) -> bool:
    """Whether a key has the form of one of this group's."""
    try:
        parts = json.loads(key)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(parts, list)
        and [type(part) for part in parts] == [str, str, str, int]
        and parts[0] == group
    )


# --- damaged and newer records ----------------------------------------------------------------------


@pytest.fixture
def begun(windows: OrderedWindows, orders: str) -> OrderedWindows:
    """A group with a committed window, an open one, and a time map."""
    windows.commit(windows.plan(before(orders, 1, Earliest()), "done"))
    windows.plan(before(orders, 12), "open")
    return windows


def halved(value: bytes) -> bytes:
    """Cut in the middle."""
    return value[: len(value) // 2]


def without_a_field(value: bytes) -> bytes:
    """One field less than it must have."""
    fields = json.loads(value)
    del fields[sorted(fields)[0]]
    return json.dumps(fields).encode()


def of_another_type(value: bytes) -> bytes:
    """A field with what cannot be its value."""
    fields = json.loads(value)
    return json.dumps({**fields, sorted(fields)[0]: "?"}).encode()


def nested(_: bytes) -> bytes:
    """Deeper than any parser goes."""
    return b"[" * 200_000


def of_another(value: bytes) -> bytes:
    """Copied from elsewhere: whole, and not about what its key says."""
    fields = json.loads(value)
    about = fields.get("plan", fields)
    return json.dumps(fields).replace(about["group"], "another").encode()


DAMAGES = [halved, without_a_field, of_another_type, nested, lambda _: b"\xff\xfe\x00"]


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        *itertools.product(["state", "window"], DAMAGES),
        ("state", of_another),
        ("window", of_another),
    ],
)
def test_a_damaged_record_stops_its_group_until_it_is_restored(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    kind: str,
    damage: Callable[[bytes], bytes],
) -> None:
    """Plan and commit name the record and change nothing; with the record put back they go on."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, kind, {"window": "open"}.get(kind, ""))
    value, headers = stored(bootstrap, place)[key]
    open_plan = begun.show("open").plan
    put(bootstrap, place, key, damage(value), headers)
    there = stored(bootstrap, place)
    calls: list[Callable[[OrderedWindows], Any]] = [
        lambda one: one.plan(before(orders, 25), "next"),
        lambda one: one.commit(open_plan),
    ]
    with service(bootstrap, begun.group, ledger) as cold:
        for one, call in itertools.product((begun, cold), calls):
            with pytest.raises(LedgerCorruptError) as caught:
                call(one)
            assert all(word in str(caught.value) for word in (begun.group, ledger, kind))
            assert not caught.value.retriable
    assert stored(bootstrap, place) == there
    assert committed_offset(begun, orders) == 1
    put(bootstrap, place, key, value, headers)
    begun.commit(open_plan)
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}


def test_parts_that_are_missing_are_damage(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """A record that says it has two parts, of which one is there; an open window that is gone."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, "window", "open")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, value, {**headers, "koo-parts": "2"})
    with pytest.raises(LedgerCorruptError, match="1 of 2 parts"):
        begun.plan(before(orders, 25), "next")
    put(bootstrap, place, key, None)
    with pytest.raises(LedgerCorruptError, match="lists window open as open"):
        begun.plan(before(orders, 25), "next")
    put(bootstrap, place, key, value, headers)
    assert begun.plan(before(orders, 12), "open").attempt == 2


def test_a_record_without_our_headers_is_damage_that_can_be_restored(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Written by a hand or a tool that copies values only; putting the record back is enough."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, "state", "")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, value)
    with service(bootstrap, begun.group, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises(LedgerCorruptError, match=begun.group):
                one.plan(before(orders, 25), "next")
    put(bootstrap, place, key, value, headers)
    with service(bootstrap, begun.group, ledger) as cold:
        for attempt, one in enumerate((begun, cold), start=2):
            assert one.plan(before(orders, 12), "open").attempt == attempt


def test_a_count_of_parts_that_cannot_be_costs_nothing(
    bootstrap: str, begun: OrderedWindows, ledger: str
) -> None:
    """A record that says it has a billion parts is damaged, and ends no process for want of memory."""
    headers: Headers = {"koo-generation": "99", "koo-parts": "1000000000000"}
    put(bootstrap, place_of(ledger, begun.group), key_of(begun.group, "state", ""), b"?", headers)
    with pytest.raises(LedgerCorruptError, match="parts"):
        begun.list()


@pytest.mark.parametrize("damage", [*DAMAGES, None])
def test_a_damaged_time_map_is_made_again(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    """It only saves reading: one that cannot be read, or that is about no partition, is left out."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, "times", f"{orders}[0]")
    value, headers = stored(bootstrap, place)[key]
    if damage is None:
        put(bootstrap, place, key_of(begun.group, "times", "garbage"), value, headers)
    else:
        put(bootstrap, place, key, damage(value), headers)
    with service(bootstrap, begun.group, ledger) as cold:
        begun.commit(cold.plan(before(orders, 12), "open"))
        rest = begun.plan(before(orders, 100), "rest")
        assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}
        assert cold.plan(before(orders, 100), "rest").taken == rest.taken


def test_a_damaged_open_window_can_be_abandoned(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """What it held is planned again, and nobody who still has its plan can commit that."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, "window", "open")
    value, headers = stored(bootstrap, place)[key]
    open_plan = begun.show("open").plan
    put(bootstrap, place, key, halved(value), headers)
    with service(bootstrap, begun.group, ledger) as cold:
        for one in (begun, cold):
            assert [record.plan.window_id for record in one.list()] == ["done"]
            assert list(one.summaries().unreadable) == ["open"]
            one.gaps()
            one.live(before(orders, 12))
        assert cold.abandon("open").status is WindowStatus.ABANDONED
        again = begun.plan(before(orders, 12), "open")
        assert again.taken == open_plan.taken
        with pytest.raises(WindowSupersededError):
            cold.commit(open_plan)
        cold.commit(again)
    assert key in stored(bootstrap, place)
    assert committed_offset(begun, orders) == 2


def test_an_open_window_that_the_state_does_not_know_cannot_commit(
    bootstrap: str, windows: OrderedWindows, orders: str, ledger: str
) -> None:
    """The state was removed before the first commit, and another window planned on: no offset comes twice."""
    first = windows.plan(before(orders, 12, Earliest()), "first")
    put(bootstrap, place_of(ledger, windows.group), key_of(windows.group, "state", ""), None)
    windows.commit(windows.plan(before(orders, 15, Earliest()), "second"))
    assert committed_offset(windows, orders) == 2
    with pytest.raises(LedgerCorruptError, match="first"):
        windows.commit(first)


def test_a_damaged_window_of_the_past_stops_only_the_looking_at_it(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Showing names it; lists leave it out, or say so; the group's next windows do not need it."""
    put(
        bootstrap,
        place_of(ledger, begun.group),
        key_of(begun.group, "window", "done"),
        b"?",
        {"koo-generation": "99", "koo-parts": "1"},
    )
    with pytest.raises(LedgerCorruptError, match="'done'"):
        begun.show("done")
    assert [record.plan.window_id for record in begun.list()] == ["open"]
    assert list(begun.summaries().unreadable) == ["done"]
    begun.commit(begun.plan(before(orders, 12), "open"))
    assert committed_offset(begun, orders) == 2


def test_damage_of_one_group_is_nothing_to_its_neighbours(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Another group in the same partition of the ledger plans and commits."""
    place = place_of(ledger, begun.group)
    put(
        bootstrap,
        place,
        key_of(begun.group, "state", ""),
        b"?",
        {"koo-generation": "99", "koo-parts": "1"},
    )
    names = (f"{begun.group}-{number}" for number in range(1_000))
    neighbour = next(name for name in names if place_of(ledger, name) == place)
    with service(bootstrap, neighbour, ledger) as other:
        other.commit(other.plan(before(orders, 12, Earliest()), "w"))
        assert committed_offset(other, orders) == 2


def test_a_state_that_was_removed_is_a_lost_ledger(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """The group's commits show that there was one: never the start bound again."""
    put(bootstrap, place_of(ledger, begun.group), key_of(begun.group, "state", ""), None)
    with service(bootstrap, begun.group, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises(LedgerLostError, match="new group"):
                one.plan(before(orders, 25, Earliest()), "next")


@pytest.mark.parametrize(
    ("kind", "name", "of_plan"),
    [
        ("state", "", False),
        ("window", "open", False),
        ("window", "open", True),
        ("window", "done", False),
    ],
)
def test_a_record_of_a_newer_version_asks_for_an_upgrade(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    kind: str,
    name: str,
    of_plan: bool,
) -> None:
    """An older package touches nothing; the window of the past is in the way only of those who look at it."""
    place = place_of(ledger, begun.group)
    key = key_of(begun.group, kind, name)
    value, headers = stored(bootstrap, place)[key]
    fields = json.loads(value)
    part = fields["plan"] if of_plan else fields
    part.update(version=part["version"] + 1, new=True)
    put(bootstrap, place, key, json.dumps(fields).encode(), headers)
    there = stored(bootstrap, place)
    calls: list[Callable[[OrderedWindows], Any]] = [OrderedWindows.list]
    if name != "done":
        calls += [
            lambda one: one.plan(before(orders, 25), "next"),
            lambda one: one.plan(before(orders, 12), "open"),
            lambda one: one.preview(before(orders, 25), "next"),
            lambda one: one.abandon("open"),
        ]
    with service(bootstrap, begun.group, ledger) as cold:
        for one, call in itertools.product((begun, cold), calls):
            with pytest.raises(LedgerVersionError, match=r"version 2.*[Uu]pgrade") as caught:
                call(one)
            assert all(word in str(caught.value) for word in (begun.group, ledger))
    assert stored(bootstrap, place) == there


# --- transactions of others -------------------------------------------------------------------------


def test_a_foreign_transaction_left_open_is_waited_for_and_then_named(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Another program's, in the group's partition: a bounded wait, an error to retry, and nothing stored."""
    open_plan = begun.show("open").plan
    place = place_of(ledger, begun.group)
    foreign = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"foreign-{ledger}"})
    foreign.init_transactions(TIMEOUT_S)
    foreign.begin_transaction()
    foreign.produce(ledger, key=b"k", value=b"v", partition=place.partition)
    assert foreign.flush(TIMEOUT_S) == 0
    with service(bootstrap, begun.group, ledger, _PATIENCE_S) as hasty:
        calls: list[Callable[[], Any]] = [
            lambda: hasty.plan(before(orders, 25), "next"),
            lambda: hasty.plan(before(orders, 12), "open"),
            lambda: hasty.commit(open_plan),
            hasty.list,
        ]
        for call in calls:
            with pytest.raises(LedgerUnavailableError, match="transaction of another") as caught:
                call()
            assert caught.value.retriable
    names = (f"{begun.group}-{number}" for number in range(1_000))
    elsewhere = next(name for name in names if place_of(ledger, name) != place)
    with service(bootstrap, elsewhere, ledger) as other:
        other.commit(other.plan(before(orders, 12, Earliest()), "w"))
    # With the usual patience the same calls wait, and go on when it ends.
    timer = threading.Timer(1.5, foreign.abort_transaction)
    timer.start()
    begun.commit(open_plan)
    timer.join()
    assert begun.plan(before(orders, 12), "open").status is WindowStatus.COMMITTED
    assert committed_offset(begun, orders) == 2


def committed_offset(windows: OrderedWindows, topic: str) -> int | None:
    """The group's committed offset on partition 0."""
    tp = core.TopicPartition(topic, 0)
    found = read_committed_offsets(windows.settings, windows.group, [tp], timeout_s=TIMEOUT_S)[tp]
    return None if found is None else found.offset
