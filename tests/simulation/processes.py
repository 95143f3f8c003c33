"""What a process of a history does: it delivers windows, abandons, replays and cleans, and adopts another topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

from kafka_ordered_ops import (
    CommitUnknownError,
    Earliest,
    OrderedWindows,
    OutputOwnedError,
    Policy,
    ReadTimeoutError,
    RecordsLostError,
    SinkError,
    StagedOutput,
    TopicRecreatedError,
    UnknownTopicError,
    UnknownWindowError,
    Window,
    WindowFencedError,
    WindowPlan,
    WindowSupersededError,
)
from kafka_ordered_ops.core.errors import BrokerUnreachableError, LedgerUnavailableError
from kafka_ordered_ops.core.types import OnDataLoss
from kafka_ordered_ops.delivery.verdict import as_replay
from kafka_ordered_ops.kafka.ports import open_reader
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.output.address import is_in_store
from kafka_ordered_ops.output.filesystem import as_sink_error
from kafka_ordered_ops.output.writing.draft import Draft, drafts_of
from tests.simulation.oracle import LAST_CUTOFF_S, Oracle, Place
from tests.simulation.world import TOPIC, World
from tests.support.windows_support import at

#: Errors that tell a process to run the window again, or to leave it to another one.
_PASSING: Final = (
    BrokerUnreachableError,
    CommitUnknownError,
    LedgerUnavailableError,
    ReadTimeoutError,
    RecordsLostError,
    SinkError,
    UnknownWindowError,
    WindowFencedError,
    WindowSupersededError,
)
#: The one of them that nothing in a history is a reason for.
_NEVER: Final = OutputOwnedError
#: Errors of a topic that is gone, or another one.
_OF_TOPICS: Final = (TopicRecreatedError, UnknownTopicError)


@dataclass(frozen=True)
class Worker:
    """The processes of one group."""

    world: World
    oracle: Oracle
    group_id: str
    root: str
    #: How many windows there are.
    windows: int
    policy: Policy
    #: The newest plan that a process has got, by window.
    plans: dict[str, WindowPlan] = field(default_factory=dict)

    def run(self) -> None:
        """Deliver the windows, in some order, like a task that is retried."""
        random, names = self.world.random, self._names()
        random.shuffle(names)
        with self._service() as windows:
            for name in names:
                self._attempt(windows, partial(self._deliver, windows, name))
                others: list[Callable[[OrderedWindows, str], None]] = [
                    self._abandon,
                    self._start_again,
                    self._replay,
                    self._clean,
                ]
                for do in others:
                    if random.random() < 0.15:
                        self._attempt(windows, partial(do, windows, random.choice(names)))

    def finish(self) -> None:
        """Deliver what is left: every window once more, and one that takes all that there is."""
        with self._service() as windows:
            if self.world.life:
                self._attempt(windows, partial(self._adopt, windows))
            for name in [*self._names(), "last"]:
                self._deliver(windows, name)
            windows.clean(self.root, older_than=timedelta(0))

    # --- steps ------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        return [f"w{number + 1}" for number in range(self.windows)]

    def _attempt(self, windows: OrderedWindows, do: Callable[[], object]) -> None:
        try:
            do()
        except _PASSING as error:
            if isinstance(error, _NEVER):
                raise
        except _OF_TOPICS as error:
            if not self.world.has_been_recreated:
                raise
            self.world.scheduler.told.append(f"          {type(error).__name__}")
            if isinstance(error, TopicRecreatedError) and self.world.random.random() < 0.5:
                self._attempt(windows, partial(self._adopt, windows))

    @contextmanager
    def _service(self) -> Iterator[OrderedWindows]:
        with OrderedWindows(
            self.world.kafka.settings,
            self.group_id,
            clock=self.world.clock,
            timeout_s=60,
            lookup_timeout_s=20,
        ) as windows:
            yield windows

    def _deliver(self, windows: OrderedWindows, name: str) -> None:
        cutoff_s = LAST_CUTOFF_S if name == "last" else int(name[1:]) * 10
        window = Window(
            [TOPIC], at(cutoff_s), starting_offsets=Earliest(), on_data_loss=OnDataLoss.WARN
        )
        plan = windows.plan(window, name, self.policy)
        self.world.scheduler.told.append(
            f"          {name}: {plan.status}, claim {plan.claim_id}, attempt {plan.attempt}"
        )
        self.oracle.planned(plan)
        self.plans[name] = plan
        windows.deliver_many([plan], self._write, StagedOutput.found)
        self.oracle.delivered(plan)

    def _start_again(self, windows: OrderedWindows, name: str) -> None:
        """Start the job of an attempt whose first one may still run, as a host does that has lost contact."""
        if plan := self.plans.get(name):
            self.world.scheduler.told.append(f"          {name}: attempt {plan.attempt} once more")
            windows.deliver_many([plan], self._write, StagedOutput.found)

    def _abandon(self, windows: OrderedWindows, name: str) -> None:
        record = windows.abandon(name)
        self.world.scheduler.told.append(
            f"          {name}: {record.status}, {record.plan.claim_id}"
        )
        self.oracle.gave_up(self.group_id, record)

    def _replay(self, windows: OrderedWindows, name: str) -> None:
        plan, result = windows.replay(name), windows.show(name).result
        run_id = str(self.world.random.random())
        plan = as_replay(plan, result, run_id=run_id, try_number=1)
        self.world.scheduler.told.append(f"          {name}: replayed, attempt {plan.attempt}")
        windows.deliver_many([plan], partial(self._write, is_replay=True), StagedOutput.found)

    def _clean(self, windows: OrderedWindows, _: str) -> None:
        windows.clean(self.root, older_than=timedelta(seconds=self.world.random.choice([0, 1, 60])))

    def _adopt(self, windows: OrderedWindows) -> None:
        self.oracle.adopted(self.group_id, windows.adopt())

    # --- what a job does --------------------------------------------------------------------------

    def _write(self, plans: Sequence[WindowPlan], *, is_replay: bool = False) -> list[StagedOutput]:
        return [self._staged(plan, is_replay=is_replay) for plan in plans]

    def _staged(self, plan: WindowPlan, *, is_replay: bool) -> StagedOutput:
        """Read a plan's records, and stage them in two files."""
        rows = sorted(self._read(plan))
        self.oracle.wrote(plan, frozenset(rows), is_replay=is_replay)
        with drafts_of([StagedOutput.of(plan, self.root)]) as (draft,):
            for number, part in enumerate((rows[::2], rows[1::2])):
                content = {"job": [plan.claim_id, plan.attempt, draft.token], "rows": part}
                self._put(draft, f"part-{number}.json", json.dumps(content).encode())
            return draft.seal({"records": len(rows)})

    def _put(self, draft: Draft, name: str, content: bytes) -> None:
        path = f"{draft.path}/{name}"
        if is_in_store(path):
            self.world.store.put(path, content)
            return
        with as_sink_error(f"{path} cannot be written"), draft.files.sink(path) as sink:
            for part in (content[:20], content[20:]):
                self.world.command("write a part of a file")
                sink.write(part)

    def _read(self, plan: WindowPlan) -> list[Place]:
        with open_reader(
            ClientSettings.of(self.world.kafka.settings),
            plan.group_id,
            plan.isolation,
            plan.taken,
            columns=["partition", "offset", "value"],
            stall_timeout_s=100,
            topic_ids=plan.topic_ids,
        ) as reader:
            return [
                (int(row["value"]), row["partition"], row["offset"])
                for batch in reader.batches()
                for row in batch.to_pylist()
            ]
