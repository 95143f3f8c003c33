"""The event-driven twin of the sensor: an asset's watcher that sends an event for each cutoff that all partitions have reached.

What it has told of lies in no state of its own. A trigger that starts over, after a restart or a pause, asks the
group's ledger up to where there are windows; from Airflow 3.3 on the asset's state store knows of events whose run
has not planned yet. Between an event and that note a restart tells of a cutoff twice: see `CutoffReachedTrigger`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from kafka_ordered_ops.airflow.compat import asset_store
from kafka_ordered_ops.airflow.connection import DEFAULT_CONN_ID
from kafka_ordered_ops.airflow.support.question import Answer, Question
from kafka_ordered_ops.core.arguments import check_choice
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import duration_text, parse_time_ms, time_at, time_text
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.window import Window, safe_name
from kafka_ordered_ops.hosting.arguments import with_known_names
from kafka_ordered_ops.hosting.search import NewestReached
from kafka_ordered_ops.hosting.window_spec import span_of

#: However often it is to look: each look has connections of its own.
POKE_INTERVAL_MIN_S: Final = 1.0
#: By then the triggerer has written an event into Airflow's database: it does so about once a second.
HANDED_ON_S: Final = 5.0
#: Cutoffs closer than that would come faster than runs can begin.
EVERY_MIN: Final = timedelta(seconds=1)

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Steps:
    """The cutoffs: equally far apart for all time, numbered from the epoch."""

    every_ms: int
    offset_ms: int

    def at(self, timestamp_ms: int) -> int:
        """The last step at or before a time."""
        return (timestamp_ms - self.offset_ms) // self.every_ms

    def time_ms(self, step: int) -> int:
        """When a step is."""
        return step * self.every_ms + self.offset_ms


class CutoffReachedTrigger(BaseEventTrigger):
    """Tells of each cutoff that all partitions of some topics have reached, for an `AssetWatcher`.

    ::

        reached = CutoffReachedTrigger(
            topics="orders", group_id="orders-hourly", every=timedelta(hours=1), grace="PT10M"
        )
        hour = Asset("orders_hour", watchers=[AssetWatcher("orders_hour_is_in", trigger=reached)])
        with DAG("orders", schedule=[hour], max_active_runs=1):
            OrderedWindowOperator(task_id="orders", group_id="orders-hourly", on_covered="skip", ...)

    A cutoff is reached when every partition is live at it or idle, as `PartitionsLiveSensor` has it; never before
    the clock is there. Of several that were reached since the last look only the newest gets an event: a catch-up
    window takes everything before it. A group without windows begins with the newest that is reached.

    The event is ``{"cutoff": ..., "previous": ..., "group": ..., "topics": [...], "summary": ..., "counts": {...}}``;
    a task of the run that it starts takes its cutoff from there (`times.resolve`). A cutoff at or before that of a
    window of the group is not told, nor, from Airflow 3.3 on, one that was told before a restart. A restart within
    seconds of an event, or before its window is planned where there is no store, tells it twice. The
    second run finds that its records are taken, or being taken: nothing counts twice, and with ``on_covered="skip"``
    its task is skipped.

    The group is not joined, and nothing of it is changed. Nobody waits for a watcher, so it goes on looking after
    any error, and each is in the triggerer's log. Nothing here is a template.

    Args:
        topics: names, or regular expressions that begin with ``^``; one, or a list.
        group_id: the consumer group whose windows the event is for: its own, and no other watcher's.
        every: how far apart the cutoffs are, counted from the epoch in UTC; 1 s at least.
        offset: how long after those; less than `every`. ``PT6H`` for six o'clock with days.
        kafka_conn_id: a connection of type ``kafka``.
        max_out_of_orderness: how far behind the cutoff the records must have come.
        grace: how long after the cutoff a silent partition counts as idle; None: never.
        isolation: ``read_committed`` or ``read_uncommitted``.
        exclude: names or patterns to leave out.
        settings_allowed: more of librdkafka's settings to take from the connection.
        ledger_topic: the topic that holds plans and progress.
        poke_interval: seconds between two looks, 1 at least.

    Raises:
        ConfigError: an invalid argument.
    """

    @with_known_names
    def __init__(
        self,
        *,
        topics: str | Sequence[str],
        group_id: str,
        every: timedelta | str,
        offset: timedelta | str = timedelta(0),
        kafka_conn_id: str = DEFAULT_CONN_ID,
        max_out_of_orderness: timedelta | str | None = None,
        grace: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        settings_allowed: Sequence[str] = (),
        ledger_topic: str | None = None,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not math.isfinite(poke_interval) or poke_interval < POKE_INTERVAL_MIN_S:
            raise ConfigError(
                f"poke_interval={poke_interval}: seconds, {POKE_INTERVAL_MIN_S:g} at least"
            )
        self.poke_interval = poke_interval
        self._steps = _steps(every, offset)
        self._question = Question(
            conn_id=_name(kafka_conn_id, "kafka_conn_id"),
            group_id=_name(group_id, "group_id"),
            window=Window(
                [topics] if isinstance(topics, str) else topics,
                cutoff=time_at(0),
                max_out_of_orderness=span_of(max_out_of_orderness, "max_out_of_orderness"),
                isolation=check_choice(isolation, Isolation, what="isolation"),
                exclude=[exclude] if isinstance(exclude, str) else exclude,
            ),
            grace=span_of(grace, "grace"),
            settings_allowed=tuple(settings_allowed),
            ledger_topic=ledger_topic,
        )
        #: The last look at the next cutoff: what it has read is not read again.
        self._before: Answer | None = None
        #: The last line in the log about a look.
        self._said = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """What another process makes this trigger of; equal for equal triggers, by which Airflow knows them."""
        question, window = self._question, self._question.window
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "topics": list(window.topics),
                "group_id": question.group_id,
                "every": duration_text(self._steps.every_ms),
                "offset": duration_text(self._steps.offset_ms),
                "kafka_conn_id": question.conn_id,
                "max_out_of_orderness": _span_text(window.max_out_of_orderness),
                "grace": _span_text(question.grace),
                "isolation": window.isolation.value,
                "exclude": list(window.exclude),
                "settings_allowed": list(question.settings_allowed),
                "ledger_topic": question.ledger_topic,
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Tells of cutoffs for as long as Airflow wants to hear of them."""
        told: int | None = None
        while True:
            rest = self.poke_interval
            try:
                if told is None:
                    told = await self._begin()
                reached = await self._reached(told)
            except Exception as error:  # noqa: BLE001 - Airflow starts a watcher that ends again at once, for ever
                self.log.error(
                    "Looking failed and is tried again: %s: %s", type(error).__name__, error
                )
                reached = None
            if told is not None and reached is not None:
                yield self._event(told, *reached)
                told = reached[0]
                # Not before the event is safe: told twice does no harm, and never told would.
                rest = max(0.0, rest - HANDED_ON_S)
                await asyncio.sleep(HANDED_ON_S)
                await self._note(told)
            await asyncio.sleep(rest)

    async def _begin(self) -> int:
        """The last step that needs not be told, by the group's windows and the asset's store."""
        now_ms = _now_ms()
        known = [*await _in_thread(self._cutoffs), *await self._noted()]
        # Of a cutoff that is still to come nothing was told; there are windows that may have one.
        past = [cutoff_ms for cutoff_ms in known if cutoff_ms <= now_ms]
        begin = self._steps.at(max(past, default=0))
        self.log.info(
            "Cutoffs after %s are told.",
            time_text(self._steps.time_ms(begin)) if past else "the epoch",
        )
        return begin

    def _cutoffs(self) -> list[int]:
        """The cutoffs of the group's windows that hold records, or did."""
        with self._question.open_windows() as windows:
            return [
                record.plan.cutoff_ms
                for record in windows.list()
                if record.status.is_open or record.status.is_done
            ]

    async def _reached(self, told: int) -> tuple[int, Answer] | None:
        """The newest step after the last one told that is reached, with the look that says so."""
        newest = self._steps.at(_now_ms())
        if newest <= told:
            return None
        reached: tuple[int, Answer] | None = None
        search = NewestReached(told + 1, newest + 1, from_first=True)
        while (step := search.step) is not None:
            found = await self._look(step)
            if found.is_over:
                reached = step, found
            search.saw(found.is_over, self._guess(found))
        if reached is not None:
            self._before = None
        return reached

    async def _look(self, step: int) -> Answer:
        question = replace(
            self._question,
            window=replace(self._question.window, cutoff=time_at(self._steps.time_ms(step))),
        )
        found: Answer = await _in_thread(partial(question.look, self._before, is_first=False))
        if self._said != (
            said := f"Cutoff {time_text(question.window.cutoff_ms)}: {found.summary}."
        ):
            # Not each minute for hours.
            self._said = said
            self.log.info("%s", said)
        if not found.is_over:
            self._before = found
        return found

    def _guess(self, look: Answer) -> int | None:
        """The step that the slowest partition has come to, by the newest record that is known of it."""
        if look.liveness is None:
            return None
        newest = [one.newest_ms for one in look.liveness.waiting if one.newest_ms is not None]
        out_of_orderness_ms = self._question.window.out_of_orderness_ms or 0
        return self._steps.at(min(newest) - out_of_orderness_ms) if newest else None

    def _event(self, told: int, step: int, look: Answer) -> TriggerEvent:
        payload = {
            "cutoff": time_text(self._steps.time_ms(step)),
            "previous": time_text(self._steps.time_ms(told))
            if self._steps.time_ms(told) > 0
            else None,
            "group": self._question.group_id,
            "topics": list(self._question.window.topics),
            "summary": look.summary,
            "counts": look.found["counts"],
        }
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    # --- the asset's store -----------------------------------------------------------------------

    @property
    def _key(self) -> str:
        return f"kafka_ordered_ops.cutoff.{safe_name(self._question.group_id)}"

    async def _noted(self) -> list[int]:
        """The cutoff that was told last, if the asset's store has one."""
        if (store := asset_store(self)) is None:
            return []
        try:
            text = await store.aget(self._key)
            return (
                [] if text is None else [parse_time_ms(str(text), what="the cutoff in the store")]
            )
        except Exception as error:  # noqa: BLE001 - a hint: without it a cutoff may be told twice, and no more
            self.log.warning("The asset's state store is of no help: %s", error)
            return []

    async def _note(self, step: int) -> None:
        if (store := asset_store(self)) is None:
            return
        try:
            await store.aset(self._key, time_text(self._steps.time_ms(step)))
        except Exception as error:  # noqa: BLE001 - as above
            self.log.warning("The asset's state store does not take the cutoff: %s", error)


async def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """The client waits for brokers: never in the loop of all triggers, nor in the one thread they may share."""
    from asgiref.sync import sync_to_async

    return await sync_to_async(call, thread_sensitive=False)(*args)


def _steps(every: timedelta | str, offset: timedelta | str) -> Steps:
    apart, after = span_of(every, "every"), span_of(offset, "offset")
    if apart is None or apart < EVERY_MIN or apart % _MS:
        raise ConfigError(f"every={every}: a span of whole milliseconds, {EVERY_MIN} at least")
    if after is None or not timedelta(0) <= after < apart or after % _MS:
        raise ConfigError(
            f"offset={offset}: a span of whole milliseconds, shorter than every={every}"
        )
    return Steps(apart // _MS, after // _MS)


def _name(value: str, what: str) -> str:
    if not value or "{{" in value:
        raise ConfigError(
            f"{what}={value!r}: a name, as it is; a watcher's arguments are no templates"
        )
    return value


def _span_text(span: timedelta | None) -> str | None:
    return None if span is None else duration_text(span // _MS)


def _now_ms() -> int:
    return int(time.time() * 1000)
