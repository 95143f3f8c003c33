"""Logs of every shape, from the first plan to the last commit, each window compared with a plain consumer.

What no visible record stands for (markers, aborted records, compacted offsets) never shows in a window,
never holds progress back, and never hides what lies behind it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import numpy as np
import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kafka_ordered_ops import AtTime, Committed, Earliest, Latest, Relative, Window
from kafka_ordered_ops.core.types import Isolation, PlanContent, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.examples import examples
from tests.support.logs import read_plan, visible_records
from tests.support.window_oracle import WindowOracle, stamped
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before, delete_before, offsets_of
from tests.support.wire import write_batch

#: The cleaner works when it likes.
_CLEANER_TIMEOUT_S = 90.0

#: Records of one partition: how they are written, and the seconds they are stamped at.
Script = Sequence[tuple[str, Sequence[int]]]


class Transactional:
    """A producer whose transaction is begun by its first record, and ended by name."""

    def __init__(self, bootstrap: str, *, timeout_ms: int = 60_000) -> None:
        name = f"shapes-{uuid.uuid4().hex}"
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": timeout_ms,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._open = False

    def send(self, topic: str, partition: int, second: float) -> None:
        """Writes one record, and waits until it has its offset."""
        if not self._open:
            self._producer.begin_transaction()
            self._open = True
        time_ms = BASE_MS + round(second * 1000)
        # A key, because a compacted topic takes no record without one.
        self._producer.produce(
            topic, key=uuid.uuid4().hex, value=b"x", partition=partition, timestamp=time_ms
        )
        assert self._producer.flush(TIMEOUT_S) == 0

    def end(self, how: str) -> None:
        """Ends the transaction by ``commit`` or ``abort``, if one is open."""
        if self._open:
            getattr(self._producer, f"{how}_transaction")(TIMEOUT_S)
            self._open = False


@pytest.fixture
def transactional(bootstrap: str) -> Iterator[list[Transactional]]:
    """Two producers with transactions; what they leave open is aborted."""
    producers = [Transactional(bootstrap) for _ in range(2)]
    yield producers
    for producer in producers:
        producer.end("abort")


@pytest.fixture
def oracle_of(bootstrap: str, windows: OrderedWindows) -> Callable[..., WindowOracle]:
    """An oracle for the group's windows over the topics named."""
    return lambda *topics: WindowOracle(windows, bootstrap, topics)


# --- transactions -----------------------------------------------------------------------------------

step = st.one_of(
    st.tuples(st.just("plain"), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.sampled_from(["first", "second"]), st.integers(0, 1), st.integers(0, 30)),
    st.tuples(st.sampled_from(["commit", "abort"]), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("window"), st.just(0), st.integers(0, 32)),
)


@pytest.mark.long
@settings(
    # Each is a second or two of a real broker, so a failure is shown as it was found.
    max_examples=examples(6),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(step, min_size=4, max_size=30))
def test_windows_among_open_and_interleaved_transactions(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    transactional: list[Transactional],
    steps: list[tuple[str, int, int]],
) -> None:
    """Windows planned at any moment of two producers' transactions hold each committed record once."""
    name = topic(partitions=2)
    for producer in transactional:
        producer.end("abort")
    with OrderedWindows({"bootstrap.servers": bootstrap}, f"g-{uuid.uuid4().hex}") as windows:
        oracle = WindowOracle(windows, bootstrap, [name])
        for verb, number, second in steps:
            if verb == "plain":
                produce(stamped(name, number, second))
            elif verb == "window":
                oracle.window(at(second))
            elif verb in ("first", "second"):
                transactional[verb == "second"].send(name, number, second)
            else:
                transactional[number].end(verb)
        for producer in transactional:
            producer.end("commit")
        oracle.await_markers()
        oracle.window(at(100))
        oracle.check_complete()


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        pytest.param([("commit", [0, 5])], id="commit-marker"),
        pytest.param([("abort", [0, 5])], id="nothing-visible"),
        pytest.param([("plain", [0]), ("abort", [5])], id="abort-marker"),
        pytest.param([("plain", [0]), ("abort", [50])], id="aborted-after-the-cutoff"),
        pytest.param([("plain", [50]), ("abort", [5])], id="aborted-behind-what-stays"),
        pytest.param([("abort", [50]), ("plain", [5])], id="aborted-hides-an-out-of-order-record"),
        pytest.param([("commit", [50]), ("commit", [5]), ("abort", [50, 5])], id="all-of-it"),
    ],
)
def test_progress_passes_whatever_lies_at_the_tail(
    topic: MakeTopic,
    produce: Produce,
    transactional: list[Transactional],
    oracle_of: Callable[..., WindowOracle],
    script: Script,
) -> None:
    """Markers and aborted records at the end: the group's lag goes to zero, and the next window is empty."""
    name = topic()
    for how, seconds in script:
        if how == "plain":
            produce(stamped(name, 0, *seconds))
            continue
        for second in seconds:
            transactional[0].send(name, 0, second)
        transactional[0].end(how)
    oracle = oracle_of(name)
    oracle.await_markers()
    oracle.window(at(12))
    oracle.window(at(100))
    oracle.check_complete()
    assert oracle.plan(at(200)).content is PlanContent.EMPTY


@pytest.mark.long
def test_an_open_transaction_holds_back_its_own_partition_only(
    topic: MakeTopic,
    produce: Produce,
    transactional: list[Transactional],
    oracle_of: Callable[..., WindowOracle],
) -> None:
    """What lies behind it there comes with the next window, aborted or not; the other partition comes whole."""
    name = topic(partitions=2)
    oracle = oracle_of(name)
    produce(stamped(name, 0, 1))
    transactional[0].send(name, 0, 2)
    produce(stamped(name, 0, 3) + stamped(name, 1, 1, 30, 2))
    assert {key[1:] for key in oracle.window(at(12))} == {(0, 0), (1, 0), (1, 2)}
    transactional[0].end("abort")
    oracle.await_markers()
    assert {key[1:] for key in oracle.window(at(13))} == {(0, 2)}
    oracle.window(at(100))
    oracle.check_complete()


@pytest.mark.long
@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_transaction_that_ends_after_the_plan_changes_nothing_in_it(
    topic: MakeTopic,
    produce: Produce,
    transactional: list[Transactional],
    oracle_of: Callable[..., WindowOracle],
    how: str,
) -> None:
    """The plan was made below it: read after its end, the window holds the same records."""
    name = topic()
    oracle = oracle_of(name)
    produce(stamped(name, 0, 1, 30, 2))
    transactional[0].send(name, 0, 3)
    plan = oracle.plan(at(12))
    transactional[0].end(how)
    oracle.await_markers()
    produce(stamped(name, 0, 4))
    oracle.check_records(plan)
    again = oracle.windows.plan(plan.window, plan.window_id)
    assert again.taken == plan.taken
    oracle.commit(again)
    assert len(oracle.window(at(12.5))) == (2 if how == "commit" else 1)
    oracle.window(at(100))
    oracle.check_complete()


@pytest.mark.long
def test_a_producer_that_died_in_its_transaction_delays_records_and_loses_none(
    bootstrap: str, topic: MakeTopic, produce: Produce, oracle_of: Callable[..., WindowOracle]
) -> None:
    """Until the broker aborts it, windows end below it and plan at once; afterwards what is behind it comes."""
    name = topic()
    oracle = oracle_of(name)
    dead = Transactional(bootstrap, timeout_ms=1_500)
    produce(stamped(name, 0, 1))
    dead.send(name, 0, 2)
    produce(stamped(name, 0, 3))
    assert offsets_of(oracle.window(at(12))) <= {0, 2}
    oracle.await_markers()  # The broker aborts it.
    oracle.window(at(13))
    oracle.check_complete()
    assert offsets_of(oracle.delivered) == {0, 2}


@pytest.mark.slow
def test_uncommitted_readers_get_open_and_aborted_records_once(
    bootstrap: str,
    topic: MakeTopic,
    produce: Produce,
    windows: OrderedWindows,
    transactional: list[Transactional],
) -> None:
    """Under read_uncommitted a window reaches the high watermark; how a transaction ends then adds nothing."""
    name = topic()
    produce(stamped(name, 0, 0))
    transactional[0].send(name, 0, 5)  # Left open.
    transactional[1].send(name, 0, 30)
    transactional[1].end("abort")
    [last] = produce(stamped(name, 0, 7))

    def window(second: int) -> Window:
        return Window(
            [name], at(second), starting_offsets=Earliest(), isolation=Isolation.READ_UNCOMMITTED
        )

    first = windows.plan(window(12), "first")
    assert offsets_of(read_plan(windows.settings, first)) == {0, 1, last}
    windows.commit(first)
    transactional[0].end("abort")
    WindowOracle(windows, bootstrap, [name]).await_markers()
    rest = windows.plan(window(100), "rest")
    assert offsets_of(read_plan(windows.settings, rest)) == {2}
    windows.commit(rest)
    state = windows.state()
    assert state is not None
    # Four records and two markers.
    assert [partition.base for _, partition in state] == [6]


# --- compaction -------------------------------------------------------------------------------------

#: For each partition: (key, second) of its records, and the keys that are written again later.
COMPACTED: Mapping[str, tuple[Sequence[tuple[str, int]], str]] = {
    "nothing": ([("a", 0), ("b", 30), ("c", 1)], ""),
    "the first offsets": ([("a", 0), ("b", 1), ("c", 2), ("d", 30)], "ab"),
    "the first record at the cutoff": ([("a", 0), ("b", 12), ("c", 1), ("d", 13)], "b"),
    "what lies before the cutoff's first": ([("a", 0), ("b", 1), ("c", 30), ("d", 2)], "b"),
    "an out-of-order record": ([("a", 0), ("b", 30), ("c", 1), ("d", 31), ("e", 2)], "c"),
    "the last out-of-order record": ([("a", 0), ("b", 30), ("c", 1)], "c"),
    "the window's last offsets": ([("a", 0), ("b", 1), ("c", 2)], "bc"),
    "the whole window": ([("a", 0), ("b", 1), ("c", 30), ("d", 2)], "abd"),
    "everything": ([("a", 0), ("b", 30), ("c", 1)], "abc"),
}
#: A partition after whose last visible record there is only what was aborted.
ABORTED_TAIL = len(COMPACTED) - 1


@pytest.mark.long
def test_compaction_before_and_after_the_plan_at_each_edge(
    bootstrap: str, topic: MakeTopic, windows: OrderedWindows, group_id: str
) -> None:
    """Offsets that compaction took are in no window, are no loss, and hold nothing back."""
    name = topic(
        partitions=len(COMPACTED),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            # By the records' own times: each that is stamped later opens a segment.
            "segment.ms": "100",
        },
    )
    for number, (records, _) in enumerate(COMPACTED.values()):
        write_keys(bootstrap, name, number, records)
    planner = WindowOracle(windows, bootstrap, [name])
    planned_before = planner.plan(at(12))
    for number, (_, again) in enumerate(COMPACTED.values()):
        write_keys(bootstrap, name, number, [(key, 40 + n) for n, key in enumerate(again)])
    close_segments(bootstrap, name)
    await_compaction(bootstrap, name)

    planner.delivered |= planner.check_records(planned_before)
    windows.commit(planned_before)
    with OrderedWindows(windows.settings, f"{group_id}-after") as others:
        after = WindowOracle(others, bootstrap, [name])
        after.window(at(12))
        assert after.delivered == planner.delivered
        for oracle in (planner, after):
            for second in (12.5, 31, 1_000, 2_000):
                oracle.window(at(second))
            oracle.check_complete()


def write_keys(
    bootstrap: str, topic: str, partition: int, records: Sequence[tuple[str, int]]
) -> None:
    """One batch a record, so that segments can be cut anywhere."""
    for key, second in records:
        write_batch(
            bootstrap, topic, [BASE_MS + second * 1000], partition=partition, keys=[key.encode()]
        )


def close_segments(bootstrap: str, topic: str) -> None:
    """A record stamped much later opens a segment: the cleaner never touches the newest."""
    aborted = Transactional(bootstrap)
    for number in range(len(COMPACTED)):
        if number == ABORTED_TAIL:
            aborted.send(topic, number, 1_500)
        else:
            write_keys(bootstrap, topic, number, [("last", 1_500)])
    aborted.end("abort")


def await_compaction(bootstrap: str, topic: str) -> None:
    """Until a plain consumer sees of each key below the newest segment only the last record."""
    expected = set()
    ends = {}
    for number, (records, again) in enumerate(COMPACTED.values()):
        size = len(records) + len(again)
        gone = {offset for offset, (key, _) in enumerate(records) if key in again}
        tail = set() if number == ABORTED_TAIL else {size}
        expected |= {(topic, number, offset) for offset in {*range(size), *tail} - gone}
        ends[TopicPartition(topic, number)] = size + (2 if number == ABORTED_TAIL else 1)
    deadline = time.monotonic() + _CLEANER_TIMEOUT_S
    while (seen := visible_records(bootstrap, ends).keys()) != expected:
        assert time.monotonic() < deadline, f"the cleaner has not removed {seen - expected}"
        assert seen >= expected
        time.sleep(0.5)


# --- empty partitions, and many ---------------------------------------------------------------------


@pytest.mark.long
def test_empty_partitions_are_planned_with_the_rest(
    topic: MakeTopic, produce: Produce, oracle_of: Callable[..., WindowOracle]
) -> None:
    """They have progress from the first window on, so what comes to them later is in the next, as late."""
    name = topic(partitions=4)
    produce(stamped(name, 1, 1, 30, 2))
    oracle = oracle_of(name)
    oracle.window(at(12))
    every = [TopicPartition(name, number) for number in range(4)]
    assert list(oracle.committed(every).values()) == [0, 1, 0, 0]
    produce(stamped(name, 2, 3, 13))
    plan = oracle.plan(at(20))
    part = plan.partitions[2]
    assert part.late.mask(np.array([0, 1]), np.array([3, 13]) * 1000 + BASE_MS).tolist() == [
        True,
        False,
    ]
    oracle.commit(plan)
    oracle.window(at(100))
    oracle.check_complete()


def test_a_topic_without_any_record_is_an_empty_window(
    topic: MakeTopic, windows: OrderedWindows
) -> None:
    """Nothing happened: the plan says so, is committed like any other, and is not covered next time."""
    name = topic(partitions=3)
    for second in (12, 13):
        plan = windows.plan(before(name, second, Earliest()), f"w{second}")
        assert (plan.content, plan.taken) == (PlanContent.EMPTY, {})
        assert read_plan(windows.settings, plan) == {}
        windows.commit(plan)


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [Earliest(), Latest(), AtTime(BASE_MS), Relative(5_000), Committed()],
    ids=lambda start: type(start).__name__,
)
def test_a_partition_emptied_by_retention_starts_at_its_end(
    bootstrap: str, topic: MakeTopic, produce: Produce, windows: OrderedWindows, start: Bound
) -> None:
    """Whatever the starting offsets: nothing is lost, for nothing was planned, and what comes next is read."""
    name = topic()
    produce(stamped(name, 0, 1, 2, 3))
    delete_before(bootstrap, name, 3)
    first = windows.plan(before(name, 12, start), "first")
    assert (first.taken, first.lost) == ({}, {})
    windows.commit(first)
    produce(stamped(name, 0, 4))
    second = windows.plan(before(name, 13), "second")
    assert offsets_of(read_plan(windows.settings, second)) == {3}
    windows.commit(second)
    # Emptied again, behind the group: that is no loss either.
    delete_before(bootstrap, name, 4)
    assert windows.plan(before(name, 14), "third").lost == {}


@pytest.mark.long
def test_a_thousand_partitions_most_of_them_empty(
    topic: MakeTopic, produce: Produce, oracle_of: Callable[..., WindowOracle]
) -> None:
    """Every partition has progress after one commit, and each record comes in its window."""
    name = topic(partitions=1_000)
    random = Random(4)
    chosen = [0, 999, *random.sample(range(1, 999), 60)]
    oracle = oracle_of(name)
    for cutoff in (10, 20, 30):
        for number in chosen:
            produce(stamped(name, number, *(random.randrange(40) for _ in range(5))))
        oracle.window(at(cutoff))
    oracle.window(at(100))
    oracle.check_complete()
    assert len(oracle.delivered) == 3 * 5 * len(chosen)
