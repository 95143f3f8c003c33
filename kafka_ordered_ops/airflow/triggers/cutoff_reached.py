"""The event-driven form of the sensor: an asset's watcher that sends an event for each cutoff that is reached.

The trigger stores no position. After a restart or a pause it reads the group's newest cutoff from the ledger. From
Airflow 3.3 on, the asset's state store also has the last event, whose run may not have planned yet. A restart between
an event and its entry in the store sends the event twice: see `CutoffReachedTrigger`.
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
from kafka_ordered_ops.core.templates import is_literal
from kafka_ordered_ops.core.times import duration_text, parse_time_ms, time_at, time_text
from kafka_ordered_ops.core.types import Isolation
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.core.window.window_id import readable_window_id
from kafka_ordered_ops.delivery.arguments import with_known_names
from kafka_ordered_ops.delivery.search import NewestReached
from kafka_ordered_ops.spec.asked import span_of

#: The shortest interval between checks: each check has its own connections.
POKE_INTERVAL_MIN_S: Final = 1.0
#: After this time the triggerer has stored an event in Airflow's database, which it does about once a second.
EVENT_STORED_S: Final = 5.0
#: Closer cutoffs would be faster than runs can begin.
EVERY_MIN: Final = timedelta(seconds=1)

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Steps:
    """The cutoffs: at equal distances, numbered from the epoch."""

    every_ms: int
    offset_ms: int

    def at(self, timestamp_ms: int) -> int:
        """Return the last step at or before a time."""
        return (timestamp_ms - self.offset_ms) // self.every_ms

    def time_ms(self, step: int) -> int:
        """Return the time of a step."""
        return step * self.every_ms + self.offset_ms


class CutoffReachedTrigger(BaseEventTrigger):
    """Sends an event for each cutoff that all partitions of some topics have reached, for an `AssetWatcher`.

    ::

        reached = CutoffReachedTrigger(
            topics="orders", group_id="orders-hourly", every=timedelta(hours=1), grace="PT10M"
        )
        hour = Asset("orders_hour", watchers=[AssetWatcher("orders_hour_is_in", trigger=reached)])
        with DAG("orders", schedule=[hour], max_active_runs=1):
            OrderedWindowOperator(task_id="orders", group_id="orders-hourly", on_covered="skip", ...)

    A cutoff is reached when every partition is live at it or idle, as for `PartitionsLiveSensor`, and never before
    the clock shows that time. If several were reached since the last check, only the newest gets an event: a catch-up
    window takes everything before it. A group without windows begins with the newest reached cutoff.

    The event is ``{"cutoff": ..., "previous": ..., "group": ..., "topics": [...], "summary": ..., "counts": {...}}``;
    a task of the run that it starts takes its cutoff from it (`times.resolve`). No event is sent for a cutoff at or
    before that of a window of the group, nor, from Airflow 3.3 on, for one that was sent before a restart. A restart
    within seconds of an event, or before its window is planned if there is no store, sends it twice. The second run
    finds its records taken: nothing counts twice, and with ``on_covered="skip"`` its task is skipped.

    The trigger joins no group and changes nothing. After any error it logs the error in the triggerer and checks
    again. No argument is a template.

    Args:
        topics: names, or regular expressions that begin with ``^``; one, or a list.
        group_id: the consumer group whose windows the events are for; one watcher for each group.
        every: the distance between cutoffs, counted from the epoch in UTC; at least 1 s.
        offset: added to each cutoff; less than `every`. ``PT6H`` for six o'clock with days.
        kafka_conn_id: a connection of type ``kafka``.
        max_out_of_orderness: how far past the cutoff a record must be stamped.
        grace: how long after the cutoff a silent partition counts as idle; None means never.
        isolation: ``read_committed`` or ``read_uncommitted``.
        exclude: names or patterns to leave out.
        ledger_topic: the topic that holds plans and progress.
        poke_interval: seconds between two checks, at least 1.

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
        ledger_topic: str | None = None,
        poke_interval: float = 60.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if not math.isfinite(poke_interval) or poke_interval < POKE_INTERVAL_MIN_S:
            raise ConfigError(
                f"poke_interval={poke_interval}: give at least {POKE_INTERVAL_MIN_S:g} second"
            )
        self.poke_interval = poke_interval
        self._steps = _steps(every, offset)
        if not is_literal((topics, exclude)):
            raise ConfigError(
                f"topics={topics!r}: not a topic name; a watcher's arguments cannot be templates"
            )
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
            ledger_topic=ledger_topic,
        )
        #: The last check of the next cutoff: its records are not read again.
        self._before: Answer | None = None
        #: The last log line about a check.
        self._logged = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments; equal for equal triggers, by which Airflow identifies them."""
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
                "ledger_topic": question.ledger_topic,
                "poke_interval": self.poke_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Send events until Airflow ends the trigger."""
        sent: int | None = None
        while True:
            delay_s = self.poke_interval
            try:
                if sent is None:
                    sent = await self._begin()
                reached = await self._reached(sent)
            except Exception as error:  # noqa: BLE001 - Airflow would restart a watcher that ends at once, for ever
                self.log.error(
                    "The check failed and is repeated: %s: %s", type(error).__name__, error
                )
                reached = None
            if sent is not None and reached is not None:
                yield self._event(sent, *reached)
                sent = reached[0]
                # Only after Airflow has stored the event: a repeated event is harmless, a missing event is not.
                delay_s = max(0.0, delay_s - EVENT_STORED_S)
                await asyncio.sleep(EVENT_STORED_S)
                await self._note(sent)
            await asyncio.sleep(delay_s)

    async def _begin(self) -> int:
        """Return the last step that needs no event, from the group's windows and the asset's store."""
        now_ms = _now_ms()
        known = [*await _in_thread(self._cutoffs), *await self._noted()]
        # No event was sent for a future cutoff, although a window may have one.
        past = [cutoff_ms for cutoff_ms in known if cutoff_ms <= now_ms]
        begin = self._steps.at(max(past, default=0))
        self.log.info(
            "Events are sent for cutoffs after %s.",
            time_text(self._steps.time_ms(begin)) if past else "the epoch",
        )
        return begin

    def _cutoffs(self) -> list[int]:
        """Return the cutoffs of the group's open and finished windows."""
        with self._question.open_windows() as windows:
            return [
                record.plan.cutoff_ms
                for record in windows.list()
                if record.status.is_open or record.status.is_done
            ]

    async def _reached(self, sent: int) -> tuple[int, Answer] | None:
        """Return the newest reached step after the last event, with its check."""
        newest = self._steps.at(_now_ms())
        if newest <= sent:
            return None
        reached: tuple[int, Answer] | None = None
        search = NewestReached(sent + 1, newest + 1, from_first=True)
        while (step := search.step) is not None:
            answer = await self._look(step)
            if answer.is_over:
                reached = step, answer
            search.saw(answer.is_over, self._guess(answer))
        if reached is not None:
            self._before = None
        return reached

    async def _look(self, step: int) -> Answer:
        question = replace(
            self._question,
            window=replace(self._question.window, cutoff=time_at(self._steps.time_ms(step))),
        )
        answer: Answer = await _in_thread(partial(question.look, self._before, is_first=False))
        if self._logged != (
            line := f"Cutoff {time_text(question.window.cutoff_ms)}: {answer.summary}."
        ):
            # Not every minute for hours.
            self._logged = line
            self.log.info("%s", line)
        if not answer.is_over:
            self._before = answer
        return answer

    def _guess(self, answer: Answer) -> int | None:
        """Return the step that the slowest partition has reached, by its newest known record."""
        if answer.liveness is None:
            return None
        newest = [
            partition.newest_ms
            for partition in answer.liveness.waiting
            if partition.newest_ms is not None
        ]
        out_of_orderness_ms = self._question.window.out_of_orderness_ms or 0
        return self._steps.at(min(newest) - out_of_orderness_ms) if newest else None

    def _event(self, sent: int, step: int, answer: Answer) -> TriggerEvent:
        payload = {
            "cutoff": time_text(self._steps.time_ms(step)),
            "previous": time_text(self._steps.time_ms(sent))
            if self._steps.time_ms(sent) > 0
            else None,
            "group": self._question.group_id,
            "topics": list(self._question.window.topics),
            "summary": answer.summary,
            "counts": answer.facts["counts"],
        }
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]

    # --- the asset's store -----------------------------------------------------------------------

    @property
    def _key(self) -> str:
        group_id = self._question.group_id
        return f"kafka_ordered_ops.cutoff.{readable_window_id(group_id, distinct=group_id)}"

    async def _noted(self) -> list[int]:
        """Return the cutoff of the last event, if the asset's store has one."""
        if (store := asset_store(self)) is None:
            return []
        try:
            text = await store.aget(self._key)
            return (
                [] if text is None else [parse_time_ms(str(text), what="the cutoff in the store")]
            )
        except Exception as error:  # noqa: BLE001 - a hint: without it, at worst an event is sent twice
            self.log.warning("The asset's state store cannot be read: %s", error)
            return []

    async def _note(self, step: int) -> None:
        if (store := asset_store(self)) is None:
            return
        try:
            await store.aset(self._key, time_text(self._steps.time_ms(step)))
        except Exception as error:  # noqa: BLE001 - as above
            self.log.warning("The asset's state store cannot store the cutoff: %s", error)


async def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking call outside the event loop of all triggers and outside the thread that they may share."""
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
            f"{what}={value!r}: give a plain name; a watcher's arguments cannot be templates"
        )
    return value


def _span_text(span: timedelta | None) -> str | None:
    return None if span is None else duration_text(span // _MS)


def _now_ms() -> int:
    return int(time.time() * 1000)
