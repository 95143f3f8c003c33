"""The watcher's trigger on a real broker: which cutoffs it tells of, where it goes on, and what its runs deliver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, cast

import pytest
from airflow.triggers.base import TriggerEvent

from kafka_ordered_ops import BrokerUnreachableError, Earliest, UnknownTopicError
from kafka_ordered_ops.airflow import CutoffReachedTrigger, OrderedWindowOperator
from kafka_ordered_ops.airflow.compat import AirflowSkipException
from kafka_ordered_ops.airflow.triggers import cutoff_reached as room
from kafka_ordered_ops.core.times import time_text
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.windows import OrderedWindows
from tests.conftest import MakeTopic, Produce
from tests.support.airflow_context import Make, Sink, committed, context_of, kafka_connection, make
from tests.support.event_support import revived, told_by_watchers
from tests.support.sensor_support import NOWHERE, point_to, watched, write
from tests.support.windows_support import BASE_MS, TIMEOUT_S, before

__all__ = ["kafka_connection", "make"]


def cutoff(seconds: float) -> str:
    """A moment of the tests' time, as events have it."""
    return time_text(BASE_MS + int(seconds * 1000))


SetClock = Callable[[float], None]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets the trigger's clock, in the tests' time; an hour in at first."""
    now = [3600.0]
    monkeypatch.setattr(room, "_now_ms", lambda: BASE_MS + int(now[0] * 1000))

    def set_to(seconds: float) -> None:
        now[0] = seconds

    return set_to


@pytest.fixture(autouse=True)
def _no_rest(clock: SetClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the triggerer and the cluster need makes no difference to what is told."""
    monkeypatch.setattr(room, "EVENT_STORED_S", 0.0)
    monkeypatch.setattr(room, "POKE_INTERVAL_MIN_S", 0.0)


def trigger_on(topic: str, group_id: str, **more: Any) -> CutoffReachedTrigger:
    """A trigger for each tenth second of the tests' time, which looks often; as another process makes it."""
    given: dict[str, Any] = {"every": timedelta(seconds=10), "poke_interval": 0.02, **more}
    return revived(CutoffReachedTrigger(topics=topic, group_id=group_id, **given))


#: What each round of looks has come to.
Rounds = list[Any]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Every round of looks that has ended, whichever trigger's."""
    found: Rounds = []
    look = CutoffReachedTrigger._reached

    async def watched_look(self: CutoffReachedTrigger, told: int) -> Any:
        found.append(reached := await look(self, told))
        return reached

    monkeypatch.setattr(CutoffReachedTrigger, "_reached", watched_look)
    return found


class Watch:
    """A running trigger."""

    def __init__(self, events: AsyncGenerator[TriggerEvent, None]) -> None:
        self._events = events
        self._next: asyncio.Task[TriggerEvent] | None = None

    async def told(self) -> dict[str, Any]:
        """Its next event, as JSON."""
        event = await asyncio.wait_for(self._waiting(), TIMEOUT_S)
        self._next = None
        payload: dict[str, Any] = json.loads(json.dumps(event.payload))
        return payload

    async def tells_nothing(self, rounds: Rounds) -> None:
        """It looks twice more, and there is nothing to tell."""
        waiting, seen = self._waiting(), len(rounds)
        async with asyncio.timeout(TIMEOUT_S):
            while len(rounds) < seen + 2:
                await asyncio.sleep(0.02)
        assert not waiting.done(), waiting.result()
        assert not any(rounds[seen:])

    def _waiting(self) -> asyncio.Task[TriggerEvent]:
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._events))
        return self._next

    async def end(self) -> None:
        """As the triggerer ends."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait([self._next])
        await self._events.aclose()


@asynccontextmanager
async def watch(trigger: CutoffReachedTrigger) -> AsyncIterator[Watch]:
    """Runs a trigger, as the triggerer does."""
    running = Watch(cast("AsyncGenerator[TriggerEvent, None]", trigger.run()))
    try:
        yield running
    finally:
        await running.end()


async def first_of(trigger: CutoffReachedTrigger) -> dict[str, Any]:
    """What a trigger tells first."""
    async with watch(trigger) as running:
        return await running.told()


# --- which cutoffs ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_tells_of_the_newest_cutoff_that_every_partition_has_reached(
    topic: MakeTopic, produce: Produce, group_id: str, rounds: Rounds
) -> None:
    """Of many at once only the newest; each one once; and what it tells says what it stands on."""
    name = topic(partitions=2)
    write(produce, name, 61, 0)
    write(produce, name, 35, 1)

    async def scene() -> list[dict[str, Any]]:
        async with watch(trigger_on(name, group_id)) as running:
            told = [await running.told()]
            await running.tells_nothing(rounds)
            await asyncio.to_thread(write, produce, name, 60, 1)
            told.append(await running.told())
            await running.tells_nothing(rounds)
            return told

    first, second = asyncio.run(scene())
    assert first == {
        "cutoff": cutoff(30),
        "previous": None,
        "group": group_id,
        "topics": [name],
        "summary": "2 of 2 partitions live",
        "counts": {"live": 2, "idle": 0, "waiting": 0},
    }
    assert (second["cutoff"], second["previous"]) == (cutoff(60), cutoff(30))


def test_it_tells_of_no_cutoff_before_its_time(
    topic: MakeTopic, produce: Produce, group_id: str, clock: SetClock
) -> None:
    """Records may be stamped ahead of the clock: a run could not plan that window yet."""
    name = topic()
    write(produce, name, 61)
    clock(49)

    async def scene() -> list[str]:
        async with watch(trigger_on(name, group_id)) as running:
            told = [await running.told()]
            clock(50)
            told.append(await running.told())
            return [one["cutoff"] for one in told]

    assert asyncio.run(scene()) == [cutoff(40), cutoff(50)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "second"),
    [
        ({"offset": "PT3S"}, 53),
        ({"max_out_of_orderness": timedelta(seconds=5)}, 50),
        ({"every": "PT1M", "offset": timedelta(seconds=22)}, 2),
        ({"every": "PT0.5S", "offset": "PT0.25S"}, 60.75),
    ],
)
def test_where_the_cutoffs_are(
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    more: dict[str, Any],
    second: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So far apart from the epoch on, so long after; and records must have come further by the lateness."""
    monkeypatch.setattr(room, "EVERY_MIN", timedelta(seconds=0.5))
    name = topic()
    write(produce, name, 61)
    told = asyncio.run(first_of(trigger_on(name, group_id, **more)))
    assert told["cutoff"] == cutoff(second)


@pytest.mark.slow
def test_a_silent_partition_holds_it_up_until_its_grace_is_over(
    topic: MakeTopic, produce: Produce, group_id: str, rounds: Rounds
) -> None:
    """As for the sensor: without a grace for ever."""
    name = topic(partitions=2)
    write(produce, name, 61, 0)

    async def scene() -> dict[str, Any]:
        async with watch(trigger_on(name, group_id)) as running:
            await running.tells_nothing(rounds)
        return await first_of(trigger_on(name, group_id, grace="PT10M"))

    told = asyncio.run(scene())
    assert told["cutoff"] == cutoff(3600)
    assert told["counts"] == {"live": 0, "idle": 2, "waiting": 0}


# --- where it goes on ------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_goes_on_behind_the_groups_newest_window(
    windows: OrderedWindows, orders: str, group_id: str, rounds: Rounds
) -> None:
    """One that is open counts as well, and between two steps; one that was given up does not."""
    windows.commit(windows.plan(before(orders, 10, Earliest()), "done"))

    async def begun(second: float) -> None:
        assert (await first_of(trigger_on(orders, group_id)))["cutoff"] == cutoff(second)

    async def nothing() -> None:
        async with watch(trigger_on(orders, group_id)) as running:
            await running.tells_nothing(rounds)

    asyncio.run(begun(30))
    windows.plan(before(orders, 25), "open")
    asyncio.run(begun(30))
    windows.plan(before(orders, 31), "newest")
    asyncio.run(nothing())
    windows.abandon("newest")
    asyncio.run(begun(30))


class Store:
    """An asset's store, as far as it is used."""

    def __init__(self, kept: Any = None, error: Exception | None = None) -> None:
        self.kept = kept
        self.error = error
        self.key: str | None = None

    async def aget(self, key: str, default: Any = None) -> Any:
        """What was kept."""
        if self.error is not None:
            raise self.error
        assert self.key in (None, key)
        return default if self.kept is None else self.kept

    async def aset(self, key: str, value: Any) -> None:
        """Keeps a value."""
        if self.error is not None:
            raise self.error
        self.key, self.kept = key, json.loads(json.dumps(value))


def with_store(trigger: CutoffReachedTrigger, store: Store) -> CutoffReachedTrigger:
    """A trigger with what Airflow gives it from 3.3 on."""
    cast("Any", trigger).asset_state_store = store
    return trigger


@pytest.mark.slow
def test_what_was_told_before_a_restart_is_not_told_again(
    topic: MakeTopic, produce: Produce, group_id: str, rounds: Rounds
) -> None:
    """Though no run has planned yet. It is noted only when the event is safe: else it might never be told."""
    name, store = topic(), Store()
    write(produce, name, 61)

    async def scene() -> None:
        told = await first_of(with_store(trigger_on(name, group_id), store))
        assert (told["cutoff"], store.kept) == (cutoff(60), None)
        async with watch(with_store(trigger_on(name, group_id), store)) as running:
            assert (await running.told())["cutoff"] == cutoff(60)
            await running.tells_nothing(rounds)
            assert store.kept == cutoff(60)
        async with watch(with_store(trigger_on(name, group_id), store)) as running:
            await running.tells_nothing(rounds)
            await asyncio.to_thread(write, produce, name, 70)
            assert (await running.told())["cutoff"] == cutoff(70)

    asyncio.run(scene())


@pytest.mark.slow
@pytest.mark.parametrize(
    "store",
    [
        Store("no time"),
        Store(17),
        Store("2100-01-01T00:00:00Z"),
        Store("2023-11-01T00:00:00Z"),
        Store(error=ValueError("two assets")),
    ],
)
def test_what_the_store_has_is_a_hint_and_no_law(
    topic: MakeTopic, produce: Produce, group_id: str, store: Store
) -> None:
    """People can edit it, and one trigger may watch two assets: then it tells what it would without."""
    name = topic()
    write(produce, name, 61)

    async def scene() -> list[str]:
        async with watch(with_store(trigger_on(name, group_id), store)) as running:
            told = [await running.told()]
            await asyncio.to_thread(write, produce, name, 70)
            told.append(await running.told())
            return [one["cutoff"] for one in told]

    assert asyncio.run(scene()) == [cutoff(60), cutoff(70)]


def test_a_watcher_outlives_what_goes_wrong(
    topic: MakeTopic,
    produce: Produce,
    group_id: str,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow would start it again at once, for ever: it rests instead, and says why it waits."""
    name = f"later-{group_id}"
    looks = watched(monkeypatch)

    def mend() -> None:
        topic(name)
        write(produce, name, 61)

    async def scene() -> dict[str, Any]:
        point_to(monkeypatch, NOWHERE)
        async with watch(trigger_on(name, group_id)) as running:
            await asyncio.sleep(0)
            told = asyncio.ensure_future(running.told())
            point_to(monkeypatch, bootstrap)
            async with asyncio.timeout(TIMEOUT_S):
                while not any(isinstance(look, UnknownTopicError) for look in looks):
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(mend)
            return await told

    assert asyncio.run(scene())["cutoff"] == cutoff(60)


@pytest.mark.slow
def test_a_watcher_waits_for_brokers_outside_the_loop(
    group_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop is all triggers'; and nobody who answers is no end either."""
    point_to(monkeypatch, NOWHERE)
    errors: list[str] = []
    monkeypatch.setattr("kafka_ordered_ops.airflow.support.question.LOOK_TIMEOUT_S", 2.0)
    trigger = trigger_on("orders", group_id)
    monkeypatch.setattr(trigger.log, "error", lambda *told: errors.append(told[1]))

    async def scene() -> int:
        turns = 0
        async with watch(trigger) as running:
            told = asyncio.ensure_future(running.told())
            async with asyncio.timeout(TIMEOUT_S):
                while len(errors) < 2:
                    await asyncio.sleep(0.01)
                    turns += 1
            assert not told.done()
            told.cancel()
        return turns

    assert asyncio.run(scene()) > 50
    assert errors == [BrokerUnreachableError.__name__] * 2


# --- the run behind it -----------------------------------------------------------------------------


def run_by(told: dict[str, Any], run_id: str) -> dict[str, Any]:
    """The context of a run that an event has started."""
    return context_of(run_id=run_id, triggering_asset_events=told_by_watchers(told))


@pytest.mark.slow
def test_a_run_takes_the_cutoff_of_its_event(
    make: Make, orders: str, group_id: str, windows: OrderedWindows
) -> None:
    """Exactly what lies before it; and the next event comes behind it."""
    told = asyncio.run(first_of(trigger_on(orders, group_id)))
    sink = Sink()
    facts = make(job=sink).execute(run_by(told, "one"))
    assert (facts["cutoff"], facts["cutoff_source"]) == (cutoff(30), "an asset event")
    assert sink.taken == [[0, 3, 1, 5, 2]]
    assert committed(windows, orders) == [4]


@pytest.mark.slow
def test_an_event_that_comes_twice_does_no_harm(
    make: Make, orders: str, group_id: str, windows: OrderedWindows
) -> None:
    """The second run finds that its records were taken: it is skipped, or replays that window, as asked."""
    told = asyncio.run(first_of(trigger_on(orders, group_id)))
    first, again = Sink(), Sink()
    facts = make(job=first).execute(run_by(told, "one"))
    before_second = committed(windows, orders)
    with pytest.raises(AirflowSkipException, match="other windows have taken its records"):
        make(job=again, on_covered="skip").execute(run_by(told, "two"))
    assert again.taken == []
    replayed = make(job=again).execute(run_by(told, "three"))
    assert replayed["window_id"] == facts["window_id"]
    assert again.taken == first.taken
    assert committed(windows, orders) == before_second


class Twice(Sink):
    """A job that is still at work when the second run comes."""

    def __init__(self, second: OrderedWindowOperator, told: dict[str, Any]) -> None:
        super().__init__()
        self.second = second
        self.told = told
        self.skipped = ""

    def __call__(self, window: Any) -> dict[str, int]:
        """As the other one, behind it."""
        with pytest.raises(AirflowSkipException) as raised:
            self.second.execute(run_by(self.told, "two"))
        self.skipped = str(raised.value)
        return super().__call__(window)


@pytest.mark.slow
def test_an_event_that_comes_twice_at_once_does_no_harm(
    make: Make, orders: str, group_id: str, windows: OrderedWindows
) -> None:
    """The second run steps around the first one's open window: it is skipped and says why, and neither fails."""
    told = asyncio.run(first_of(trigger_on(orders, group_id)))
    nothing = Sink()
    first = Twice(make(job=nothing), told)
    done = make(job=first).execute(run_by(told, "one"))
    assert "held by 1 open window" in first.skipped
    assert [offset for taken in nothing.taken for offset in taken] == []
    assert first.taken == [[0, 3, 1, 5, 2]]
    assert committed(windows, orders) == [4]
    statuses = {one.plan.window_id: one.status for one in windows.list()}
    assert statuses.pop(done["window_id"]) is WindowStatus.PUBLISHED
    assert list(statuses.values()) == [WindowStatus.COMMITTED]
