"""Turns of processes that change one group at once: who goes first, and what the dead leave."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_ordered_ops import ClientSettings
from kafka_ordered_ops.core.group.ledger.records import RecordName, record_key
from kafka_ordered_ops.kafka.ledger import queue
from kafka_ordered_ops.kafka.ledger.ledger import Ledger
from kafka_ordered_ops.kafka.ledger.queue import COMMITS, PLANS, Line, Place, Tickets
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import Lookup
from tests.support.stored_text import garbage

WAIT_S = 60.0

#: Old enough to be taken for that of a dead process, and to be removed.
LONG_AGO_S = 3_600


def ticket(line: Line, offset: int, name: str, rank: int | None, *, age_s: float = 0) -> bool:
    """Writes a ticket into a line, or takes it back; whether the line took it for one."""
    key = record_key("group", RecordName("turn", name), 0)
    value = None if rank is None else str(rank).encode()
    return line.take(offset, key, value, int((time.time() - age_s) * 1000))


def names() -> st.SearchStrategy[str]:
    """Some holders."""
    return st.sampled_from(["a", "b", "c", "d"])


@given(st.lists(st.tuples(names(), st.sampled_from([-1, 0, 1, None])), max_size=20))
def test_a_line_goes_by_rank_and_then_by_who_was_first(
    said: list[tuple[str, int | None]],
) -> None:
    """Whatever holders say in whatever order: equal to a list kept by hand."""
    line = Line("group")
    drawn: dict[str, tuple[int, int]] = {}
    for offset, (name, rank) in enumerate(said):
        assert ticket(line, offset, name, rank)
        if rank is None:
            drawn.pop(name, None)
        else:
            drawn[name] = rank, drawn.get(name, (0, offset))[1]
    in_order = sorted(drawn, key=lambda name: drawn[name])
    assert [line.ahead_of(name) for name in in_order] == list(range(len(in_order)))
    assert line.ahead_of(None) == len(in_order)


def test_the_silent_are_passed_over_and_later_removed() -> None:
    """A killed holder's ticket counts for seconds only, and nothing else in the ledger is a ticket."""
    line = Line("group")
    ticket(line, 0, "dead", PLANS, age_s=LONG_AGO_S)
    ticket(line, 1, "alive", PLANS)
    assert line.ahead_of("alive") == 0
    assert line.dead() == ["dead"]
    for key in (b"", b'"turn"', b'["group", "state", "\\"turn\\"", 0]', b'[1, "turn"]'):
        assert not line.take(2, key, b"0", 0)
    other = record_key("other group", RecordName("turn", "x"), 0)
    assert line.take(3, other, b"-1", int(time.time() * 1000))
    assert line.ahead_of("alive") == 0


@pytest.fixture
def look(bootstrap: str, group_id: str) -> Callable[[], Callable[[], Line]]:
    """Makes readers of the line on the real ledger, one for each thread."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})

    def make() -> Callable[[], Line]:
        ledger = Ledger(settings, Lookup(settings), timeout_s=WAIT_S)
        ledger._topic.open(create=True)
        return lambda: ledger._look(group_id)

    return make


@pytest.mark.slow
def test_waiting_commits_go_before_waiting_plans(
    bootstrap: str,
    group_id: str,
    look: Callable[[], Callable[[], Line]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody overtakes the one that is at it; then commits, then plans, each in the order they came."""
    # However slow the machine is.
    monkeypatch.setattr(queue, "_LIVE_S", WAIT_S)
    monkeypatch.setattr(queue, "_TURN_MAX_S", WAIT_S)
    monkeypatch.setattr(queue, "_UNSEEN_MAX_S", WAIT_S)
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    lookup = Lookup(settings)
    ledger = Ledger(settings, lookup)
    ledger._topic.open(create=True)
    where = ledger._topic.partition_of(group_id)
    assert where.topic == LEDGER_TOPIC
    deadline = time.monotonic() + WAIT_S
    served: list[str] = []

    def change(name: str, rank: int, looking: Callable[[], Line]) -> None:
        with Place(Tickets(settings), where, group_id, rank) as place:
            place.wait(looking, contended=True, deadline=deadline)
            served.append(name)
            time.sleep(0.2)

    watch = look()
    threads = []
    with Place(Tickets(settings), where, group_id, PLANS) as first:
        first.wait(watch, contended=True, deadline=deadline)
        waiting = [
            ("plan 1", PLANS),
            ("plan 2", PLANS),
            ("commit 1", COMMITS),
            ("commit 2", COMMITS),
        ]
        for number, (name, rank) in enumerate(waiting, start=1):
            thread = threading.Thread(target=change, args=(name, rank, look()))
            thread.start()
            threads.append(thread)
            while watch().ahead_of(None) < number + 1:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        assert served == []
    for thread in threads:
        thread.join(WAIT_S)
    assert served == ["commit 1", "commit 2", "plan 1", "plan 2"]
    # Everybody took their ticket back.
    assert watch().ahead_of(None) == 0


def test_nobody_waits_who_is_alone(
    bootstrap: str, group_id: str, look: Callable[[], Callable[[], Line]]
) -> None:
    """Without others no ticket is drawn, and nothing is written."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    looking, tickets = look(), Tickets(settings)
    where = Ledger(settings, Lookup(settings))._topic.partition_of(group_id)
    with Place(tickets, where, group_id, PLANS) as place:
        place.wait(looking, contended=False, deadline=time.monotonic() + WAIT_S)
        assert looking().ahead_of(None) == 0
        assert tickets._producer is None


@given(garbage, st.none() | garbage | st.sampled_from([b"9" * 5_000, b"-2", b"1", b" 1", b"1_0"]))
def test_any_record_is_a_ticket_or_none(key: bytes, value: bytes | None) -> None:
    """Whatever other programs write: no error, and nothing that could not be taken back by its name."""
    line = Line("group")
    for written in (key, b'["group","turn",' + key, b'["group","turn","x",0]'):
        line.take(0, written, value, 10**15)
    assert all(name.isprintable() for name in line.dead())
    assert line.ahead_of(None) in (0, 1)


@pytest.mark.slow
def test_tickets_are_bounded() -> None:
    """A flood of them takes no memory without an end."""
    line = Line("group")
    for number in range(20_000):
        ticket(line, number, f"n{number}", PLANS)
    assert line.ahead_of(None) == 10_000
