"""What the errors about a ledger that others wrote to say to do, done: the group goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import Committed, LedgerCorruptError, LedgerLostError
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset
from kafka_ordered_ops.core.group.ledger_rules import topic_id_bytes
from kafka_ordered_ops.core.offset_map.ours import OffsetMap, encode_offset_map
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.outside_commits import OutsideCommits
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.ledger_support import begun as begun
from tests.support.ledger_support import committed_offset, key_of, place_of, put, service, stored
from tests.support.ledger_support import ledger as ledger
from tests.support.ledger_support import windows as windows
from tests.support.logs import read_plan
from tests.support.windows_support import TIMEOUT_S, before, offsets_of


def forged(
    windows: OrderedWindows,
    topic: str,
    ledger: str,
    offset: int,
    *,
    sequence: int,
    beyond: OffsetSet = EMPTY_SET,
    another_ledger: bool = False,
) -> None:
    """Another program commits an offset with a map in this package's format, its checksum right."""
    with Lookup(windows.settings, timeout_s=TIMEOUT_S) as lookup:
        ids = {name: facts.topic_id for name, facts in lookup.topics([topic, ledger]).items()}
    made = OffsetMap(
        topic_id=topic_id_bytes(ids[topic]),
        ledger_id=b"x" * 16 if another_ledger else topic_id_bytes(ids[ledger]),
        sequence=sequence,
        base=offset,
        beyond=beyond,
    )
    with OutsideCommits(windows.settings, windows.group_id) as commits:
        commits.commit(
            {TopicPartition(topic, 0): CommittedOffset(offset, encode_offset_map(made))},
            timeout_s=TIMEOUT_S,
        )


@pytest.mark.parametrize("sequence", [2**64 - 1, 10**6])
@pytest.mark.parametrize("another_ledger", [False, True])
def test_a_forged_commit_is_healed_by_adopting(
    begun: OrderedWindows, orders: str, ledger: str, sequence: int, another_ledger: bool
) -> None:
    """The offset is the group's own: nothing moves, the commit is written again, and windows go on."""
    forged(begun, orders, ledger, 1, sequence=sequence, another_ledger=another_ledger)
    calls: list[Callable[[], Any]] = [
        lambda: begun.plan(before(orders, 25), "next"),
        lambda: begun.commit(begun.show("open").plan),
    ]
    for call in calls:
        with pytest.raises(LedgerLostError, match="`windows adopt`"):
            call()
    foreseen = begun.adopt(dry_run=True)
    adopted = begun.adopt()
    assert adopted == foreseen
    assert [(one.cause.value, one.base_before, one.base_after) for one in adopted.moved] == [
        ("unknown state", 1, 1)
    ]
    assert not begun.adopt()
    begun.commit(begun.show("open").plan)
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}


@pytest.mark.parametrize(
    ("offset", "beyond", "left"),
    [
        (4, EMPTY_SET, {4, 5}),
        (1, OffsetSet.of((2, 3)), {1, 3, 4, 5}),
        (0, EMPTY_SET, {0, 1, 2, 3, 4, 5}),
        # A map that reaches past the end of the log says nothing.
        (1, OffsetSet.of((2, 10**6)), {1, 2, 3, 4, 5}),
    ],
)
def test_a_commit_of_a_state_that_the_ledger_lost_is_the_progress_once_adopted(
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    offset: int,
    beyond: OffsetSet,
    left: set[int],
) -> None:
    """As after a restored ledger: what the commit and its map have done is done, and no more."""
    begun.abandon("open")
    forged(begun, orders, ledger, offset, sequence=99, beyond=beyond)
    begun.adopt()
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == left


def test_a_reset_heals_a_forged_commit_too(begun: OrderedWindows, orders: str, ledger: str) -> None:
    """Offsets of a person's choice need no adoption before."""
    begun.abandon("open")
    forged(begun, orders, ledger, 3, sequence=2**63)
    begun.reset_offsets("offset:5")
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == {5}


def damaged(value: bytes) -> bytes:
    """Cut in the middle."""
    return value[: len(value) // 2]


def of_no_sequence(value: bytes) -> bytes:
    """A sequence that no group reaches."""
    return re.sub(rb'"sequence":\d+', b'"sequence":%d' % 2**62, value)


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damaged, of_no_sequence, lambda _: b"[" * 100_000])
def test_an_unreadable_state_is_removed_by_a_reset(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    damage: Callable[[bytes], bytes],
) -> None:
    """The error names the command; after it the group goes on from its committed offsets, and nothing is left."""
    place, key = place_of(ledger, begun.group_id), key_of(begun.group_id, "state", "")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, damage(value), headers)
    cure = rf"`offsets reset --group {begun.group_id} --topic TOPIC --to committed`"
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises(LedgerCorruptError, match=cure):
                one.plan(before(orders, 25), "next")
        shown = cold.reset_offsets("committed", topics=orders, dry_run=True)
        assert key in stored(bootstrap, place)
        done = cold.reset_offsets("committed", topics=orders)
        assert done == shown
    assert not [one for one in stored(bootstrap, place) if begun.group_id.encode() in one]
    assert committed_offset(begun, orders) == 1
    for one in (begun, service(bootstrap, begun.group_id, ledger)):
        with one:
            rest = one.plan(before(orders, 100, Committed()), "rest")
            assert offsets_of(read_plan(begun.settings, rest)) == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_a_time_map_of_an_impossible_partition_is_removed_by_the_next_change(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """It costs no command anything: windows are listed, planned and committed, and the record goes."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "times", f"{orders}[{'9' * 5_000}]")
    put(bootstrap, place, key, b'{"x":1}', {"koo-generation": "99", "koo-parts": "1"})
    with service(bootstrap, begun.group_id, ledger) as cold:
        assert [one.window_id for one in cold.summaries().windows] == ["done", "open"]
        assert key in stored(bootstrap, place)
        cold.plan(before(orders, 25), "next")
    assert key not in stored(bootstrap, place)


def test_headers_that_are_not_text_are_damage_with_a_cure(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """The client itself fails on such a header; the window is named, and abandoning removes it."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "window", "open")
    value, _ = stored(bootstrap, place)[key]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        place.topic,
        key=key,
        value=value,
        headers=cast("Any", [(b"\xff\xfe", b"1")]),
        partition=place.partition,
    )
    assert producer.flush(TIMEOUT_S) == 0
    with service(bootstrap, begun.group_id, ledger) as cold:
        with pytest.raises(LedgerCorruptError, match="abandon the window"):
            cold.plan(before(orders, 25), "next")
        cold.abandon("open")
        rest = cold.plan(before(orders, 100), "rest")
        assert offsets_of(read_plan(cold.settings, rest)) == {1, 2, 3, 4, 5}
