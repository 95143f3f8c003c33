"""Records of ours in the ledger that are damaged or gone: named, costing nothing else, and able to be restored."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from kafka_ordered_ops import Earliest, LedgerCorruptError, LedgerLostError, WindowSupersededError
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.ledger_support import (
    Headers,
    committed_offset,
    key_of,
    place_of,
    put,
    service,
    stored,
)
from tests.support.ledger_support import begun as begun
from tests.support.ledger_support import ledger as ledger
from tests.support.ledger_support import windows as windows
from tests.support.logs import read_plan
from tests.support.windows_support import before, offsets_of


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


@pytest.mark.long
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
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, kind, {"window": "open"}.get(kind, ""))
    value, headers = stored(bootstrap, place)[key]
    open_plan = begun.show("open").plan
    put(bootstrap, place, key, damage(value), headers)
    there = stored(bootstrap, place)
    calls: list[Callable[[OrderedWindows], Any]] = [
        lambda one: one.plan(before(orders, 25), "next"),
        lambda one: one.commit(open_plan),
    ]
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one, call in itertools.product((begun, cold), calls):
            with pytest.raises(LedgerCorruptError) as caught:
                call(one)
            assert all(word in str(caught.value) for word in (begun.group_id, ledger, kind))
            assert not caught.value.retriable
    assert stored(bootstrap, place) == there
    assert committed_offset(begun, orders) == 1
    put(bootstrap, place, key, value, headers)
    begun.commit(open_plan)
    rest = begun.plan(before(orders, 100), "rest")
    assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}


@pytest.mark.slow
def test_parts_that_are_missing_are_damage(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """A record that says it has two parts, of which one is there; an open window that is gone."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "window", "open")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, value, {**headers, "koo-parts": "2"})
    with pytest.raises(LedgerCorruptError, match="1 of 2 parts"):
        begun.plan(before(orders, 25), "next")
    put(bootstrap, place, key, None)
    with pytest.raises(LedgerCorruptError, match="lists window open as open"):
        begun.plan(before(orders, 25), "next")
    put(bootstrap, place, key, value, headers)
    assert begun.plan(before(orders, 12), "open").attempt == 2


@pytest.mark.slow
def test_a_record_without_our_headers_is_damage_that_can_be_restored(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Written by a hand or a tool that copies values only; putting the record back is enough."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "state", "")
    value, headers = stored(bootstrap, place)[key]
    put(bootstrap, place, key, value)
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises(LedgerCorruptError, match=begun.group_id):
                one.plan(before(orders, 25), "next")
    put(bootstrap, place, key, value, headers)
    with service(bootstrap, begun.group_id, ledger) as cold:
        for attempt, one in enumerate((begun, cold), start=2):
            assert one.plan(before(orders, 12), "open").attempt == attempt


def test_a_count_of_parts_that_cannot_be_costs_nothing(
    bootstrap: str, begun: OrderedWindows, ledger: str
) -> None:
    """A record that says it has a billion parts is damaged, and ends no process for want of memory."""
    headers: Headers = {"koo-generation": "99", "koo-parts": "1000000000000"}
    put(
        bootstrap,
        place_of(ledger, begun.group_id),
        key_of(begun.group_id, "state", ""),
        b"?",
        headers,
    )
    with pytest.raises(LedgerCorruptError, match="parts"):
        begun.list()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [*DAMAGES, None])
def test_a_damaged_time_map_is_made_again(
    bootstrap: str,
    begun: OrderedWindows,
    orders: str,
    ledger: str,
    damage: Callable[[bytes], bytes] | None,
) -> None:
    """It only saves reading: one that cannot be read, or that is about no partition, is left out."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "times", f"{orders}[0]")
    value, headers = stored(bootstrap, place)[key]
    if damage is None:
        put(bootstrap, place, key_of(begun.group_id, "times", "garbage"), value, headers)
    else:
        put(bootstrap, place, key, damage(value), headers)
    with service(bootstrap, begun.group_id, ledger) as cold:
        begun.commit(cold.plan(before(orders, 12), "open"))
        rest = begun.plan(before(orders, 100), "rest")
        assert offsets_of(read_plan(begun.settings, rest)) == {2, 4, 5}
        assert cold.plan(before(orders, 100), "rest").taken == rest.taken


@pytest.mark.slow
def test_a_damaged_open_window_can_be_abandoned(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """What it held is planned again, and nobody who still has its plan can commit that."""
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, "window", "open")
    value, headers = stored(bootstrap, place)[key]
    open_plan = begun.show("open").plan
    put(bootstrap, place, key, halved(value), headers)
    with service(bootstrap, begun.group_id, ledger) as cold:
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


@pytest.mark.slow
def test_an_open_window_that_the_state_does_not_know_cannot_commit(
    bootstrap: str, windows: OrderedWindows, orders: str, ledger: str
) -> None:
    """The state was removed before the first commit, and another window planned on: no offset comes twice."""
    first = windows.plan(before(orders, 12, Earliest()), "first")
    put(bootstrap, place_of(ledger, windows.group_id), key_of(windows.group_id, "state", ""), None)
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
        place_of(ledger, begun.group_id),
        key_of(begun.group_id, "window", "done"),
        b"?",
        {"koo-generation": "99", "koo-parts": "1"},
    )
    with pytest.raises(LedgerCorruptError, match="'done'"):
        begun.show("done")
    assert [record.plan.window_id for record in begun.list()] == ["open"]
    assert list(begun.summaries().unreadable) == ["done"]
    begun.commit(begun.plan(before(orders, 12), "open"))
    assert committed_offset(begun, orders) == 2


@pytest.mark.slow
def test_damage_of_one_group_is_nothing_to_its_neighbours(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Another group in the same partition of the ledger plans and commits."""
    place = place_of(ledger, begun.group_id)
    put(
        bootstrap,
        place,
        key_of(begun.group_id, "state", ""),
        b"?",
        {"koo-generation": "99", "koo-parts": "1"},
    )
    names = (f"{begun.group_id}-{number}" for number in range(1_000))
    neighbour = next(name for name in names if place_of(ledger, name) == place)
    with service(bootstrap, neighbour, ledger) as other:
        other.commit(other.plan(before(orders, 12, Earliest()), "w"))
        assert committed_offset(other, orders) == 2


@pytest.mark.slow
def test_a_state_that_was_removed_is_a_lost_ledger(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """The group's commits show that there was one: never the starting offsets again."""
    put(bootstrap, place_of(ledger, begun.group_id), key_of(begun.group_id, "state", ""), None)
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one in (begun, cold):
            with pytest.raises(LedgerLostError, match="new group"):
                one.plan(before(orders, 25, Earliest()), "next")
