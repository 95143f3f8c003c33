"""Living through a history: its steps become calls, each by one of several actors, and a judge hears them all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from random import Random
from typing import Any, Final
from unittest.mock import patch

from kafka_ordered_ops import KafkaOrderedOpsError, Policy, Window, WindowPlan
from kafka_ordered_ops.core.planning import scan_fold
from kafka_ordered_ops.core.times import time_at
from kafka_ordered_ops.core.types import Isolation, OnDataLoss, TopicPartition
from kafka_ordered_ops.kafka.ports import read_committed_offsets
from tests.support.memory_world import MemoryWorld
from tests.support.oracle.histories import ACTORS, NUMBERS, History, Step
from tests.support.oracle.journal import Journal, Recorder
from tests.support.oracle.plain import Plain
from tests.support.oracle.reading import quick_rows, staged_rows
from tests.support.oracle.serial import Judge
from tests.support.oracle.truth import Truth
from tests.support.oracle.verdict import NO_TIMESTAMP
from tests.support.oracle.words import UNTIMED_S, bound_of, second_of, short_of, told_of
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at
from tests.support.worlds import World

#: Names of topics that may come to be, in a script's words.
TOPICS: Final = ("orders", "others", "otters")

#: What changes topics.
_OF_THE_CLUSTER: Final = frozenset(
    {"write", "send", "end", "lose", "delete_before", "compact", "recreate", "grow", "appear"}
)


def problems_of(
    told: History, world: World, plain: Plain, *, transcript: list[str] | None = None
) -> list[str]:
    """Lives through a history, and says what was wrong; it stops at the first thing."""
    with (
        tempfile.TemporaryDirectory(prefix="koo-history-") as folder,
        patch.object(scan_fold, "CHUNK_RECORDS", told.chunk_records),
    ):
        return _Life(told, world, plain, f"{folder}/out", transcript).live()


@dataclass
class _Known:
    """What the driver was told, and may use again."""

    plans: list[WindowPlan] = field(default_factory=list)
    parts: list[WindowPlan] = field(default_factory=list)
    open_transactions: set[str] = field(default_factory=set)
    places: list[tuple[str, int]] = field(default_factory=list)
    backups: list[dict[tuple[str, int], tuple[int, bytes]]] = field(default_factory=list)
    values: int = 0


class _Life:
    def __init__(
        self,
        told: History,
        world: World,
        plain: Plain,
        folder: str,
        transcript: list[str] | None,
    ) -> None:
        self.told = told
        self.world = world
        self.folder = folder
        self.transcript = transcript
        self.known = _Known()
        self.names = ["^o.*"] if told.by_pattern else ["orders", "others"]
        self.asked_names = self.names
        truth = Truth(plain, [world.named(name) for name in TOPICS])
        self.judge = Judge(truth, world.named("g"), lambda: BASE_MS + round(world.now * 1000))
        self.journal = Journal()
        self.ticks = 0
        self.recorders = [
            Recorder(
                world.windows("g", run_id=f"actor {n}"),
                f"actor {n}",
                journal=self.journal,
                clock=self._tick,
                look=self.judge.look,
                heard=self.judge.hear,
            )
            for n in range(ACTORS)
        ]

    def live(self) -> list[str]:
        self._create("orders", 2)
        self._create("others", 1)
        for step in self.told.steps:
            self._take(step)
            if self.judge.problems:
                return self.judge.problems
        self._finish()
        return self.judge.problems

    # --- one step -----------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        calls = len(self.journal.calls)
        with ExitStack() as stack:
            if step.inside:
                stack.callback(self._between(step))
            self.judge.is_stale |= step.what in _OF_THE_CLUSTER
            # The judge has heard of it.
            with suppress(KafkaOrderedOpsError):
                getattr(self, f"_{step.what}")(step)
        self.judge.is_stale |= step.what in _OF_THE_CLUSTER
        if self.transcript is not None:
            told = [
                f"{call.name} {[short_of(one) for one in call.asked.get('plans', call.asked.get('window_ids', []))]} -> "
                f"{call.error or [told_of(plan) for plan in call.plans] or call.told}"
                for call in self.journal.calls[calls:]
            ]
            self.transcript.append(f"{step.label} {step.actor} {step.what}{step.numbers}: {told}")

    def _between(self, step: Step) -> Callable[[], None]:
        """Others act between the look of the step's call and its claim."""

        def others() -> None:
            for one in step.inside:
                self._take(replace(one, actor=(step.actor + 1 + one.actor % 2) % ACTORS))

        if isinstance(self.world, MemoryWorld):
            cluster = self.world.kafka._cluster
            self.world.kafka.before_commit(others)
            return lambda: cluster.due_before_commit().clear()
        ledger = self.recorders[step.actor].service._ledger
        update = ledger.update

        def overtaken(*arguments: Any, **options: Any) -> Any:
            vars(ledger).pop("update", None)
            others()
            return update(*arguments, **options)

        vars(ledger)["update"] = overtaken
        return lambda: vars(ledger).pop("update", None)

    def _tick(self) -> int:
        self.ticks += 1
        return self.ticks

    # --- the cluster --------------------------------------------------------------------------------

    def _create(self, topic: str, partitions: int) -> None:
        segment_ms = self.told.segment_ms
        config = {} if segment_ms is None else {"segment_ms": str(segment_ms)}
        self.world.create(topic, partitions, **config)
        self.known.places += [(topic, number) for number in range(partitions)]

    def _place(self, number: int) -> tuple[str, int]:
        return self.known.places[number % len(self.known.places)]

    def _seconds(self, numbers: Sequence[int]) -> list[float]:
        count = 1 + numbers[0] % 6
        return [second_of(number) for number in numbers[1 : 1 + count]]

    def _write(self, step: Step) -> None:
        topic, partition = self._place(step.numbers[0])
        for second in self._seconds(step.numbers[1:]):
            self.known.values += 1
            if second == UNTIMED_S:
                self.world.write_at_ms(topic, partition, [NO_TIMESTAMP])
            else:
                value = b"%d" % self.known.values
                self.world.write_content(topic, partition, [(second, None, value, ())])

    def _send(self, step: Step) -> None:
        transaction = f"tx{step.numbers[0] % 2}"
        self.known.open_transactions.add(transaction)
        self.world.send(
            transaction, *self._place(step.numbers[1]), *self._seconds(step.numbers[2:])
        )

    def _end(self, step: Step) -> None:
        if self.known.open_transactions:
            waiting = sorted(self.known.open_transactions)
            transaction = waiting[step.numbers[0] % len(waiting)]
            self.known.open_transactions.discard(transaction)
            self.world.end(transaction, "abort" if step.numbers[1] % 3 == 0 else "commit")

    def _delete_before(self, step: Step) -> None:
        topic, partition = self._place(step.numbers[0])
        tp = self.world.tp(topic, partition)
        [end] = self.world._lookup.end_offsets([tp], Isolation.READ_COMMITTED).values()
        self.judge.truth.look()
        self.world.delete_before(topic, partition, step.numbers[1] % (end + 1))

    def _compact(self, step: Step) -> None:
        if isinstance(self.world, MemoryWorld):
            topic, partition = self._place(step.numbers[0])
            self.judge.truth.look()
            chosen = {number % 40 for number in step.numbers[1:]}
            self.world.kafka.compact(self.world.named(topic), partition, chosen)

    def _recreate(self, step: Step) -> None:
        if not self.known.open_transactions:
            self.judge.truth.look()
            self.world.delete("others")
            self.known.places = [one for one in self.known.places if one[0] != "others"]
            self._create("others", 1 + step.numbers[0] % 2)
            self.world.write("others", 0, *self._seconds(step.numbers[1:]))

    def _grow(self, step: Step) -> None:
        topic, _ = self._place(step.numbers[0])
        count = sum(name == topic for name, _ in self.known.places)
        self.world.add_partitions(topic, count + 1)
        self.known.places.append((topic, count))

    def _appear(self, step: Step) -> None:
        if not any(name == "otters" for name, _ in self.known.places):
            self._create("otters", 1)
            self.world.write("otters", 0, *self._seconds(step.numbers))

    def _foreign(self, step: Step) -> None:
        topic, partition = self._place(step.numbers[0])
        self.world.foreign_commit("g", topic, {partition: step.numbers[1] % 15})

    def _back_up(self) -> None:
        """What a tool would keep of the group's offsets."""
        tps = [self.world.tp(*place) for place in self.known.places]
        found = read_committed_offsets(
            self.world.settings, self.world.named("g"), tps, timeout_s=TIMEOUT_S
        )
        backup = {
            place: (one.offset, one.metadata)
            for place in self.known.places
            if (one := found[self.world.tp(*place)]) is not None
        }
        if backup:
            self.known.backups.append(backup)

    def _restore(self, step: Step) -> None:
        """Somebody puts the group's offsets back to what they were, metadata and all."""
        if not self.known.backups:
            return
        backup = self.known.backups[step.numbers[0] % len(self.known.backups)]
        for (topic, partition), (offset, metadata) in backup.items():
            if (topic, partition) in self.known.places:
                self.world.foreign_commit("g", topic, {partition: offset}, metadata)

    def _expire(self, step: Step) -> None:
        topic, partition = self._place(step.numbers[0])
        tp: TopicPartition = self.world.tp(topic, partition)
        committed = self.judge.truth.plain.committed(self.world.named("g"))
        if (tp.topic, tp.partition) in committed:
            self.world.expire("g", topic, partition)

    # --- windows ------------------------------------------------------------------------------------

    def _window(self, numbers: Sequence[int], names: Sequence[str] | None = None) -> Window:
        before, length, kind, lateness, loss = numbers[:5]
        before = 1 + before % 46
        options: dict[str, Any] = {}
        if self.told.in_intervals and kind % 5:
            options["since"] = before - 1 - length % 20
        elif self.told.in_intervals:
            options["sweep"] = True
        return self.world.window(
            before,
            self.asked_names if names is None else names,
            out_of_orderness_s=self.told.out_of_orderness_s[
                lateness % len(self.told.out_of_orderness_s)
            ],
            starting_offsets=bound_of(self.told.start),
            isolation=(
                Isolation.READ_COMMITTED if self.told.committed_only else Isolation.READ_UNCOMMITTED
            ),
            on_data_loss=OnDataLoss.FAIL if loss % 3 == 0 else OnDataLoss.WARN,
            **options,
        )

    def _plan(self, step: Step) -> None:
        [plan] = self._actor(step).plan_many([self._window(step.numbers)], [f"w{step.label}"])
        self._keep([plan])
        if plan.offsets and step.numbers[5] % 2:
            self._deliver(step, plan)

    def _plan_many(self, step: Step) -> None:
        edges = sorted({number % 46 for number in step.numbers[3:6]} | {46})
        first = self._window([0, 0, 1, *step.numbers[1:3]])
        windows = [
            replace(first, cutoff=at(high), since=at(low) if self.told.in_intervals else None)
            for low, high in pairwise(edges)
        ]
        names = [f"w{step.label}-{n}" for n in range(len(windows))]
        if windows:
            order = Random(step.numbers[0]).sample(range(len(windows)), len(windows))
            self._keep(
                self._actor(step).plan_many([windows[n] for n in order], [names[n] for n in order])
            )

    def _plan_after(self, step: Step) -> None:
        """Plans the times behind those of a known window; what it gets is read, and perhaps it is given up."""
        if (plan := self._chosen(step.numbers[0])) is not None:
            self._follow(step, plan)

    def _follow(self, step: Step, plan: WindowPlan) -> None:
        since = time_at(plan.cutoff_ms) + timedelta(seconds=step.numbers[1] % 3)
        window = replace(
            self._window([45, 0, 1, *step.numbers[2:4]]),
            cutoff=since + timedelta(seconds=1 + step.numbers[4] % 9),
            since=since if self.told.in_intervals else None,
            allow_future_cutoff=True,
        )
        [after] = self._actor(step).plan_many([window], [f"w{step.label}-after"])
        self._keep([after])
        if after.offsets:
            self._deliver(step, after)
        if step.numbers[5] % 2:
            self._actor(step).abandon(after.window_id)

    def _outlive(self, step: Step) -> None:
        """The times of an open window are planned and committed under another id; then the open one is given up."""
        plan = self._chosen(step.numbers[0])
        if plan is None or not plan.status.is_open:
            return
        window = replace(plan.window, on_data_loss=OnDataLoss.WARN)
        [other] = self._actor(step).plan_many([window], [f"w{step.label}"])
        self._keep([other])
        self._actor(step).commit(other)
        self._actor(step).abandon(plan.window_id)
        if step.numbers[6] % 3:
            self._follow(step, other)
        if step.numbers[7] % 2:
            self._actor(step).gaps()

    def _plan_known(self, step: Step) -> None:
        """Takes up a window; or plans one anew that was abandoned, rewound or forgotten."""
        if (plan := self._chosen(step.numbers[0])) is not None:
            loss = OnDataLoss.FAIL if step.numbers[1] % 3 == 0 else OnDataLoss.WARN
            window = replace(plan.window, on_data_loss=loss)
            self._keep(self._actor(step).plan_many([window], [plan.window_id]))

    def _plan_otherwise(self, step: Step) -> None:
        if (plan := self._chosen(step.numbers[0])) is not None:
            later = time_at(plan.cutoff_ms + 1_000)
            window = replace(plan.window, cutoff=later)
            self._keep(self._actor(step).plan_many([window], [plan.window_id]))

    def _redefine(self, step: Step) -> None:
        names = ["orders"] if self.asked_names == self.names else self.names
        window = self._window(step.numbers, names)
        policy = Policy(redefine=True)
        self._keep(self._actor(step).plan_many([window], [f"w{step.label}"], policy=policy))
        self.asked_names = names

    def _commit(self, step: Step) -> None:
        self._back_up()
        if (plan := self._chosen(step.numbers[0])) is not None:
            self._actor(step).commit(plan)

    def _commit_many(self, step: Step) -> None:
        plans = [self._chosen(number) for number in step.numbers[:3]]
        several = {plan.window_id: plan for plan in plans if plan is not None}
        if several:
            self._actor(step).commit(*several.values())

    def _lose(self, step: Step) -> None:
        """Retention takes some of an open window, which is then taken up, and perhaps given up."""
        plan = self._chosen(step.numbers[0])
        parts = [part for part in plan or () if part.taken]
        if plan is None or not parts or not self._is_there(plan):
            return
        part = parts[step.numbers[1] % len(parts)]
        ranges = part.taken.ranges
        _, end = ranges[step.numbers[2] % len(ranges)]
        self.judge.truth.look()
        topic = part.tp.topic.removesuffix(self.world.named(""))
        self.world.delete_before(topic, part.tp.partition, end)
        self.judge.is_stale = True
        self._plan_known(replace(step, numbers=(step.numbers[0], 1)))
        if step.numbers[3] % 3:
            self._actor(step).abandon(plan.window_id)

    def _abandon(self, step: Step) -> None:
        if (plan := self._chosen(step.numbers[0])) is not None:
            self._actor(step).abandon(plan if step.numbers[1] % 2 else plan.window_id)

    def _mark_written(self, step: Step) -> None:
        if (plan := self._chosen(step.numbers[0])) is not None and plan.status.is_open:
            self._actor(step).mark_written(plan, {"by": step.label})

    def _split(self, step: Step) -> None:
        if (plan := self._chosen(step.numbers[0])) is not None:
            self.known.parts = list(self._actor(step).split(plan, 1 + step.numbers[1] % 3))
            for part in self.known.parts[step.numbers[2] % 2 :]:
                self._actor(step).report(part, {"by": step.label})

    def _report(self, step: Step) -> None:
        if self.known.parts:
            part = self.known.parts[step.numbers[0] % len(self.known.parts)]
            self._actor(step).report(part, {"by": step.label})

    def _read(self, step: Step) -> None:
        self._deliver(step, self._chosen(step.numbers[0]))

    def _deliver(self, step: Step, plan: WindowPlan | None) -> None:
        # A reader takes a plan for what it is: whether its topic is another one is asked before.
        if plan is not None and plan.content.value != "covered" and self._is_there(plan):
            recorder = self._actor(step)
            settings = recorder.service.settings
            stall_s = self.world.stall_timeout_s
            recorder.delivered_from(
                plan,
                lambda: (
                    quick_rows(plan, settings, stall_timeout_s=stall_s)
                    if step.numbers[1] % 8
                    else staged_rows(plan, settings, self.folder, stall_timeout_s=stall_s)
                ),
            )

    def _is_there(self, plan: WindowPlan) -> bool:
        now = self.judge.truth.look().topic_ids
        return all(now.get(part.tp.topic) == part.topic_id for part in plan)

    def _replay(self, step: Step) -> None:
        if (plan := self._chosen(step.numbers[0])) is not None:
            self._actor(step).replay(plan.window_id)

    def _adopt(self, step: Step) -> None:
        recorder = self._actor(step)
        if step.numbers[0] % 3 == 0:
            recorder.adopt(dry_run=True)
        recorder.adopt()

    def _prune(self, step: Step) -> None:
        self.world.now += step.numbers[0] % 120
        span = timedelta(seconds=step.numbers[1] % 100)
        self._actor(step).prune(span, forget=step.numbers[2] % 3 == 0)

    def _list(self, step: Step) -> None:
        self._actor(step).list()

    def _gaps(self, step: Step) -> None:
        self._actor(step).gaps()

    # --- inside -------------------------------------------------------------------------------------

    def _actor(self, step: Step) -> Recorder:
        return self.recorders[step.actor]

    def _keep(self, plans: list[WindowPlan]) -> None:
        self.known.plans += plans

    def _chosen(self, number: int) -> WindowPlan | None:
        """A plan that somebody was given, a newer one most often; it may be an old attempt of its window."""
        plans = self.known.plans
        if not plans:
            return None
        if number % 4 == 0:
            return plans[number % len(plans)]
        return plans[-1 - number % min(len(plans), 4)]

    def _finish(self) -> None:
        """Ends what is open, commits what is planned, and takes the rest."""
        last = Step("finish", "end", 0, (0,) * NUMBERS)
        for transaction in sorted(self.known.open_transactions):
            self.world.end(transaction, "commit")
        self.judge.is_stale = True
        recorder = self.recorders[0]
        if not self.judge.group.attempts:
            return
        recorder.adopt()
        for held in list(self.judge.group.windows.values()):
            if not held.is_open:
                continue
            plan = next(p for p in reversed(self.known.plans) if p.claim_id == held.plan.claim_id)
            window = replace(plan.window, on_data_loss=OnDataLoss.WARN)
            recorder.commit(recorder.plan(window, plan.window_id))
        window = replace(
            self._window([45, 0, 0, 0, 1], self.names), cutoff=at(30_000), max_out_of_orderness=None
        )
        window = replace(window, allow_future_cutoff=True)
        plan = recorder.plan(window, f"w{last.label}", policy=Policy(redefine=True))
        recorder.commit(plan)
        recorder.list()
        self.judge.end(committed_only=self.told.committed_only)
