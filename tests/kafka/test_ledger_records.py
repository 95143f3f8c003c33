"""What lies in the ledger besides our own healthy records: foreign, newer, left open."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import Earliest, LedgerUnavailableError, LedgerVersionError
from kafka_ordered_ops.core.group.ledger_rules import ledger_partition
from kafka_ordered_ops.core.types import Isolation, WindowStatus
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.ledger import log
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.read.taking import Taking
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.examples import examples
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
from tests.support.windows_support import TIMEOUT_S, before

#: What `plan` and `commit` may wait for, where something keeps them from the ledger.
_PATIENCE_S = 3.0

# --- foreign records --------------------------------------------------------------------------------

scalar = st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=3)
word = st.sampled_from(["GROUP", "state", "window", "times", "done", ""])
foreign_key = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from([b"[" * 100_000, b'["GROUP","state","",' + b"9" * 5_000 + b"]"]),
    st.lists(word | scalar, max_size=6).map(lambda parts: json.dumps(parts).encode()),
)
ours_like = st.just({"koo-generation": "7", "koo-parts": "1"})


@pytest.mark.long
@settings(
    max_examples=examples(6),
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
    place = place_of(ledger, windows.group_id)
    for key, value, headers in records:
        key = key.replace(b"GROUP", windows.group_id.encode())
        if not is_ours(key, windows.group_id):
            put(bootstrap, place, key, value, headers)
    assert (windows.list(), windows.state()) == expected
    with service(bootstrap, windows.group_id, ledger) as cold:
        assert (cold.list(), cold.state()) == expected
        assert cold.commit(cold.plan(window, "done")).status is WindowStatus.COMMITTED


def is_ours(key: bytes, group_id: str) -> bool:
    """Whether a key has the form of one of this group's."""
    try:
        parts = json.loads(key)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(parts, list)
        and [type(part) for part in parts] == [str, str, str, int]
        and parts[0] == group_id
    )


# --- records of newer versions ----------------------------------------------------------------------


@pytest.mark.slow
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
    place = place_of(ledger, begun.group_id)
    key = key_of(begun.group_id, kind, name)
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
    with service(bootstrap, begun.group_id, ledger) as cold:
        for one, call in itertools.product((begun, cold), calls):
            with pytest.raises(LedgerVersionError, match=r"version 2.*[Uu]pgrade") as caught:
                call(one)
            assert all(word in str(caught.value) for word in (begun.group_id, ledger))
    assert stored(bootstrap, place) == there


# --- transactions of others -------------------------------------------------------------------------


@pytest.mark.long
def test_a_foreign_transaction_left_open_is_waited_for_and_then_named(
    bootstrap: str, begun: OrderedWindows, orders: str, ledger: str
) -> None:
    """Another program's, in the group's partition: a bounded wait, an error to retry, and nothing stored."""
    open_plan = begun.show("open").plan
    place = place_of(ledger, begun.group_id)
    foreign = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"foreign-{ledger}"})
    foreign.init_transactions(TIMEOUT_S)
    foreign.begin_transaction()
    foreign.produce(ledger, key=b"k", value=b"v", partition=place.partition)
    assert foreign.flush(TIMEOUT_S) == 0
    with service(bootstrap, begun.group_id, ledger, _PATIENCE_S) as hasty:
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
    names = (f"{begun.group_id}-{number}" for number in range(1_000))
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


# --- too many records -------------------------------------------------------------------------------


def test_a_ledger_that_is_too_large_for_the_time_says_how_much_was_read(
    begun: OrderedWindows, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other transaction is to blame: the error has the offsets and their rate, and a retry continues there."""
    monkeypatch.setattr(log, "_CONSUME_RECORDS", 1)
    group_id, where = begun.group_id, ledger_partition(ledger, begun.group_id)
    config = begun.settings.consumer(group_id=group_id, isolation=Isolation.READ_COMMITTED)
    with Lookup(begun.settings) as lookup:
        end = lookup.end_offsets([where], Isolation.READ_UNCOMMITTED)[where]
    take = Taking.take

    def patient(taking: Taking, consumer: Consumer) -> list[Message]:
        # The read is judged by how long ago its last progress was, compared with all of it: a pause between two lines is nothing.
        time.sleep(0.5)
        while not (messages := take(taking, consumer)):
            pass
        return messages

    opened = partial(Consumer, config)
    with closing(
        log.LedgerLog(where, group_id, opened, FaultReasons(frozenset()), config=config)
    ) as found:
        told = (
            rf"too large to be read .* 1 of {end} offsets .* from 0 up to 1 of {end}\. .*[Pp]rune"
        )
        with monkeypatch.context() as patch:
            patch.setattr(Taking, "take", patient)
            with pytest.raises(LedgerUnavailableError, match=told):
                found.read_to(end, log_start=0, deadline=time.monotonic())
        found.read_to(end, log_start=0, deadline=time.monotonic() + TIMEOUT_S)
        assert found.position == end
