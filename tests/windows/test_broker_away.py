"""The broker goes away at each step: a bounded wait and a named error, and nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ordered_ops import (
    BrokerUnreachableError,
    CommitUnknownError,
    Earliest,
    KafkaOrderedOpsError,
    LedgerUnavailableError,
    ReadTimeoutError,
    Window,
    WindowPlan,
)
from kafka_ordered_ops.embedded import EmbeddedKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.logs import await_stored, read_plan

TOPIC = "orders"
BASE_MS = 1_700_000_000_000
WAIT_S = 3.0
#: A single broker whose process was stopped for a minute is itself again after some tens of seconds.
BACK_S = 120.0
#: What a caller may get when nobody answers; all of them say that trying again is right.
AWAY = (BrokerUnreachableError, LedgerUnavailableError, ReadTimeoutError, CommitUnknownError)


@pytest.fixture
def broker() -> Iterator[EmbeddedKafka]:
    """A broker of this test's own, with a topic of six records."""
    with EmbeddedKafka() as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        new = NewTopic(TOPIC, num_partitions=1, config={"retention.ms": "-1"})
        admin.create_topics([new])[TOPIC].result(30)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        for second in (0, 10, 20, 5, 30, 15):
            producer.produce(TOPIC, value=b"x", partition=0, timestamp=BASE_MS + second * 1000)
        assert producer.flush(30) == 0
        yield kafka


def open_windows(kafka: EmbeddedKafka) -> OrderedWindows:
    """The service with short bounds."""
    return OrderedWindows(
        {"bootstrap.servers": kafka.bootstrap, "socket.timeout.ms": 3_000},
        "group",
        timeout_s=WAIT_S,
        lookup_timeout_s=WAIT_S,
        stall_timeout_s=WAIT_S,
    )


def window(second: int) -> Window:
    """Everything stamped before a second."""
    return Window(
        [TOPIC], datetime.fromtimestamp(BASE_MS / 1000 + second, UTC), starting_offsets=Earliest()
    )


@pytest.mark.long
@pytest.mark.parametrize("fault", ["killed", pytest.param("hung", marks=pytest.mark.long)])
def test_a_broker_that_is_away_is_a_named_error_at_every_step(
    broker: EmbeddedKafka, fault: str
) -> None:
    """Preview, plan, take-up, read, write-down, commit, list; afterwards the same window goes on."""
    # A new broker's first transaction may take longer than the short bound.
    with OrderedWindows({"bootstrap.servers": broker.bootstrap}, "group") as patient:
        patient.commit(patient.plan(window(1), "first"))
        plan = patient.plan(window(12), "w")
    with open_windows(broker) as windows:
        await_stored(windows)
        steps: dict[str, Callable[[], object]] = {
            "preview": lambda: windows.preview(window(20)),
            "plan": lambda: windows.plan(window(20), "other"),
            "take up": lambda: windows.plan(window(12), "w"),
            "record": lambda: windows.mark_processed(plan, plan.taken),
            "write down": lambda: windows.mark_written(plan, {}),
            "commit": lambda: windows.commit(plan),
            "list": windows.list,
            "read": lambda: read_with_short_patience(windows, plan),
        }
        broker.kill() if fault == "killed" else broker.pause()
        for step, call in steps.items():
            with pytest.raises(KafkaOrderedOpsError) as caught:
                call()
            assert isinstance(caught.value, AWAY), f"{step}: {caught.value!r}"
            assert caught.value.retriable
        broker.restart() if fault == "killed" else broker.resume()
    # With the usual patience: a broker that was killed first finishes what its transactions left open.
    with OrderedWindows({"bootstrap.servers": broker.bootstrap}, "group") as windows:
        again = retried(lambda: windows.plan(window(12), "w"))
        assert again.taken == plan.taken
        assert len(read_plan(windows.settings, again)) == 2
        windows.commit(again)


def retried(plan: Callable[[], WindowPlan]) -> WindowPlan:
    """As a scheduler does it, while the error says so: a broker that was stopped for long must register anew."""
    deadline = time.monotonic() + BACK_S
    while True:
        try:
            return plan()
        except KafkaOrderedOpsError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise


def read_with_short_patience(windows: OrderedWindows, plan: WindowPlan) -> None:
    """Reads a plan with the tests' short stall time."""
    from kafka_ordered_ops.kafka.read.reader import RangeReader

    with RangeReader(
        windows.settings, plan.group_id, plan.isolation, plan.taken, stall_timeout_s=WAIT_S
    ) as reader:
        for _ in reader.batches():
            pass
