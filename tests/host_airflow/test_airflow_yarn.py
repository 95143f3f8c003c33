"""Deferred applications on a real YARN: their drivers are found again by their tags, ended, and committed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import Application, Window
from kafka_ordered_ops.airflow import OrderedWindowOperator
from kafka_ordered_ops.core.types import WindowStatus
from kafka_ordered_ops.spark.applications.yarn import ResourceManager
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import context_of, kafka_connection, offsets_in
from tests.support.airflow_versions import TaskDeferred, needs_trigger_kills
from tests.support.submit_support import COPY, application, wait_for
from tests.support.yarn_support import Hadoop, yarn_submit
from tests.support.yarn_support import archive as archive
from tests.support.yarn_support import hadoop as hadoop

__all__ = ["kafka_connection"]

pytestmark = [
    needs_trigger_kills,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(1_800),
]

_JOB_S = 800.0


def test_a_driver_is_found_again_ended_and_committed(
    hadoop: Hadoop, archive: Path, windows: OrderedWindows, orders: str, tmp_path: Path
) -> None:
    """A second execution waits for the first one's driver; a cleared task ends it; the next driver's output is published."""
    job = application(tmp_path, COPY)

    def operator() -> OrderedWindowOperator:
        return OrderedWindowOperator(
            task_id="task",
            window=Window(orders, starting_offsets="earliest"),
            group_id=windows.group_id,
            mode="catch_up",
            output=str(tmp_path / "lake"),
            job=Application(job, submit=yarn_submit(hadoop, archive, "cluster", timeout_s=_JOB_S)),
            deferrable=True,
        )

    def deferred() -> Any:
        with pytest.raises(TaskDeferred) as caught:
            operator().execute(context_of(25))
        return caught.value.trigger

    async def events(trigger: Any) -> list[Any]:
        async with asyncio.timeout(_JOB_S):
            return [event.payload async for event in trigger.run()]

    first = deferred()
    manager = ResourceManager(tuple(first.urls))

    def state(tag: str) -> str | None:
        application = manager.application(tag)
        return None if application is None else application.state

    assert state(first.tag) in ("ACCEPTED", "RUNNING")
    # As after the death of a worker.
    assert deferred().tag == first.tag
    # As if the task were cleared.
    asyncio.run(first.on_kill())
    wait_for(lambda: state(first.tag) == "KILLED", "the driver has ended", _JOB_S)
    second = deferred()
    assert second.tag != first.tag
    (event,) = asyncio.run(events(second))
    assert event == {"state": "FINISHED", "timed_out": False}
    facts = operator().execute_complete(context_of(25), event)
    # Seconds 0, 10, 20, 5, 15 at offsets 0 to 3 and 5.
    assert offsets_in(facts["output"]) == [0, 3, 1, 5, 2]
    (record,) = windows.list()
    assert (record.status, record.plan.attempt) == (WindowStatus.PUBLISHED, 2)
