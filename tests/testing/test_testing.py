"""The model in memory: what only a model can do, and what must hold of it beside the scripts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from kafka_ordered_ops import (
    AtTime,
    BrokerUnreachableError,
    ClientSettings,
    CommitUnknownError,
    ConfigError,
    Earliest,
    ForeignCommitError,
    LedgerCorruptError,
    LedgerUnavailableError,
    UnknownTopicError,
    Window,
    WindowFencedError,
    WindowSupersededError,
)
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, ledger_partition
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.record_schema import LOG_APPEND_TIME
from kafka_ordered_ops.core.types import Isolation, TopicPartition, WindowStatus
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.kafka.ports import open_lookup, open_reader
from kafka_ordered_ops.testing import InMemoryKafka, RecordState, TransactionState
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, at

TP = TopicPartition("orders", 0)


@pytest.fixture
def kafka() -> Iterator[InMemoryKafka]:
    """The topic ``orders``, one partition; seconds 0, 10, 20, 5, 30, 15 at offsets 0 to 5."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        for second in (0, 10, 20, 5, 30, 15):
            kafka.produce("orders", timestamp_ms=BASE_MS + second * 1000, value=b"x")
        yield kafka


@pytest.fixture
def windows(kafka: InMemoryKafka) -> Iterator[OrderedWindows]:
    """The service of one group."""
    with OrderedWindows(kafka.settings, "g", timeout_s=20) as service:
        yield service


def before(second: float) -> Window:
    """Everything of the topic stamped before a moment."""
    return Window(["orders"], at(second), starting_offsets=Earliest())


def base_of(kafka: InMemoryKafka, group_id: str = "g") -> int:
    """The group's committed offset."""
    return kafka.committed(group_id)[TP].offset


# --- names ------------------------------------------------------------------------------------------


def test_importing_the_model_loads_no_client() -> None:
    """In a fresh interpreter: neither the Kafka client nor PySpark."""
    code = (
        "import sys, kafka_ordered_ops.testing\n"
        "heavy = {'confluent_kafka', 'pyspark', 'airflow', 'dagster'} & set(sys.modules)\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_name_leads_to_one_model_while_its_block_runs() -> None:
    """Unknown, open, closed and opened again: clients made before it find it at their first use."""
    settings = {"bootstrap.servers": "memory:by-name"}
    with OrderedWindows(settings, "g") as windows:
        with pytest.raises(BrokerUnreachableError, match="by-name") as unknown:
            windows.list()
        assert unknown.value.retriable
        with InMemoryKafka("by-name") as kafka, InMemoryKafka() as other:
            kafka.create_topic("orders")
            assert kafka.settings == settings
            assert kafka.name != other.name
            assert windows.list() == []
            with pytest.raises(ConfigError, match="already"), InMemoryKafka("by-name"):
                pass
            assert windows.plan(before(1), "w").offsets == 0
        with pytest.raises(BrokerUnreachableError):
            windows.list()
        with InMemoryKafka("by-name") as anew:
            assert anew.topics() == []


@pytest.mark.parametrize("name", ["", "a b", "a,b", "-a"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    """By the cluster, and by settings that name it."""
    with pytest.raises(ConfigError, match="cannot be named"):
        InMemoryKafka(name)
    with pytest.raises(ConfigError, match="not an address"):
        ClientSettings.of(f"memory:{name}")


def test_digits_are_the_port_of_a_host_called_memory() -> None:
    """And no name of a cluster in this process."""
    with pytest.raises(ConfigError, match="cannot be named"):
        InMemoryKafka("9092")
    assert ClientSettings.of("memory:9092").memory_name is None


def test_no_client_is_made_for_a_model(kafka: InMemoryKafka) -> None:
    """It would look for a host of that name until its time-out."""
    with pytest.raises(ConfigError, match=r"kafka\.ports"):
        Lookup(ClientSettings.from_mapping(kafka.settings))


# --- faults -----------------------------------------------------------------------------------------


def test_what_comes_between_read_and_write_makes_the_decision_anew(
    kafka: InMemoryKafka, windows: OrderedWindows
) -> None:
    """Two windows that ask for the same: whoever is overtaken steps around what the other has claimed."""
    with OrderedWindows(kafka.settings, "g") as quick:
        kafka.before_commit(lambda: quick.plan(before(12), "quick"))
        slow = windows.plan(before(100), "slow")
        assert slow.taken == {TP: OffsetSet.of((2, 3), (4, 6))}
        assert slow.stepped_around == ("quick",)
        kafka.before_commit(lambda: quick.abandon("slow"))
        with pytest.raises(WindowSupersededError):
            windows.commit(slow)
        kafka.before_commit(lambda: quick.commit(quick.plan(before(12), "quick")))
        windows.commit(windows.plan(before(100), "slow"))
    assert [record.status for record in windows.list()] == [WindowStatus.COMMITTED] * 2
    assert base_of(kafka) == 6


@pytest.mark.parametrize("forgotten", [False, True], ids=["abandoned", "forgotten"])
def test_a_take_up_that_is_overtaken_by_an_abandonment_plans_anew(
    kafka: InMemoryKafka, windows: OrderedWindows, forgotten: bool
) -> None:
    """What it gets holds its offsets: a plan that nobody owns any more is never handed out."""
    first = windows.plan(before(12), "w")
    now_s = time.time() + 60
    with OrderedWindows(kafka.settings, "g", clock=lambda: now_s) as quick:

        def give_up() -> None:
            quick.abandon("w")
            if forgotten:
                assert quick.prune(timedelta(0), forget=True) == ["w"]

        kafka.before_commit(give_up)
        again = windows.plan(before(12), "w")
    assert (again.status, again.taken) == (WindowStatus.PLANNED, first.taken)
    assert again.claim_id != first.claim_id
    windows.commit(again)
    assert [record.status for record in windows.list()] == [WindowStatus.COMMITTED]


def test_whoever_is_overtaken_for_ever_gives_up(kafka: InMemoryKafka) -> None:
    """At its deadline, by the error that a fenced process ends with."""
    with (
        OrderedWindows(kafka.settings, "g", timeout_s=0.3) as slow,
        OrderedWindows(kafka.settings, "g") as quick,
    ):
        count = iter(range(1_000_000))

        def overtake() -> None:
            # The quick one's own change runs the callbacks that are due, and there are none.
            quick.plan(before(1), f"w{next(count)}")
            kafka.before_commit(overtake)

        kafka.before_commit(overtake)
        with pytest.raises(WindowFencedError) as caught:
            slow.plan(before(100), "slow")
        assert caught.value.retriable


def test_a_lost_answer_is_read_back(kafka: InMemoryKafka, windows: OrderedWindows) -> None:
    """Stored or not: the same call finds out, and what it asked for happens once."""
    with kafka.lose_answers():
        plan = windows.plan(before(12), "w")
        assert plan.attempt == 1
        windows.commit(plan)
    state = windows.state()
    assert state is not None
    assert (state.sequence, base_of(kafka)) == (2, 2)
    with kafka.lose_answers(stored=False):
        windows.commit(windows.plan(before(100), "rest"))
    state = windows.state()
    assert state is not None
    assert (state.sequence, base_of(kafka)) == (4, 6)


@pytest.mark.parametrize("stored", [True, False])
def test_an_outcome_that_cannot_be_read_back_is_unknown(
    kafka: InMemoryKafka, windows: OrderedWindows, stored: bool
) -> None:
    """The error says so, and the same window again finds out."""
    plan = windows.plan(before(12), "w")
    with (
        kafka.lose_answers(stored=stored, read_back=False),
        pytest.raises(CommitUnknownError, match="may have been stored"),
    ):
        windows.commit(plan)
    assert windows.show("w").status.is_done == stored
    assert windows.commit(plan).status is WindowStatus.COMMITTED
    assert base_of(kafka) == 2


def test_the_way_to_the_model_can_be_cut(kafka: InMemoryKafka, windows: OrderedWindows) -> None:
    """At every door, also in the middle of a read and between a commit and its answer; the test's hand works."""
    plan = windows.plan(before(100), "w")
    settings = ClientSettings.from_mapping(kafka.settings)
    calls: list[Callable[[], Any]] = [
        lambda: windows.plan(before(200), "next"),
        lambda: windows.commit(plan),
        lambda: windows.list(),
        lambda: open_lookup(settings).topics(["orders"]),
    ]
    with kafka.unreachable():
        for call in calls:
            with pytest.raises(BrokerUnreachableError, match="unreachable"):
                call()
        assert kafka.produce("orders", timestamp_ms=BASE_MS) == 6
    reader = open_reader(
        settings, "g", Isolation.READ_COMMITTED, plan.taken, columns=["offset"], batch_records=2
    )
    with reader:
        batches = reader.batches()
        assert next(batches).num_rows == 2
        with kafka.unreachable(), pytest.raises(BrokerUnreachableError):
            next(batches)
    cut = kafka.unreachable()
    kafka.before_commit(cut.__enter__)
    with pytest.raises(BrokerUnreachableError):
        windows.commit(plan)
    cut.__exit__(None, None, None)
    assert windows.show("w").status is WindowStatus.PLANNED


# --- threads ----------------------------------------------------------------------------------------


def test_many_threads_plan_and_commit_one_group(kafka: InMemoryKafka) -> None:
    """No offset twice, none lost, and every change stored once."""
    taken: list[TopicPartition | int] = []

    def work(number: int) -> None:
        with OrderedWindows(kafka.settings, "g", timeout_s=60) as windows:
            for turn in range(5):
                kafka.produce("orders", timestamp_ms=BASE_MS + turn * 1000)
                plan = windows.plan(before(100), f"w{number}-{turn}")
                for offsets in plan.taken.values():
                    taken.extend(offset for a, b in offsets for offset in range(a, b))
                windows.commit(plan)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert sorted(map(int, taken)) == list(range(6 + 8 * 5))  # type: ignore[arg-type]
    assert base_of(kafka) == 46
    with OrderedWindows(kafka.settings, "g") as windows:
        state = windows.state()
        assert state is not None
        assert state.sequence == 80
        assert len(windows.list()) == 40


def test_a_read_waits_for_what_an_open_transaction_holds_back(kafka: InMemoryKafka) -> None:
    """Another thread ends it, and the read goes on."""
    transaction = kafka.transaction("tx")
    transaction.produce("orders", timestamp_ms=BASE_MS)
    settings = ClientSettings.from_mapping(kafka.settings)
    wanted = {TP: OffsetSet.of((5, 7))}
    with open_reader(settings, "g", Isolation.READ_COMMITTED, wanted, stall_timeout_s=30) as reader:
        batches = reader.batches()
        assert next(batches).column("offset").to_pylist() == [5]
        threading.Timer(0.05, transaction.commit).start()
        assert next(batches).column("offset").to_pylist() == [6]
        assert list(batches) == []


# --- transactions, offsets, the ledger ----------------------------------------------------------------


def test_a_transaction_commits_aborts_or_stays_open(kafka: InMemoryKafka) -> None:
    """By the end of its block, by an exception, by its own methods, by a newer one of its id."""
    with kafka.transaction() as committed:
        committed.produce("orders", timestamp_ms=BASE_MS)
    aborted = kafka.transaction()

    def fail() -> None:
        with aborted:
            aborted.produce("orders", timestamp_ms=BASE_MS)
            aborted.produce("no such topic")

    with pytest.raises(UnknownTopicError):
        fail()
    with kafka.transaction("again") as left:
        left.produce("orders", timestamp_ms=BASE_MS)
        left.leave_open()
    states = [one.state for one in kafka.records("orders", everything=True)[6:]]
    marker = RecordState.MARKER
    assert states == [RecordState.COMMITTED, marker, RecordState.ABORTED, marker, RecordState.OPEN]
    assert [one.offset for one in kafka.records("orders")] == [*range(7)]
    kafka.transaction("again").commit()
    assert left.state is TransactionState.ABORTED
    assert kafka.records("orders", everything=True)[-1].state is marker
    with pytest.raises(ConfigError, match="aborted"):
        left.produce("orders")
    left.commit()
    assert left.state is TransactionState.ABORTED


def test_offsets_in_an_open_transaction_hold_a_plan_back(kafka: InMemoryKafka) -> None:
    """As a consumer does that processes exactly once: an error by the deadline, or the offsets once it ends."""
    with OrderedWindows(kafka.settings, "g", timeout_s=0.2, lookup_timeout_s=0.2) as windows:
        with kafka.transaction() as transaction:
            transaction.commit_offsets("g", {TP: 3})
            assert kafka.committed("g") == {}
            with pytest.raises(LedgerUnavailableError, match="open"):
                windows.plan(before(12), "w")
        assert base_of(kafka) == 3
        assert windows.plan(before(12), "w").offsets == 3
        kafka.commit("g", {TP: 4}, "somebody's")
        with pytest.raises(ForeignCommitError):
            windows.plan(before(100), "next")


def test_the_ledger_is_a_topic_like_any_other(
    kafka: InMemoryKafka, windows: OrderedWindows
) -> None:
    """Compacted it tells the same; an open transaction in it is waited for; damage is named."""
    windows.commit(windows.plan(before(12), "w"))
    windows.plan(before(25), "open")
    partition = ledger_partition(LEDGER_TOPIC, "g").partition
    before_it = windows.list(), windows.state()
    assert len(kafka.compact(LEDGER_TOPIC, partition)) >= 4
    with OrderedWindows(kafka.settings, "g", timeout_s=0.2) as fresh:
        assert (fresh.list(), fresh.state()) == before_it
        with kafka.transaction() as foreign:
            foreign.produce(LEDGER_TOPIC, key=b"somebody's", partition=partition)
            with pytest.raises(LedgerUnavailableError, match="open"):
                fresh.list()
        assert (fresh.list(), fresh.state()) == before_it
        for kind, name in (("window", "w"), ("state", "")):
            key = f'["g","{kind}","{name}",0]'.encode()
            assert key in {one.key for one in kafka.records(LEDGER_TOPIC, partition)}
            kafka.produce(LEDGER_TOPIC, key=key, partition=partition, value=b"{}")
            with pytest.raises(LedgerCorruptError, match=kind):
                fresh.show("w")


# --- what a broker would refuse -----------------------------------------------------------------------


def test_the_hand_of_the_test_is_told_what_a_broker_refuses(kafka: InMemoryKafka) -> None:
    """Nothing is written by what is refused."""
    kafka.create_topic("compacted", config={"cleanup.policy": "compact"})
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (ConfigError, lambda: kafka.create_topic("orders")),
        (ConfigError, lambda: kafka.create_topic("a b")),
        (ConfigError, lambda: kafka.create_topic("none", 0)),
        (ConfigError, lambda: kafka.add_partitions("orders", 1)),
        (ConfigError, lambda: kafka.produce("compacted")),
        (ConfigError, lambda: kafka.produce("orders", timestamp_ms=kafka.now_ms + 3_700_000)),
        (ConfigError, lambda: kafka.delete_records("orders", 0, 7)),
        (UnknownTopicError, lambda: kafka.produce("order")),
        (UnknownTopicError, lambda: kafka.produce("orders", partition=1)),
        (UnknownTopicError, lambda: kafka.delete_topic("order")),
        (UnknownTopicError, lambda: kafka.commit("g", {TopicPartition("order", 0): 1})),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
    assert kafka.topics() == ["compacted", "orders"]
    assert len(kafka.records("orders")) == 6
    assert kafka.committed("g") == {}


def test_the_clock_can_be_set(kafka: InMemoryKafka) -> None:
    """It stamps what brokers stamp, and runs until it is set."""
    assert abs(kafka.now_ms - time.time() * 1000) < 60_000
    kafka.now_ms = BASE_MS
    kafka.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    with kafka.transaction() as transaction:
        transaction.produce("stamped", timestamp_ms=1)
        kafka.now_ms += 1_000
    kafka.produce("orders")
    record, marker = kafka.records("stamped", everything=True)
    assert (record.timestamp_ms, record.timestamp_type) == (BASE_MS, LOG_APPEND_TIME)
    assert (marker.timestamp_ms, marker.state) == (BASE_MS + 1_000, RecordState.MARKER)
    assert kafka.records("orders")[-1].timestamp_ms == BASE_MS + 1_000
    assert kafka.clock() == BASE_MS / 1000 + 1


def test_keys_choose_partitions(kafka: InMemoryKafka) -> None:
    """The same key always goes to the same partition, and one without a key to the first."""
    kafka.create_topic("keyed", 4)
    for number in range(40):
        kafka.produce("keyed", key=str(number % 8).encode())
    kafka.produce("keyed")
    where: dict[bytes | None, set[int]] = {}
    for record in kafka.records("keyed"):
        where.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in where.values())
    assert where[None] == {0}
    assert len({partition for partitions in where.values() for partition in partitions}) > 1


def test_a_window_is_exact_where_the_index_is_wrong(kafka: InMemoryKafka) -> None:
    """The record that made a segment's timestamp great was deleted: the index knows of none after it."""
    kafka.create_topic("small", config={"segment.ms": "60000"})
    for second in (50, 0, 10, 120, 200, 20):
        kafka.produce("small", timestamp_ms=BASE_MS + second * 1000)
    kafka.delete_records("small", 0, 1)
    small = TopicPartition("small", 0)
    starts: dict[str, Bound] = {"earliest": Earliest(), "second 40": AtTime(BASE_MS + 40_000)}
    taken = {}
    for name, start in starts.items():
        with OrderedWindows(kafka.settings, name) as windows:
            plan = windows.plan(Window(["small"], at(45), starting_offsets=start), "w")
            taken[name] = plan.taken.get(small)
    assert taken == {"earliest": OffsetSet.of((1, 3), (5, 6)), "second 40": OffsetSet.of((5, 6))}


def test_retention_leaves_no_trace_in_the_index(kafka: InMemoryKafka) -> None:
    """Whole segments go with what they knew, unlike single records that are deleted."""
    settings = ClientSettings.from_mapping(kafka.settings)
    kafka.create_topic("small", config={"segment.ms": "60000"})
    for second in (50, 0, 120, 200):
        kafka.produce("small", timestamp_ms=BASE_MS + second * 1000)
    small = TopicPartition("small", 0)

    def found() -> int | None:
        with open_lookup(settings) as lookup:
            return lookup.first_at_or_after([small], BASE_MS + 40_000, Isolation.READ_COMMITTED)[
                small
            ]

    assert found() == 0
    kafka.delete_records("small", 0, 1)
    assert found() is None
    kafka.expire_records("small", 0, 1)
    assert found() == 2
