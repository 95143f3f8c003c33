"""A broker that is lost inside one call: the answer is exact or an error to try again, and soon there is one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Producer

from kafka_ordered_ops import ClientSettings, Earliest, KafkaOrderedOpsError, Window
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.own_network import connects
from tests.support.three_brokers import NODES, ThreeBrokers
from tests.support.windows_support import BASE_MS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS = 12
RECORDS = 40

#: One question to a cluster whose other two brokers are well; a frozen one is given some seconds first.
ANSWER_S = 20.0
#: A client that holds a dead broker for the controller connects to it some 10,000 times a second, until it is given up
#: for another after its first slice of 3 s. Without that, each of these questions makes 250,000 connections and fails.
CONNECTS_MAX = 100_000

T = TypeVar("T")


def fill(brokers: ThreeBrokers, topic: str) -> dict[TopicPartition, int]:
    """So many records in each partition of a new topic; the ends of its logs."""
    brokers.create(topic, PARTITIONS)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
    for number in range(RECORDS * PARTITIONS):
        producer.produce(topic, value=b"x", partition=number % PARTITIONS, timestamp=BASE_MS)
    assert producer.flush(60) == 0
    return {TopicPartition(topic, partition): RECORDS for partition in range(PARTITIONS)}


def everything(topic: str) -> Window:
    """All records of a topic."""
    cutoff = datetime.fromtimestamp(BASE_MS / 1000 + 60, UTC)
    return Window([topic], cutoff, starting_offsets=Earliest())


def retried(call: Callable[[], T]) -> T:
    """As a scheduler does it: again, while the error says so."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return call()
        except KafkaOrderedOpsError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise


@contextmanager
def lost_before(
    question: str, monkeypatch: pytest.MonkeyPatch, lose: Callable[[], None]
) -> Iterator[None]:
    """Loses a broker just before the first question of a kind that is about the test's topic."""
    asked = getattr(Lookup, question)
    done: list[str] = []

    def ask(self: Lookup, partitions: Collection[TopicPartition], *arguments: object) -> object:
        if not done and len(partitions) == PARTITIONS:
            done.append(question)
            lose()
        return asked(self, partitions, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Lookup, question, ask)
        yield
    assert done, f"a plan that does not ask for {question} proves nothing"


@pytest.mark.long
@pytest.mark.parametrize("question", ["log_starts", "end_offsets"])
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_plan_is_never_short_of_a_lost_leader_s_records(
    brokers: ThreeBrokers, monkeypatch: pytest.MonkeyPatch, fault: str, question: str
) -> None:
    """The leader of some partitions goes between two questions of one plan; the plan holds theirs as well."""
    topic, group_id = f"short-{fault}-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex
    ends = fill(brokers, topic)
    with OrderedWindows({"bootstrap.servers": brokers.bootstrap}, group_id) as windows:
        windows.list()
        victim = brokers.leader_of(topic, 0)
        lose = getattr(brokers, fault)
        with lost_before(question, monkeypatch, lambda: lose(victim)):
            plan = retried(lambda: windows.plan(everything(topic), "first"))
        assert {part.tp: part.taken.count for part in plan} == ends
        assert retried(lambda: windows.plan(everything(topic), "first")).taken == plan.taken


@pytest.mark.long
@pytest.mark.parametrize("fault", [pytest.param("kill", marks=pytest.mark.long), "pause"])
def test_nothing_is_adopted_because_a_broker_is_lost(
    brokers: ThreeBrokers, fault: str, tmp_path: Path
) -> None:
    """While leaders are lost and elected, a dry run finds nothing moved and nothing cut, or has no answer."""
    topic, group_id = f"adopt-{fault}-{uuid.uuid4().hex[:6]}", uuid.uuid4().hex
    ends, over = fill(brokers, topic), tmp_path / "over"
    with OrderedWindows({"bootstrap.servers": brokers.bootstrap}, group_id) as windows:
        windows.commit(windows.plan(everything(topic), "first"))
    words = [str(over), brokers.bootstrap, group_id, topic, *map(str, ends.values())]

    def lose_each_in_turn() -> None:
        try:
            for node in NODES:
                getattr(brokers, fault)(node)
                brokers.await_led(without=node)
                brokers.heal()
        finally:
            over.touch()

    with ThreadPoolExecutor(1) as pool:
        storm = pool.submit(lose_each_in_turn)
        said = _said_by_worker(words)
        while not storm.done():
            said += _said_by_worker(words)
        storm.result()
    assert said.count("answer"), "a storm without an answer proves nothing"
    assert said.count("look")


def _said_by_worker(words: list[str]) -> list[str]:
    """The answers until the storm is over, or until the client's own defect ends the worker as a kill would."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.adopt_worker", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    is_aborted = done.returncode == -signal.SIGABRT and "rd_kafka_enq_once" in done.stderr
    assert done.returncode == 0 or is_aborted, done.stderr
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_client_goes_on_when_the_broker_it_asks_is_lost(
    brokers: ThreeBrokers, fault: str
) -> None:
    """The broker that a client takes for the controller goes; its next question is answered all the same."""
    topic = f"controller-{fault}-{uuid.uuid4().hex[:6]}"
    ends = fill(brokers, topic)
    lookup = Lookup(ClientSettings.from_mapping({"bootstrap.servers": brokers.bootstrap}))
    assert lookup.topics([topic])
    victim = controller_of(lookup)
    getattr(brokers, fault)(victim)
    questions: list[Callable[[], object]] = [
        lambda: lookup.topics([topic]),
        lookup.cluster_id,
        lambda: lookup.group_members("nobody"),
        lambda: lookup.end_offsets(ends, Isolation.READ_COMMITTED),
        lambda: lookup.topics([topic]),
    ]
    before = connects()
    for ask in questions:
        started = time.monotonic()
        assert ask() is not None
        assert time.monotonic() - started < ANSWER_S
    assert connects() - before < CONNECTS_MAX


def controller_of(lookup: Lookup) -> int:
    """The broker that this client takes for the controller."""
    found = lookup._admin.describe_cluster(request_timeout=10).result()
    return int(found.controller.id)
