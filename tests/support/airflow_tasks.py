"""The tasks of a DAG around one window, for tests that run them one by one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kafka_ordered_ops import StagedOutput, stage_window
from kafka_ordered_ops.airflow import (
    AbandonWindowOperator,
    CommitWindowOperator,
    PlanWindowOperator,
    WindowPartOperator,
)
from kafka_ordered_ops.spark import planned_window
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.airflow_context import context_of
from tests.support.host_words import job_words, words


@dataclass
class Tasks:
    """The tasks of one DAG around one window."""

    windows: OrderedWindows
    topic: str
    folder: Path

    @property
    def output(self) -> str:
        return str(self.folder / "out")

    def plan(self, until: float = 25, *, try_number: int = 1, **more: Any) -> Any:
        """What the planning task returns, as the next tasks get it."""
        given: dict[str, Any] = {
            "task_id": "plan",
            "topics": self.topic,
            "group_id": self.windows.group_id,
            "mode": "catch_up",
            "starting_offsets": "earliest",
            "window_id": "w",
        }
        told = PlanWindowOperator(**words(**{**given, **more})).execute(
            context_of(until, try_number=try_number)
        )
        return json.loads(json.dumps(told))

    def job(self, told: Any) -> StagedOutput:
        """What a job of the user's does, wherever it runs: it is told the window and writes its output."""
        plan, settings = planned_window(
            {"bootstrap.servers": self.windows.settings.bootstrap_servers},
            told["group"],
            told["window_id"],
            attempt=told["attempt"],
        )
        return stage_window(plan, settings, self.output)

    def commit(self, told: Any, **more: Any) -> dict[str, Any]:
        """What the committing task returns."""
        given: dict[str, Any] = {"task_id": "commit", "window": told, "output": self.output}
        facts: dict[str, Any] = CommitWindowOperator(**words(**{**given, **more})).execute(
            context_of()
        )
        return facts

    def part(self, told: Any, **more: Any) -> dict[str, Any]:
        """What the task of one part returns."""
        given: dict[str, Any] = {"task_id": "part", "window": told}
        if not {"function", "job"} & more.keys():
            given["output"] = self.output
        facts: dict[str, Any] = WindowPartOperator(**job_words(**{**given, **more})).execute(
            context_of()
        )
        return facts

    def abandon(self, told: Any, **more: Any) -> None:
        """Runs the task that lets go."""
        AbandonWindowOperator(**words(task_id="let_go", window=told, **more)).execute(context_of())


@pytest.fixture
def tasks(windows: OrderedWindows, orders: str, tmp_path: Path) -> Tasks:
    """Tasks for `orders`."""
    return Tasks(windows, orders, tmp_path)
