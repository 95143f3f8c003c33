"""Waiting until a window is live, the group's side of it, and looks from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from kafka_ordered_ops import (
    BrokerUnreachableError,
    ClientSettings,
    ConfigError,
    Earliest,
    KafkaOrderedOpsError,
    UnknownTopicError,
    Window,
)
from kafka_ordered_ops.core.liveness.liveness import Idle, Live, Liveness, NothingYet
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from kafka_ordered_ops.windows.queries.live import live, wait_live
from tests.conftest import MakeTopic, Produce
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at, before

Look = Callable[[Liveness | None], Liveness]


@pytest.fixture
def settings(bootstrap: str) -> ClientSettings:
    """The broker."""
    return ClientSettings.from_mapping({"bootstrap.servers": bootstrap})


def write(produce: Produce, topic: str, second: int, partition: int = 0) -> None:
    """One record, so many seconds after the tests' time zero."""
    produce([(topic, partition, None, b"x", BASE_MS + second * 1000, ())])


# --- which topics ------------------------------------------------------------------------------------


def test_patterns_select_as_they_do_for_a_window(
    settings: ClientSettings, topic: MakeTopic, produce: Produce, group_id: str
) -> None:
    """All topics that match, without the excluded ones; a new one counts at the next look."""
    first, second = topic(f"{group_id}.a"), topic(f"{group_id}.b")
    write(produce, first, 70)
    window = Window([rf"^{group_id}\..*"], at(60), exclude=[second])
    found = live(settings, window)
    assert [(one.tp.topic, type(one.verdict)) for one in found.partitions] == [(first, Live)]
    added = topic(f"{group_id}.c")
    found = live(settings, window, before=found)
    assert [(one.tp.topic, type(one.verdict)) for one in found.waiting] == [(added, NothingYet)]


def test_an_unknown_topic_is_an_error_and_not_a_wait(
    settings: ClientSettings, topic: MakeTopic
) -> None:
    """A mistyped name never becomes live: every missing name is told at once."""
    name = topic()
    with pytest.raises(UnknownTopicError, match=f"nearest: {name}"):
        live(settings, Window([name, f"{name}x"], at(60)))
    with pytest.raises(UnknownTopicError, match="no topic matches"):
        live(settings, Window([f"^{name}.+"], at(60)))


def test_a_negative_grace_is_refused(settings: ClientSettings) -> None:
    """Before anything is asked."""
    with pytest.raises(ConfigError, match="grace"):
        live(settings, Window(["orders"], at(60)), grace=timedelta(seconds=-1))


# --- the group ---------------------------------------------------------------------------------------


def test_the_groups_lag_and_open_windows_are_told(
    settings: ClientSettings, windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """Nothing of an unknown group; then what it has not done, and the windows that are open, oldest first."""
    found = live(settings, before(orders, 25), group_id)
    assert found.group is not None
    assert (found.group.is_known, found.group.open_windows) == (False, ())
    assert found.partitions[0].lag_offsets is None

    windows.commit(windows.plan(before(orders, 12, Earliest())))
    for name, second in (("older", 18), ("newer", 25)):
        windows.plan(before(orders, second), name)
    found = live(settings, before(orders, 25), group_id)
    assert found.group is not None
    assert found.group.is_known
    # Seconds 0, 10 and 5 are done, of six records.
    assert found.partitions[0].lag_offsets == 3
    assert isinstance(found.partitions[0].verdict, Live)
    listed = [(one.window_id, one.status, one.cutoff_ms) for one in found.group.open_windows]
    assert listed == [
        ("older", WindowStatus.PLANNED, BASE_MS + 18_000),
        ("newer", WindowStatus.PLANNED, BASE_MS + 25_000),
    ]
    oldest, newest = found.to_json()["open_windows"]
    assert oldest["age_seconds"] >= newest["age_seconds"] >= 0


def test_a_look_writes_nothing(
    settings: ClientSettings, windows: OrderedWindows, orders: str, group_id: str
) -> None:
    """No ledger, no state, no committed offset: the group is as unknown as before."""
    ledger = f"ledger-{group_id}"
    live(settings, before(orders, 25), group_id, ledger_topic=ledger)
    assert windows.state() is None
    with pytest.raises(UnknownTopicError):
        live(settings, Window([ledger], at(60)))


# --- waiting -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_waiting_ends_when_the_last_partition_is_written(
    settings: ClientSettings, topic: MakeTopic, produce: Produce
) -> None:
    """A producer in another thread brings the partitions up one by one."""
    name = topic(partitions=3)
    write(produce, name, 70)
    told: list[list[str]] = []
    tellings = [threading.Event(), threading.Event()]

    def tell(found: Liveness) -> None:
        told.append([one.state.value for one in found.partitions])
        tellings[min(len(told), 2) - 1].set()

    def produce_late() -> None:
        for partition, telling in ((2, tellings[0]), (1, tellings[1])):
            assert telling.wait(TIMEOUT_S)
            write(produce, name, 61, partition)

    with ThreadPoolExecutor() as pool:
        producing = pool.submit(produce_late)
        found = wait_live(looks_of(settings, before(name, 60)), timeout_s=TIMEOUT_S, report=tell)
        producing.result()
    assert found.is_live
    assert told[0] == ["live", "waiting", "waiting"]
    assert told[-1] == ["live", "live", "live"]


def test_waiting_ends_at_its_deadline(settings: ClientSettings, topic: MakeTopic) -> None:
    """The answer says what is missing; with no time at all there is still one look."""
    name = topic()
    for timeout_s in (0.0, 0.5):
        found = wait_live(looks_of(settings, before(name, 60)), timeout_s=timeout_s)
        assert not found.is_live
        assert isinstance(found.partitions[0].verdict, NothingYet)


def test_a_look_that_fails_while_waiting_is_made_again(
    settings: ClientSettings, topic: MakeTopic, produce: Produce
) -> None:
    """A broker that is away for a moment ends no wait; the first look must succeed."""
    name = topic()
    look = looks_of(settings, before(name, 60))
    away = ClientSettings.from_mapping({"bootstrap.servers": "127.0.0.1:1"})
    count = 0
    failures: list[KafkaOrderedOpsError] = []

    def look_again(seen: Liveness | None) -> Liveness:
        nonlocal count
        count += 1
        if count == 2:
            live(away, before(name, 60), timeout_s=0.5)
        if count == 3:
            assert seen is not None
            write(produce, name, 70)
        return look(seen)

    found = wait_live(look_again, timeout_s=TIMEOUT_S, failed=failures.append, pause=lambda _: None)
    assert found.is_live
    assert [type(error) for error in failures] == [BrokerUnreachableError]
    count = 1
    with pytest.raises(BrokerUnreachableError):
        wait_live(look_again, timeout_s=TIMEOUT_S)


@pytest.mark.slow
def test_an_error_that_stays_ends_the_wait(settings: ClientSettings, topic: MakeTopic) -> None:
    """Looking again would change nothing; and at the deadline the last failure is told."""
    name = topic()
    look = looks_of(settings, before(name, 60))

    def failing(error: KafkaOrderedOpsError) -> Look:
        def look_again(seen: Liveness | None) -> Liveness:
            if seen is None:
                return look(seen)
            raise error

        return look_again

    with pytest.raises(UnknownTopicError):
        wait_live(failing(UnknownTopicError("gone", topics=(name,))), timeout_s=TIMEOUT_S)
    unreachable = BrokerUnreachableError("away", code="_TRANSPORT")
    with pytest.raises(BrokerUnreachableError):
        wait_live(failing(unreachable), timeout_s=3)


def test_looks_run_in_any_thread(
    settings: ClientSettings, topic: MakeTopic, produce: Produce
) -> None:
    """Sensors of one process look at the same time, each with its own question."""
    names = [topic() for _ in range(4)]
    for number, name in enumerate(names):
        write(produce, name, 60 + number)
    grace = timedelta(seconds=1)
    with ThreadPoolExecutor(len(names)) as pool:
        found = list(pool.map(lambda name: live(settings, before(name, 62), grace=grace), names))
    verdicts = [type(one.partitions[0].verdict) for one in found]
    assert verdicts == [Idle, Idle, Live, Live]


def looks_of(settings: ClientSettings, window: Window) -> Look:
    """Looks at one window."""
    return lambda seen: live(settings, window, before=seen)
