"""Liveness on real logs: what makes a partition live, what only seems to, and waiting for it."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings, Window
from kafka_ordered_ops.core.liveness.live_search import Stamp
from kafka_ordered_ops.core.liveness.liveness import (
    GraceRunning,
    Idle,
    Live,
    Liveness,
    NothingYet,
    OnlyFuture,
    TransactionOpen,
    Undecided,
    Verdict,
)
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows.queries.live import check_live
from tests.conftest import MakeTopic, Produce
from tests.support.logs import LogWriter, visible_records
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before, delete_before

#: The clock of most tests: ten minutes after the records.
NOW_S = 600
#: 2100-01-01, as seconds of the tests' time.
FAR_S = (4_102_444_800_000 - BASE_MS) // 1000
#: Brokers refuse times far ahead, unless told otherwise.
ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1)}


@dataclass(frozen=True)
class Cluster:
    """A cluster that is looked at."""

    settings: ClientSettings
    lookup: Lookup

    def look(
        self,
        window: Window,
        *,
        grace_s: float | None = None,
        now_s: float = NOW_S,
        seen: Liveness | None = None,
        offsets_max: int = 1_000,
    ) -> Liveness:
        """One look, at a chosen time."""
        return check_live(
            self.lookup,
            self.settings,
            None,
            window,
            grace=None if grace_s is None else timedelta(seconds=grace_s),
            now_ms=BASE_MS + int(now_s * 1000),
            before=seen,
            offsets_max=offsets_max,
        )

    def verdict(self, window: Window, **how: float) -> Verdict:
        """The verdict on the only partition."""
        [one] = self.look(window, **how).partitions  # type: ignore[arg-type]
        return one.verdict


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    """The broker, with a look-up that is open."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    with Lookup(settings) as lookup:
        yield Cluster(settings, lookup)


def stamp(offset: int, second: float) -> Stamp:
    """A record of the tests' time."""
    return Stamp(offset, BASE_MS + int(second * 1000))


def write(produce: Produce, topic: str, *seconds: float, partition: int = 0) -> None:
    """One record for each time."""
    produce((topic, partition, None, b"x", BASE_MS + int(second * 1000), ()) for second in seconds)


@contextmanager
def transaction(bootstrap: str, topic: str, *seconds: float, commit: bool) -> Iterator[None]:
    """Records in a transaction that is open within the block."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for second in seconds:
        time_ms = BASE_MS + int(second * 1000)
        producer.produce(topic, b"x", b"key", partition=0, timestamp=time_ms)
    assert producer.flush(TIMEOUT_S) == 0
    yield
    (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)
    # The answer comes before the marker is in the log.
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})
    tp, deadline = TopicPartition(topic, 0), time.monotonic() + TIMEOUT_S
    with Lookup(settings) as lookup:
        while len({lookup.end_offsets([tp], level)[tp] for level in Isolation}) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)


# --- verdicts ----------------------------------------------------------------------------------------


def test_each_partition_has_its_verdict_and_its_numbers(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """Live by the first record at or after the cutoff; waiting with the newest time; waiting when empty."""
    name = topic(partitions=3)
    write(produce, name, 0, 70, 30, 60)
    write(produce, name, 10, 59.999, 20, partition=1)
    found = cluster.look(before(name, 60))
    assert not found.is_live
    assert str(found) == "1 of 3 partitions live, 2 waiting"
    first, second, third = found.partitions
    assert first.verdict == Live(stamp(1, 70))
    assert second.verdict == NothingYet(
        stamp(0, 60).timestamp_ms, stamp(0, 59.999).timestamp_ms, 3, False
    )
    assert "2023-11-14T22:14:19.999Z" in str(second.verdict)
    assert third.verdict == NothingYet(stamp(0, 60).timestamp_ms, None, 0, True)
    assert found.waiting == (second, third)
    assert (second.facts.end_offset, second.facts.high_watermark) == (3, 3)
    # A record of exactly the cutoff lies behind it; one of a millisecond before does not.
    assert cluster.look(before(name, 59.999)).partitions[1].verdict == Live(stamp(1, 59.999))
    assert cluster.look(before(name, 70)).partitions[0].verdict == Live(stamp(1, 70))
    assert not isinstance(cluster.look(before(name, 70.001)).partitions[0].verdict, Live)


def test_the_answer_is_plain_json(cluster: Cluster, topic: MakeTopic, produce: Produce) -> None:
    """The same keys for each partition, times as text."""
    name = topic(partitions=2)
    write(produce, name, 0, 70)
    found = json.loads(json.dumps(cluster.look(before(name, 60), grace_s=3_600).to_json()))
    assert (found["live"], found["counts"]) == (False, {"live": 1, "idle": 0, "waiting": 1})
    assert (found["cutoff"], found["grace"]) == ("2023-11-14T22:14:20Z", "PT1H")
    assert (found["idle_from"], found["group"]) == ("2023-11-14T23:14:20Z", None)
    first, second = found["partitions"]
    assert first.keys() == second.keys()
    expected = {
        "topic": name,
        "partition": 0,
        "state": "live",
        "reason": "record",
        "offset": 1,
        "timestamp": "2023-11-14T22:14:30Z",
        "log_start": 0,
        "end_offset": 2,
        "high_watermark": 2,
        "unread_offsets": 0,
        "lag_offsets": None,
    }
    assert {key: first[key] for key in expected} == expected
    assert (second["state"], second["reason"], second["offset"]) == ("waiting", "grace", None)


@pytest.mark.parametrize("filled", [False, True])
def test_a_silent_partition_is_idle_only_by_a_grace_that_is_over(
    cluster: Cluster, topic: MakeTopic, produce: Produce, filled: bool
) -> None:
    """Never without a grace; with one from cutoff + grace on; the lateness counts too."""
    name = topic()
    if filled:
        write(produce, name, 0, 10)
    newest_ms = stamp(0, 10).timestamp_ms if filled else None
    window, until_ms = before(name, 60), stamp(0, 90).timestamp_ms
    assert isinstance(cluster.verdict(window, now_s=10**9), NothingYet)
    early = cluster.look(window, grace_s=30, now_s=89.999)
    assert (early.is_live, early.partitions[0].verdict) == (
        False,
        GraceRunning(until_ms, newest_ms),
    )
    late = cluster.look(window, grace_s=30, now_s=90)
    assert (late.is_live, late.partitions[0].verdict) == (True, Idle(until_ms, newest_ms))
    lenient = Window([name], at(60), max_out_of_orderness=timedelta(seconds=5))
    assert isinstance(cluster.verdict(lenient, grace_s=30, now_s=94.999), GraceRunning)
    assert isinstance(cluster.verdict(lenient, grace_s=30, now_s=95), Idle)


def test_the_allowed_lateness_must_have_passed_as_well(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """A record between the cutoff and cutoff + lateness is not enough."""
    name = topic()
    window = Window([name], at(60), max_out_of_orderness=timedelta(seconds=10))
    write(produce, name, 0, 69.999)
    assert isinstance(cluster.verdict(window), NothingYet)
    write(produce, name, 20, 70)
    assert cluster.verdict(window) == Live(stamp(3, 70))


def test_an_open_transaction_keeps_a_partition_from_being_idle(
    cluster: Cluster, bootstrap: str, topic: MakeTopic, produce: Produce
) -> None:
    """What lies behind the last stable offset may be such a record; read_uncommitted sees it at once."""
    name = topic()
    write(produce, name, 0)
    window = before(name, 60)
    uncommitted = Window([name], at(60), isolation=Isolation.READ_UNCOMMITTED)
    with transaction(bootstrap, name, 30, 80, commit=False):
        assert cluster.verdict(window, grace_s=0) == TransactionOpen(1, 3)
        assert cluster.verdict(uncommitted) == Live(stamp(2, 80))
    assert isinstance(cluster.verdict(window, grace_s=0), Idle)
    assert cluster.verdict(uncommitted) == Live(stamp(2, 80))


def test_markers_and_aborted_records_make_nothing_live(
    cluster: Cluster, bootstrap: str, topic: MakeTopic
) -> None:
    """The index points at both: markers carry the broker's clock, aborted records their own."""
    name = topic()
    with transaction(bootstrap, name, 0, 10, commit=True):
        pass
    window = before(name, 60)
    assert isinstance(cluster.verdict(window), NothingYet)
    with transaction(bootstrap, name, *range(70, 270), commit=False):
        pass
    found = cluster.look(window)
    assert found.partitions[0].facts.index_offset is not None
    assert isinstance(found.partitions[0].verdict, NothingYet)
    with transaction(bootstrap, name, 20, 80, commit=True):
        pass
    assert cluster.verdict(window) == Live(stamp(205, 80))


def test_a_record_from_the_future_makes_nothing_live(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """One of 2100 answers for every cutoff in the index; the first normal one behind it decides."""
    name = topic(config=ANY_TIME)
    write(produce, name, 0, FAR_S, 50)
    window = before(name, 60)
    waits = OnlyFuture(stamp(1, FAR_S), stamp(0, 50).timestamp_ms)
    assert cluster.verdict(window) == waits
    assert isinstance(cluster.verdict(window, grace_s=60), Idle)
    write(produce, name, 20, FAR_S, 61)
    assert cluster.verdict(window) == Live(stamp(5, 61))
    # The clock comes near enough, and the record is none of the future any more.
    alone = topic(config=ANY_TIME)
    write(produce, alone, FAR_S, FAR_S - 5)
    early = cluster.look(before(alone, 60))
    assert early.partitions[0].verdict == OnlyFuture(stamp(1, FAR_S - 5), None)
    assert not cluster.look(before(alone, 60), now_s=FAR_S - 3_605, seen=early).is_live
    late = cluster.look(before(alone, 60), now_s=FAR_S - 3_604.999, seen=early)
    assert late.partitions[0].verdict == Live(stamp(1, FAR_S - 5))


def test_append_time_counts_where_the_topic_has_it(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """The producer's own time is overwritten by the broker's clock."""
    name = topic(config={"message.timestamp.type": "LogAppendTime"})
    write(produce, name, 0)
    now_s = time.time() - BASE_MS / 1000
    assert isinstance(cluster.verdict(before(name, 60), now_s=now_s), Live)
    assert isinstance(cluster.verdict(before(name, now_s + 600), now_s=now_s), NothingYet)


def test_cutoffs_at_and_before_1970_are_never_asked_of_the_index(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """To the broker, negative times mean its ends: every timestamp is read instead."""
    name = topic(partitions=2)
    produce((name, 0, None, b"x", time_ms, ()) for time_ms in (1, 2))
    for cutoff_ms, expected in ((-5_000, Stamp(0, 1)), (0, Stamp(0, 1)), (2, Stamp(1, 2))):
        window = Window([name], datetime.fromtimestamp(cutoff_ms / 1000, UTC))
        first, empty = cluster.look(window).partitions
        assert first.verdict == Live(expected)
        assert isinstance(empty.verdict, NothingYet)


# --- what happens to the log meanwhile ---------------------------------------------------------------


def test_deleted_records_prove_nothing(
    cluster: Cluster, bootstrap: str, topic: MakeTopic, produce: Produce
) -> None:
    """Retention past the index's answer: the next record counts, and without one it waits again."""
    name = topic()
    write(produce, name, 0, 70, 20, 80, 30)
    window = before(name, 60)
    first = cluster.look(window)
    assert first.partitions[0].verdict == Live(stamp(1, 70))
    delete_before(bootstrap, name, 2)
    second = cluster.look(window, seen=first)
    assert second.partitions[0].verdict == Live(stamp(3, 80))
    delete_before(bootstrap, name, 5)
    third = cluster.look(window, seen=second)
    assert third.partitions[0].verdict == NothingYet(stamp(0, 60).timestamp_ms, None, 5, True)


class DeletingLookup(Lookup):
    """Retention strikes between the question for the time and the reading."""

    def __init__(self, bootstrap: str, topic: str, *offsets: int) -> None:
        super().__init__(ClientSettings.from_mapping({"bootstrap.servers": bootstrap}))
        self.deletes = [
            lambda offset=offset: delete_before(bootstrap, topic, offset) for offset in offsets
        ]

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        found = super().end_offsets(partitions, isolation)
        if self.deletes and isolation is Isolation.READ_COMMITTED:
            self.deletes.pop(0)()
        return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deleted", "expected"),
    [
        pytest.param((3,), Live(stamp(3, 73)), id="once"),
        pytest.param((2, 3, 4), Undecided(0, 3), id="at every try"),
    ],
)
def test_records_deleted_before_they_are_read_are_looked_for_again(
    cluster: Cluster,
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    deleted: tuple[int, ...],
    expected: Verdict,
) -> None:
    """No error: the facts are gathered anew, and after some tries the answer is that it is not decided."""
    name = topic()
    write(produce, name, 70, 71, 72, 73, 74, 75)
    with DeletingLookup(bootstrap, name, *deleted) as lookup:
        found = Cluster(cluster.settings, lookup).look(before(name, 60))
    assert found.partitions[0].verdict == expected
    assert isinstance(cluster.verdict(before(name, 60)), Live)


@pytest.mark.slow
def test_a_compacted_record_proves_nothing(
    cluster: Cluster, bootstrap: str, topic: MakeTopic, produce: Produce
) -> None:
    """Once the cleaner has taken the only record behind the cutoff, the partition waits."""
    name = topic(
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            # By the records' own times: each that is stamped later opens a segment.
            "segment.ms": "100",
        }
    )
    for key, second in ((b"a", 0), (b"b", 70), (b"b", 1)):
        produce([(name, 0, key, b"x", BASE_MS + second * 1000, ())])
    window = before(name, 60)
    assert cluster.verdict(window) == Live(stamp(1, 70))
    # The newest segment is never cleaned; this opens one, and nobody sees it.
    with transaction(bootstrap, name, 1_500, commit=False):
        pass
    deadline = time.monotonic() + 120
    while isinstance(cluster.verdict(window), Live):
        assert time.monotonic() < deadline, "the log cleaner did not run"
        time.sleep(0.5)
    assert isinstance(cluster.verdict(window), NothingYet)


# --- the search --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_logs_are_live_where_a_consumer_finds_a_record(
    cluster: Cluster, bootstrap: str, topic: MakeTopic, seed: int
) -> None:
    """Plain, committed and aborted records in random order: the same answer as reading everything."""
    random = Random(seed)
    name = topic(partitions=4)
    writer = LogWriter(bootstrap, random)
    for number, high_s in enumerate((0.1, 50, 100, 400)):
        writer.write(
            [(name, number)], count=60, low_ms=BASE_MS, high_ms=BASE_MS + int(high_s * 1000)
        )
    ends = cluster.lookup.end_offsets(
        [TopicPartition(name, n) for n in range(4)], Isolation.READ_COMMITTED
    )
    records = visible_records(bootstrap, ends)
    for second in (0, 0.05, 1, 49, 50, 99, 399, 401):
        cutoff_ms = BASE_MS + int(second * 1000)
        for one in cluster.look(before(name, second)).partitions:
            of_it = {o: ms for (_, n, o), ms in records.items() if n == one.tp.partition}
            match one.verdict:
                case Live(record):
                    assert of_it[record.offset] == record.timestamp_ms >= cutoff_ms
                case _:
                    assert max(of_it.values()) < cutoff_ms


def test_a_long_search_goes_on_where_it_stopped(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """Undecided is told, nothing is read twice, and the end of the log is looked at first."""
    name = topic(config=ANY_TIME)
    write(produce, name, FAR_S, *(n / 10 for n in range(599)))
    window = before(name, 60)
    found = cluster.look(window, grace_s=0, offsets_max=200)
    assert found.partitions[0].verdict == Undecided(264, 336)
    assert found.to_json()["partitions"][0]["unread_offsets"] == 336
    found = cluster.look(window, grace_s=0, offsets_max=200, seen=found)
    assert found.partitions[0].verdict == Undecided(464, 136)
    # A longer lateness is another question: what was seen says nothing about it.
    other = Window([name], at(30), max_out_of_orderness=timedelta(seconds=40))
    assert cluster.look(other, offsets_max=200, seen=found).partitions[0].verdict == Undecided(
        264, 336
    )
    write(produce, name, 3, 61, 4)
    newest = cluster.look(window, grace_s=0, offsets_max=10)
    assert newest.partitions[0].verdict == Live(stamp(601, 61))
    known = cluster.look(window, grace_s=0, offsets_max=200, seen=found)
    assert known.partitions[0].verdict == Live(stamp(601, 61))


def test_a_search_through_old_records_ends_in_idle(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """Only when all is read is it known that there is no such record."""
    name = topic(config=ANY_TIME)
    write(produce, name, FAR_S, *(n / 10 for n in range(300)))
    window, found, read = before(name, 60), None, []
    for _ in range(4):
        found = cluster.look(window, grace_s=0, offsets_max=100, seen=found)
        read.append(found.partitions[0].seen.offsets.count)
    assert read == [164, 264, 301, 301]
    assert found is not None
    assert isinstance(found.partitions[0].verdict, Idle)


@pytest.mark.long
def test_a_thousand_partitions_are_one_look(
    cluster: Cluster, topic: MakeTopic, produce: Produce
) -> None:
    """Each has a record that must be read, and each is decided."""
    name = topic(partitions=1_000)
    produce(
        (name, n, None, b"x" * 100, BASE_MS + s * 1000, ()) for s in (0, 70) for n in range(1_000)
    )
    found = cluster.look(before(name, 60))
    assert {one.verdict for one in found.partitions} == {Live(stamp(1, 70))}
    assert (
        cluster.look(before(name, 80), seen=found).waiting
        == cluster.look(before(name, 80)).partitions
    )
