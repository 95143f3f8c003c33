"""The sensor's trigger: it checks repeatedly, in threads, and fires when the wait is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from kafka_ordered_ops.airflow.support.question import Answer, Question
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError

#: An event seconds after a task was deferred can fail it: the scheduler may not have seen the deferral yet
#: (apache/airflow #71580).
FIRST_LOOK_S: Final = 10.0
#: The shortest interval between checks: each check has its own connections.
POKE_INTERVAL_MIN_S: Final = 1.0


class PartitionsLiveTrigger(BaseTrigger):
    """Fires when the wait is over, or after an error that waiting cannot fix.

    Its event is ``{"status": "done", "found": {...}}``, or ``{"status": "error", "error": ..., "message": ...}`` with
    the name of the error's class. Each check has its own connections and joins no consumer group. While no broker answers it checks again, bounded by the sensor's
    timeout.

    Args:
        question: the result of `Question.to_json`; no secrets.
        poke_interval: seconds between two checks, at least 1.
        first_look: seconds before the first check.
    """

    def __init__(
        self,
        question: Mapping[str, Any],
        poke_interval: float,
        first_look: float = FIRST_LOOK_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.question = dict(question)
        self.poke_interval = poke_interval
        self.first_look = first_look

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which another process makes this trigger."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "question": self.question,
                "poke_interval": self.poke_interval,
                "first_look": self.first_look,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check until there is an event to send."""
        from asgiref.sync import sync_to_async

        question = Question.from_json(self.question)
        # The client blocks: never in the event loop that all triggers share, and not in the one thread that is
        # `thread_sensitive`.
        look = sync_to_async(question.look, thread_sensitive=False)
        before: Answer | None = None
        due = time.monotonic() + self.first_look
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + max(self.poke_interval, POKE_INTERVAL_MIN_S)
            try:
                answer = await look(before, is_first=False)
            except KafkaOrderedOpsError as error:
                if not error.retriable:
                    kind = type(error).__name__
                    yield _event({"status": "error", "error": kind, "message": str(error)})
                    return
                # A broker may restart meanwhile.
                self.log.warning("The check failed and is repeated: %s", error)
                continue
            before = answer
            self.log.info("%s.", answer.summary)
            if answer.is_over:
                yield _event({"status": "done", "found": answer.to_json()})
                return


def _event(payload: Mapping[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]
