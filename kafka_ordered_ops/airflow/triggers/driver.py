"""The trigger of a deferred application: it asks the cluster manager about the driver, and fires when it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow.triggers.base import BaseTrigger, TriggerEvent

from kafka_ordered_ops.airflow.triggers.live import FIRST_LOOK_S
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError

if TYPE_CHECKING:
    from kafka_ordered_ops.spark.applications.yarn import YarnApplication

#: Seconds between two checks: one small request each.
POKE_INTERVAL_S: Final = 15.0

_DEFERRED: Final = "deferred"


class YarnDriverTrigger(BaseTrigger):
    """Fires when a driver on YARN has ended, or is not known any more; and when it ran too long, after ending it.

    Its event is ``{"state": ..., "timed_out": ...}``. If the task is cleared or marked meanwhile, the driver is ended. It
    goes on when the triggerer stops, or another triggerer takes over. While no resource manager answers, the trigger
    asks again.

    Args:
        urls: the resource managers.
        tag: the driver's tag.
        deadline: when the driver has run too long, in seconds since the epoch.
        poke_interval: seconds between two checks.
        first_look: seconds before the first check.
    """

    def __init__(
        self,
        urls: Sequence[str],
        tag: str,
        deadline: float,
        poke_interval: float = POKE_INTERVAL_S,
        first_look: float = FIRST_LOOK_S,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.urls = list(urls)
        self.tag = tag
        self.deadline = deadline
        self.poke_interval = poke_interval
        self.first_look = first_look

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and arguments from which another process makes this trigger."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "urls": self.urls,
                "tag": self.tag,
                "deadline": self.deadline,
                "poke_interval": self.poke_interval,
                "first_look": self.first_look,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check until there is an event to send."""
        await asyncio.sleep(self.first_look)
        while True:
            try:
                application = await self._application()
                if application is None or application.has_ended:
                    yield _event("UNKNOWN" if application is None else application.state)
                    return
                if time.time() > self.deadline:
                    await self._kill()
                    yield _event(application.state, timed_out=True)
                    return
            except KafkaOrderedOpsError as error:
                # A resource manager may restart meanwhile, and its applications go on.
                self.log.warning("The check failed and is repeated: %s", error)
            await asyncio.sleep(self.poke_interval)

    async def on_kill(self) -> None:
        """End the driver of a task that was cleared or marked. Airflow calls this method in the triggerer."""
        if await self._is_deferred():
            # Airflow also calls it when another triggerer takes over.
            self.log.info("The task is still deferred: its driver goes on.")
            return
        self.log.info("The task is no longer deferred: its driver with tag %s is ended.", self.tag)
        await self._kill()

    async def _is_deferred(self) -> bool:
        """Return whether the task is still deferred; False if that cannot be known."""
        try:
            return bool(await _in_thread(self._state) == _DEFERRED)
        except Exception as error:  # noqa: BLE001 - a driver must not go on because the state is unknown
            self.log.warning("The task's state cannot be read: %s: %s", type(error).__name__, error)
            return False

    def _state(self) -> str | None:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        task: Any = self.task_instance
        states = RuntimeTaskInstance.get_task_states(
            dag_id=task.dag_id,
            task_ids=[task.task_id],
            run_ids=[task.run_id],
            map_index=task.map_index,
        )
        # The name of a mapped task has its index.
        return next(iter(states.get(task.run_id, {}).values()), None)

    async def _application(self) -> YarnApplication | None:
        from kafka_ordered_ops.spark.applications.yarn import ResourceManager

        manager = ResourceManager(tuple(self.urls))
        application: YarnApplication | None = await _in_thread(manager.application, self.tag)
        return application

    async def _kill(self) -> None:
        from kafka_ordered_ops.spark.applications.yarn import ResourceManager

        await _in_thread(ResourceManager(tuple(self.urls)).kill, self.tag)


async def _in_thread(call: Callable[..., Any], *args: Any) -> Any:
    """Run a blocking call outside the event loop of all triggers and outside the thread that they may share."""
    from asgiref.sync import sync_to_async

    return await sync_to_async(call, thread_sensitive=False)(*args)


def _event(state: str, *, timed_out: bool = False) -> TriggerEvent:
    return TriggerEvent({"state": state, "timed_out": timed_out})  # type: ignore[no-untyped-call]
