"""No number that stands for "none" passes for a fact: it is asked again, and is an error in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    Earliest,
    LedgerUnavailableError,
    Window,
)
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client import answers, librdkafka
from kafka_ordered_ops.kafka.facts.time_index import first_at_or_after
from kafka_ordered_ops.kafka.ledger.topic import LEDGER_TOPIC
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.offsets.committed_offsets import read_committed_offsets
from kafka_ordered_ops.windows import OrderedWindows
from kafka_ordered_ops.windows.queries.topics import topic_ends
from tests.conftest import MakeTopic, Produce
from tests.support.logs import read_plan
from tests.support.windows_support import BASE_MS, at, before, delete_before

EARLIEST, LATEST, GREATEST, BY_TIME = (
    "EarliestSpec",
    "LatestSpec",
    "MaxTimestampSpec",
    "TimestampSpec",
)
COMMITTED, UNCOMMITTED = Isolation.READ_COMMITTED, Isolation.READ_UNCOMMITTED
ALWAYS = 1_000_000
RECORDS = 20


@pytest.fixture
def orders(topic: MakeTopic, produce: Produce) -> str:
    """Two partitions of ten records each, one record a second."""
    name = topic(partitions=2)
    produce([(name, i % 2, None, b"x", BASE_MS + i * 1000, ()) for i in range(RECORDS)])
    return name


@pytest.mark.parametrize(
    ("fact", "good", "bad"),
    [
        (answers.offset, {0: 0, 7: 7}, [-1, -2, -1000, -1001]),
        (answers.offset_by_time, {0: 0, -1: None}, [-2, -3, -1001]),
        (answers.committed_offset, {0: 0, -1001: None}, [-1, -2, -1000]),
        (answers.text_id, {"x": "x"}, [None, "", "A" * 22, "A" * 22 + "=="]),
    ],
)
def test_what_is_a_fact(
    fact: Callable[[Any], object], good: dict[Any, object], bad: list[Any]
) -> None:
    """Each kind of answer knows its own "none", and takes no other."""
    assert {number: fact(number) for number in good} == good
    for number in bad:
        with pytest.raises(answers.NoAnswerError):
            fact(number)


@contextmanager
def answering(number: int, kind: str, topic: str, *, times: int = ALWAYS) -> Iterator[None]:
    """Inside the block the client's first `times` answers of a kind about partition 1 are this number.

    Each is a success, as librdkafka gives it for a partition whose leader died. That cannot be made to happen on
    one broker.
    """
    real, left = AdminClient.list_offsets, times

    def list_offsets(self: AdminClient, asked: Any, **options: Any) -> Any:
        nonlocal left
        found = dict(real(self, asked, **options))
        for tp, spec in asked.items():
            if left and (tp.topic, tp.partition) == (topic, 1) and type(spec).__name__ == kind:
                left -= 1
                bad: Future[Any] = Future()
                bad.set_result(SimpleNamespace(offset=number, timestamp=-1, leader_epoch=None))
                found[tp] = bad
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdminClient, "list_offsets", list_offsets)
        yield
    assert left < times, "nothing was answered like that"


#: What is asked about the second partition, by kind of question, with the true answer.
QUESTIONS: dict[str, tuple[Callable[[Lookup, list[TopicPartition]], Any], Any]] = {
    EARLIEST: (lambda lookup, every: lookup.log_starts(every)[every[1]], 0),
    LATEST: (lambda lookup, every: lookup.end_offsets(every, COMMITTED)[every[1]], 10),
    GREATEST: (
        lambda lookup, every: lookup.greatest_timestamps(every)[every[1]],
        BASE_MS + 19_000,
    ),
    BY_TIME: (
        lambda lookup, every: lookup.first_at_or_after(every, BASE_MS + 11_000, COMMITTED)[
            every[1]
        ],
        5,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize("number", [-1001, -1000, -2, -7])
def test_a_number_that_is_no_offset_is_asked_again(
    bootstrap: str, orders: str, kind: str, number: int
) -> None:
    """Twice no answer, then the true one; always none is an error that says so, within its time."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    ask, truth = QUESTIONS[kind]
    every = [TopicPartition(orders, 0), TopicPartition(orders, 1)]
    with Lookup(settings) as lookup, answering(number, kind, orders, times=2):
        assert ask(lookup, every) == truth
    with (
        Lookup(settings, timeout_s=0.5) as lookup,
        answering(number, kind, orders),
        pytest.raises(BrokerUnreachableError, match=rf"{number} is not an offset") as caught,
    ):
        ask(lookup, every)
    assert (caught.value.retriable, caught.value.code) == (True, "OFFSET_NOT_AVAILABLE")
    assert f"{orders}[1]" in str(caught.value)


@pytest.mark.parametrize("kind", [EARLIEST, LATEST])
def test_no_record_is_no_answer_to_where_a_log_begins_or_ends(
    bootstrap: str, orders: str, kind: str
) -> None:
    """Only a question by time may be answered with -1."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    ask, truth = QUESTIONS[kind]
    every = [TopicPartition(orders, 0), TopicPartition(orders, 1)]
    with Lookup(settings) as lookup, answering(-1, kind, orders, times=2):
        assert ask(lookup, every) == truth


@pytest.mark.long
@pytest.mark.parametrize("kind", [EARLIEST, LATEST, BY_TIME])
def test_a_plan_is_whole_or_an_error(bootstrap: str, orders: str, group_id: str, kind: str) -> None:
    """With answers that are none for a while the window holds every record; for ever, nothing is planned."""
    window = before(orders, 12, Earliest())
    with (
        OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=8.0) as windows,
        answering(-1001, kind, orders),
        pytest.raises(BrokerUnreachableError),
    ):
        windows.plan(window, "w")
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:
        assert windows.list() == []
        with answering(-1001, kind, orders, times=3):
            plan = windows.plan(window, "w")
        assert len(read_plan(windows.settings, plan)) == 12
        windows.commit(plan)
        rest = windows.plan(before(orders, RECORDS), "rest")
        assert sum(one.count for one in rest.taken.values()) == RECORDS - 12


@pytest.mark.long
def test_an_end_below_the_start_is_no_empty_log(bootstrap: str, orders: str, group_id: str) -> None:
    """Two answers about different states of a log: both are asked again."""
    delete_before(bootstrap, orders, 4, partition=1)
    window = before(orders, RECORDS, Earliest())
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=8.0) as windows:
        with (
            answering(3, LATEST, orders),
            pytest.raises(BrokerUnreachableError, match="its readable end is 3"),
        ):
            windows.plan(window, "w")
        with answering(3, LATEST, orders, times=2):
            plan = windows.plan(window, "w")
    assert plan.taken[TopicPartition(orders, 1)].ranges == [(4, 10)]


def test_the_index_points_into_the_log(bootstrap: str, orders: str) -> None:
    """An answer below the start of the log is asked again, and an error in the end."""
    delete_before(bootstrap, orders, 4, partition=1)
    tp, time_ms = TopicPartition(orders, 1), BASE_MS + 15_000
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    with Lookup(settings) as lookup, answering(2, BY_TIME, orders, times=2):
        assert first_at_or_after(lookup, {tp: 4}, [time_ms])[time_ms][tp].offset == 7


@pytest.mark.long
def test_adopting_does_not_take_silence_for_a_log_that_was_cut(
    bootstrap: str, orders: str, group_id: str
) -> None:
    """Neither what a leaderless partition answers, nor an end below its start, rewinds what is committed."""
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=8.0) as windows:
        windows.commit(windows.plan(before(orders, RECORDS, Earliest()), "w"))
        delete_before(bootstrap, orders, 4, partition=1)
        for number, times in ((-1001, 2), (-1001, ALWAYS), (3, ALWAYS)):
            for dry_run in (True, False):
                with answering(number, LATEST, orders, times=times):
                    if times == ALWAYS:
                        with pytest.raises(BrokerUnreachableError):
                            windows.adopt(dry_run=dry_run)
                    else:
                        assert not windows.adopt(dry_run=dry_run)
        assert windows.show("w").status.is_done


@pytest.mark.parametrize("kind", [EARLIEST, LATEST, GREATEST, BY_TIME])
def test_looking_sees_no_silence_either(
    bootstrap: str, orders: str, group_id: str, kind: str
) -> None:
    """Liveness and the ends that hosts show: the same answers as without the fault."""
    window = Window([orders], at(30), starting_offsets=Earliest())
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows:

        def looks() -> tuple[Any, ...]:
            found = windows.live(window, grace=timedelta(seconds=1))
            ends = topic_ends(windows.settings, [orders])[orders].partitions
            return [(one.tp, one.state) for one in found.partitions], ends

        truth = looks()
        with answering(-1001, kind, orders, times=3):
            assert looks() == truth


def test_a_look_up_without_time_is_right_or_an_error(bootstrap: str, orders: str) -> None:
    """The client's own answer where it runs out of time is a success with -1001, which is never returned."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    every = [TopicPartition(orders, 0), TopicPartition(orders, 1)]
    for _ in range(20):
        # A new client each time: one that knows the leader may be quick enough.
        with Lookup(settings, timeout_s=0.001) as lookup, suppress(BrokerUnreachableError):
            assert lookup.end_offsets(every, COMMITTED) == dict.fromkeys(every, 10)


@pytest.mark.parametrize("offset", [None, -1, -5])
def test_a_group_has_committed_nothing_only_where_the_broker_says_so(
    bootstrap: str, orders: str, group_id: str, offset: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that leaves a partition out, or holds a negative offset, is asked again, and an error in the end."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    tp, library = TopicPartition(orders, 0), librdkafka.library()
    assert read_committed_offsets(settings, group_id, [tp]) == {tp: None}
    real, left = library.rd_kafka_committed, 2

    def committed(handle: int, partitions: Any, timeout_ms: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            return int(real(handle, partitions, timeout_ms))
        if offset is not None:
            partitions.contents.elems[0].offset = offset
        return 0

    monkeypatch.setattr(library, "rd_kafka_committed", committed)
    assert read_committed_offsets(settings, group_id, [tp]) == {tp: None}
    assert left == -1
    left = ALWAYS
    with pytest.raises(LedgerUnavailableError):
        read_committed_offsets(settings, group_id, [tp], timeout_s=1.0)


@pytest.mark.long
def test_a_ledger_that_ends_before_what_was_read_is_asked_again(
    bootstrap: str, orders: str, group_id: str
) -> None:
    """A new leader may not know all of it yet: progress that was read is not read as less, or as up to date."""
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=8.0) as windows:
        windows.commit(windows.plan(before(orders, RECORDS, Earliest()), "w"))
        real, left = Lookup.end_offsets, 2

        def end_offsets(self: Lookup, partitions: Any, isolation: Isolation) -> Any:
            nonlocal left
            found = real(self, partitions, isolation)
            if left and all(tp.topic == LEDGER_TOPIC for tp in partitions):
                left -= 1
                return dict.fromkeys(found, 1)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Lookup, "end_offsets", end_offsets)
            assert windows.show("w").status.is_done
            assert left == 0
            left = ALWAYS
            with pytest.raises(LedgerUnavailableError, match=r"hold offsets \[\d+, 1\)"):
                windows.show("w")
