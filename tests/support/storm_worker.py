"""Works on windows of one group while brokers are lost: ``python -m tests.support.storm_worker``.

Arguments: bootstrap, group, topic, first time in ms, last time in ms, name, folder. It plans, commits, abandons,
replays and reads windows of its own until its standard input ends, and goes on after every error that says so; what it
asked and was told is in ``<name>.jsonl`` of the folder. Any other error ends it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from kafka_ordered_ops import Earliest, KafkaOrderedOpsError, Window, WindowPlan
from kafka_ordered_ops.core.types import PlanContent
from kafka_ordered_ops.windows import OrderedWindows
from tests.support.oracle.journal import Recorder
from tests.support.oracle.reading import staged_rows

#: The bounds of each call; the test holds the longest one against them.
TIMEOUT_S = 60.0
LOOKUP_TIMEOUT_S = 20.0
STALL_TIMEOUT_S = 20.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Worker:
    """One process's windows."""

    def __init__(
        self, recorder: Recorder, topic: str, low_ms: int, high_ms: int, folder: Path
    ) -> None:
        self._recorder = recorder
        self._topic = topic
        self._span_ms = low_ms, high_ms
        self._stage = folder / f"{recorder.actor}-stage"
        self._random = Random(recorder.actor)
        self._count = 0
        self._open: list[WindowPlan] = []
        self._committed: list[str] = []

    def step(self) -> None:
        """Does one thing, whatever comes of it."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (8, self._plan_and_commit),
            (3, self._plan),
            (2, self._plan_two),
            (2, self._commit_open),
            (2, self._abandon),
            (1, self._replay),
            (1, self._read),
        ]
        [step] = self._random.choices([one for _, one in steps], [weight for weight, _ in steps])
        try:
            step()
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise

    def _new(self) -> tuple[Window, str]:
        self._count += 1
        cutoff = _EPOCH + timedelta(milliseconds=self._random.randrange(*self._span_ms))
        return (
            Window([self._topic], cutoff, starting_offsets=Earliest()),
            f"{self._recorder.actor}-{self._count}",
        )

    def _plan(self) -> None:
        self._open.append(self._recorder.plan(*self._new()))

    def _plan_and_commit(self) -> None:
        self._commit(self._recorder.plan(*self._new()))

    def _plan_two(self) -> None:
        windows, names = zip(*(self._new() for _ in range(2)), strict=True)
        self._commit(*self._recorder.plan_many(windows, names))

    def _commit_open(self) -> None:
        """Takes the window up first, as a scheduler's next attempt does."""
        if self._open:
            plan = self._open.pop(self._random.randrange(len(self._open)))
            self._commit(self._recorder.plan(plan.window, plan.window_id))

    def _commit(self, *plans: WindowPlan) -> None:
        self._recorder.commit(*plans)
        self._committed += [plan.window_id for plan in plans]

    def _abandon(self) -> None:
        if self._open:
            self._recorder.abandon(self._open.pop())

    def _replay(self) -> None:
        if self._committed:
            self._recorder.replay(self._random.choice(self._committed))

    def _read(self) -> None:
        if self._open and self._open[-1].content is not PlanContent.COVERED:
            plan = self._open[-1]
            settings = self._recorder.service.settings
            rows = staged_rows(plan, settings, self._stage, stall_timeout_s=STALL_TIMEOUT_S)
            self._recorder.delivered(plan, rows)


def main() -> None:
    """Goes on until whoever started this says that it is over, or is gone."""
    bootstrap, group_id, topic, low, high, name, folder = sys.argv[1:]
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    with (
        open(os.path.join(folder, f"{name}.jsonl"), "w") as lines,
        OrderedWindows(
            {"bootstrap.servers": bootstrap},
            group_id,
            timeout_s=TIMEOUT_S,
            lookup_timeout_s=LOOKUP_TIMEOUT_S,
            stall_timeout_s=STALL_TIMEOUT_S,
        ) as service,
    ):
        recorder = Recorder(service, name, lines=lines)
        worker = Worker(recorder, topic, int(low), int(high), Path(folder))
        while not over.is_set():
            worker.step()


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
