"""One public call: one bound, a line while it waits, one process, and nothing alarming in the log of a green one."""

from __future__ import annotations

import copy
import json
import logging
import math
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    ClosedError,
    ConfigError,
    Earliest,
    KafkaOrderedOpsError,
    NotShareableError,
    Policy,
    WindowFencedError,
    WindowPlan,
)
from kafka_ordered_ops.core.types import OnOpenClaim
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client
from kafka_ordered_ops.kafka.lookup import Lookup
from kafka_ordered_ops.testing import InMemoryKafka
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.windows_support import BASE_MS, before


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of something that takes connections and never answers, as a stopped broker does."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


#: An output that could be published, were there a window for it.
OUTPUT = SimpleNamespace(to_json=dict, publish=lambda: None, discard=lambda: None)

#: Every public call, with arguments that get as far as the cluster.
PUBLIC: dict[str, Callable[[OrderedWindows, WindowPlan], Any]] = {
    "preview": lambda windows, plan: windows.preview(plan.window, "w"),
    "plan": lambda windows, plan: windows.plan(plan.window, "w"),
    "plan_many": lambda windows, plan: windows.plan_many([plan.window], ["w"]),
    "replay": lambda windows, plan: windows.replay("w"),
    "split": lambda windows, plan: windows.split(plan, 2),
    "report": lambda windows, plan: windows.report(plan, {}),
    "mark_processed": lambda windows, plan: windows.mark_processed(plan, plan.taken),
    "processed": lambda windows, plan: windows.processed(plan),
    "mark_written": lambda windows, plan: windows.mark_written(plan, {}),
    "mark_written_many": lambda windows, plan: windows.mark_written_many([plan], [{}]),
    "commit": lambda windows, plan: windows.commit(plan),
    "commit_many": lambda windows, plan: windows.commit_many([plan]),
    "publish_many": lambda windows, plan: windows.publish_many([plan], [OUTPUT]),
    "abandon": lambda windows, plan: windows.abandon("w"),
    "show": lambda windows, plan: windows.show("w"),
    "show_many": lambda windows, plan: windows.show_many(["w"]),
    "check_readable": lambda windows, plan: windows.check_readable(plan),
    "summaries": lambda windows, plan: windows.summaries(),
    "left_notes": lambda windows, plan: windows.left_notes(),
    "list": lambda windows, plan: windows.list(),
    "state": lambda windows, plan: windows.state(),
    "gaps": lambda windows, plan: windows.gaps(),
    "live": lambda windows, plan: windows.live(plan.window),
    "adopt": lambda windows, plan: windows.adopt(),
    "adopt dry": lambda windows, plan: windows.adopt(dry_run=True),
    "fail_over": lambda windows, plan: windows.fail_over(),
    "migrate": lambda windows, plan: windows.migrate("parallel-consumer"),
    "reset_offsets": lambda windows, plan: windows.reset_offsets("earliest", topics="orders"),
    "prune": lambda windows, plan: windows.prune(timedelta(days=1)),
}


@pytest.fixture(scope="module")
def some_plan() -> WindowPlan:
    """A plan of another cluster: the calls get no further than to ask theirs."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        with OrderedWindows(kafka.settings, "group") as windows:
            return windows.plan(before("orders", 10, Earliest()), "w")


@pytest.mark.long
@pytest.mark.parametrize("call", PUBLIC)
def test_a_call_ends_within_its_one_bound(silent: str, some_plan: WindowPlan, call: str) -> None:
    """However many questions it would ask, and whatever bound each of them has."""
    with OrderedWindows({"bootstrap.servers": silent}, "group", timeout_s=1.0) as windows:
        started = time.monotonic()
        with pytest.raises(BrokerUnreachableError) as caught:
            PUBLIC[call](windows, some_plan)
        assert time.monotonic() - started < 8.0
        assert caught.value.retriable


@pytest.mark.long
def test_what_fails_meanwhile_is_tried_again_while_there_is_time(
    bootstrap: str, orders: str, group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that gives up at its own bound does not end the call."""
    real, left = Lookup.topics, 3

    def topics(self: Lookup, names: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise BrokerUnreachableError("away", code="_TRANSPORT")
        return real(self, names)

    monkeypatch.setattr(Lookup, "topics", topics)
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=60) as windows:
        windows.commit(windows.plan(before(orders, 12, Earliest()), "w"))
    assert left == 0


def test_the_fault_of_a_caller_is_not_waited_for(bootstrap: str, group_id: str) -> None:
    """Only what passes by itself is tried again."""
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=60) as windows:
        started = time.monotonic()
        with pytest.raises(KafkaOrderedOpsError):
            windows.plan(before("no-such-topic", 1, Earliest()), "w")
        assert time.monotonic() - started < 20


@pytest.mark.long
def test_a_call_that_waits_says_what_for(
    silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first line comes early, the next ones ever later; a quick call says nothing."""
    monkeypatch.setattr(calls, "FIRST_LINE_S", 0.3)
    with (
        OrderedWindows({"bootstrap.servers": silent}, "group", timeout_s=2.0) as windows,
        caplog.at_level(logging.INFO, logger="kafka_ordered_ops.windows"),
        pytest.raises(BrokerUnreachableError),
    ):
        windows.list()
    lines = [one.getMessage() for one in caplog.records if "is waiting for" in one.getMessage()]
    assert 1 <= len(lines) <= 4
    assert "group group: list has taken" in lines[0]
    assert "describing topics" in lines[0]
    assert "gives up within" in lines[0]
    caplog.clear()
    with InMemoryKafka() as kafka, OrderedWindows(kafka.settings, "group") as windows:
        assert windows.list() == []
    assert [one for one in caplog.records if "is waiting for" in one.getMessage()] == []


@pytest.mark.long
def test_waiting_for_others_has_its_own_bound() -> None:
    """What a policy agrees to wait for open windows comes on top of the call's bound."""
    policy = Policy(on_open_claim=OnOpenClaim.WAIT, claim_wait=timedelta(seconds=3))
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        with OrderedWindows(kafka.settings, "group", timeout_s=0.5) as windows:
            windows.plan(before("orders", 10, Earliest()), "open")
            started = time.monotonic()
            with pytest.raises(KafkaOrderedOpsError, match="open windows"):
                windows.plan(before("orders", 5), "w", policy)
            assert time.monotonic() - started >= 3


@pytest.mark.parametrize("value", [0, -5, math.nan, math.inf, "5", None, True])
@pytest.mark.parametrize("name", ["timeout_s", "lookup_timeout_s", "stall_timeout_s"])
def test_a_bound_is_a_positive_number(name: str, value: object) -> None:
    """Anything else is refused before anything is opened."""
    bounds: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=name):
        OrderedWindows({"bootstrap.servers": "127.0.0.1:1"}, "group", **bounds)


# --- one process, one call at a time ------------------------------------------------------------


def test_nothing_works_after_close(bootstrap: str, group_id: str, some_plan: WindowPlan) -> None:
    """Every call says so; closing again is nothing."""
    windows = OrderedWindows({"bootstrap.servers": bootstrap}, group_id)
    windows.close()
    windows.close()
    for call in PUBLIC.values():
        with pytest.raises(ClosedError, match=group_id):
            call(windows, some_plan)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_cannot_be_copied(
    copied: Callable[[Any], object], bootstrap: str, group_id: str
) -> None:
    """A named error says what to pass on instead."""
    with (
        OrderedWindows({"bootstrap.servers": bootstrap}, group_id) as windows,
        pytest.raises(NotShareableError, match="settings and the group"),
    ):
        copied(windows)


def test_threads_take_turns(bootstrap: str, orders: str, group_id: str) -> None:
    """Four threads on one object: every window planned, no offset twice."""
    with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=100) as windows:
        windows.plan(before(orders, 1, Earliest()), "first")
        with ThreadPoolExecutor(4) as pool:
            seconds = {f"w{number}": 8 * number for number in range(1, 5)}
            plans = [
                pool.submit(windows.plan, before(orders, until), name)
                for name, until in seconds.items()
            ]
            assert {one.result().window_id for one in plans} == set(seconds)
        taken = [
            offset
            for record in windows.list()
            for offsets in record.plan.taken.values()
            for a, b in offsets.ranges
            for offset in range(a, b)
        ]
        assert sorted(taken) == list(range(6))


def test_a_thread_does_not_wait_for_ever() -> None:
    """Behind a call that takes longer than its own bound it gets a named error."""
    with InMemoryKafka() as kafka:
        kafka.create_topic("orders")
        kafka.produce("orders", timestamp_ms=BASE_MS)
        with OrderedWindows(kafka.settings, "group", timeout_s=0.3) as windows:
            windows.plan(before("orders", 10, Earliest()), "w")
            started, done = threading.Event(), threading.Event()

            def keep(_: object) -> bool:
                started.set()
                return done.wait(30)

            thread = threading.Thread(target=lambda: windows.list(keep))
            thread.start()
            try:
                assert started.wait(30)
                with pytest.raises(NotShareableError, match="another thread"):
                    windows.list()
            finally:
                done.set()
                thread.join()


@pytest.mark.slow
def test_a_forked_child_is_told_at_once_and_ends(
    bootstrap: str, orders: str, group_id: str
) -> None:
    """Each use of what its parent opened is a named error, closing is nothing, and its end does not hang."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fork_worker", bootstrap, group_id, orders],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    assert {name for name, (_, ended) in told.items() if ended != "ended"} == set()
    for name, (said, _) in told.items():
        if "close" in name or "give up" in name or name == "nothing":
            assert said.startswith(("None", "[None")), name
        else:
            assert said.startswith("NotShareableError"), f"{name}: {said}"
            assert "Open one in this process" in said


# --- the log of a call --------------------------------------------------------------------------


@pytest.mark.long
def test_a_green_call_leaves_nothing_alarming_in_the_log(
    bootstrap: str, orders: str, group_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two services fence each other again and again: what their clients say of it is for debugging."""
    window = before(orders, 100, Earliest())

    def plan_and_abandon(name: str) -> None:
        with OrderedWindows({"bootstrap.servers": bootstrap}, group_id, timeout_s=100) as windows:
            for number in range(8):
                windows.plan(window, f"{name}{number}")
                windows.abandon(f"{name}{number}")

    with caplog.at_level(logging.DEBUG, logger="kafka_ordered_ops"), ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(plan_and_abandon, name) for name in "abc"]:
            done.result()
    assert [one for one in caplog.records if "fenced" in one.getMessage()], "they never met"
    loud = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert [one.getMessage() for one in loud] == []


@pytest.mark.long
def test_what_the_client_says_of_a_fenced_producer_is_for_debugging(
    bootstrap: str, orders: str, group_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The line is there, whoever looks for it; and once more, aloud, when the call fails."""
    settings = ClientSettings.from_mapping({"bootstrap.servers": bootstrap})

    def fenced() -> None:
        """A producer whose transactional id another one takes."""
        first, second = (
            open_client(
                Producer, settings.producer(transactional_id=f"koo.{group_id}"), FaultReasons()
            )
            for _ in range(2)
        )
        first.init_transactions(30)
        first.begin_transaction()
        first.produce(orders, b"x")
        assert first.flush(30) == 0
        second.init_transactions(30)
        with pytest.raises(KafkaException):
            first.commit_transaction(30)
        # The client hands its lines out while it is polled, and may raise the same error again.
        with suppress(KafkaException):
            first.poll(0)

    def failing() -> None:
        with calls.call("red", 60):
            fenced()
            raise WindowFencedError("in the end")

    with caplog.at_level(logging.DEBUG, logger="kafka_ordered_ops"):
        with calls.call("green", 60):
            fenced()
        lines = [one for one in caplog.records if "fenced" in one.getMessage()]
        assert {one.levelno for one in lines} == {logging.DEBUG}
        caplog.clear()
        with pytest.raises(WindowFencedError):
            failing()
    loud = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(loud) == 1
    assert "red failed (WindowFencedError)" in loud[0]
    assert "fenced" in loud[0]
