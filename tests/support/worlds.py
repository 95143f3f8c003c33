"""Two worlds for the same script, a model in memory and a real broker, and what a script saw in one of them.

A script names topics, groups and windows as it likes; a world makes names of its own from them. Everything
that a script does is written down with its outcome, in a form in which nothing is left of the world: no names
of its own, no ids, no time of day.
"""

from __future__ import annotations

import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from kafka_ordered_ops import ClientSettings, KafkaOrderedOpsError, Window, WindowPlan
from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, TopicFacts
from kafka_ordered_ops.core.offset_map.ours import decode_offset_map
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.times import parse_time_ms
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import (
    LookupDoor,
    open_lookup,
    open_reader,
    read_committed_offsets,
)
from kafka_ordered_ops.windows import OrderedWindows, Policy
from tests.support.windows_support import BASE_MS, TIMEOUT_S, at

#: One record: (second, key, value, headers).
Content = tuple[float, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]

#: Fields that hold the id of a topic.
_ID_FIELDS: Final = frozenset({"topic_id", "expected_id", "found_id"})
#: Fields that differ from run to run.
_CHANCE_FIELDS: Final = frozenset({"claim_id", "replaces", "ledger", "code"})
#: A timestamp of today, where the tests' time is years ago.
_TODAY_MS: Final = 24 * 3_600_000

#: Behind a member's client id: its host and its id.
_MEMBER: Final = re.compile(r"@[^ ]* \([^)]*\)")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


class World(ABC):
    """One cluster, the services of some groups on it, and a transcript of what was done."""

    #: How long a read waits for what does not come.
    stall_timeout_s: float

    def __init__(self, settings: Mapping[str, str], *, suffix: str | None = None) -> None:
        self.settings = ClientSettings.from_mapping(settings)
        self.transcript: list[tuple[str, Any]] = []
        #: The newest plan of each window.
        self.plans: dict[str, WindowPlan] = {}
        #: The time of day that the services see, in seconds of the tests' time.
        self.now = 10_000.0
        self._suffix = uuid.uuid4().hex[:10] if suffix is None else suffix
        self._ids: dict[str, str] = {}
        self._services: dict[tuple[str, str], OrderedWindows] = {}
        self._stack = ExitStack()
        self._lookup: LookupDoor = self._stack.enter_context(open_lookup(self.settings))

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    # --- names ----------------------------------------------------------------------------------

    def named(self, alias: str) -> str:
        """The name that stands for a script's."""
        return f"{alias}-{self._suffix}"

    def tp(self, topic: str, partition: int = 0) -> TopicPartition:
        """A partition of a topic of the script."""
        return TopicPartition(self.named(topic), partition)

    # --- the hands: what happens to the cluster ---------------------------------------------------

    @abstractmethod
    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Makes a topic; underscores in `config` are full stops."""

    @abstractmethod
    def delete(self, topic: str) -> None:
        """Deletes a topic, and returns when it is gone."""

    @abstractmethod
    def add_partitions(self, topic: str, partitions: int) -> None:
        """Brings a topic to a number of partitions."""

    @abstractmethod
    def write_content(self, topic: str, partition: int, records: Sequence[Content]) -> None:
        """Writes records with keys, values and headers."""

    @abstractmethod
    def write_at_ms(self, topic: str, partition: int, times_ms: Sequence[int]) -> None:
        """Writes records with any timestamps."""

    @abstractmethod
    def send(self, transaction: str, topic: str, partition: int, *seconds: float) -> None:
        """Writes records in a transaction, which is begun if it is not open."""

    @abstractmethod
    def end(self, transaction: str, how: str) -> None:
        """Ends a transaction by ``commit`` or ``abort``; returns when everybody can see it."""

    @abstractmethod
    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Moves a log's start."""

    @abstractmethod
    def compact(self, topic: str, offsets: set[int]) -> None:
        """Compaction takes these offsets out of partition 0; returns when they are gone."""

    @abstractmethod
    def foreign_commit(
        self, group_id: str, topic: str, offsets: Mapping[int, int], metadata: bytes = b""
    ) -> None:
        """Somebody else commits offsets of a group, by partition."""

    @abstractmethod
    def expire(self, group_id: str, topic: str, *partitions: int) -> None:
        """Offsets of a group are forgotten."""

    @abstractmethod
    def join(self, group_id: str, client_id: str) -> Callable[[], None]:
        """A member joins a group; returns what makes it leave."""

    def write(self, topic: str, partition: int, *seconds: float) -> None:
        """Writes records stamped with these seconds of the tests' time."""
        self.write_at_ms(topic, partition, [_ms(second) for second in seconds])

    # --- the services -----------------------------------------------------------------------------

    def windows(self, group_id: str = "g", **options: Any) -> OrderedWindows:
        """The service of a group; the same one for the same options."""
        key = group_id, repr(sorted(options.items()))
        if key not in self._services:
            if "ledger_topic" in options:
                options["ledger_topic"] = self.named(options["ledger_topic"])
            service = OrderedWindows(
                self.settings,
                self.named(group_id),
                timeout_s=60,
                clock=lambda: BASE_MS / 1000 + self.now,
                **options,
            )
            self._services[key] = self._stack.enter_context(service)
        return self._services[key]

    def window(
        self,
        before: float,
        topics: Sequence[str] = ("orders",),
        *,
        since: float | None = None,
        out_of_orderness_s: float | None = None,
        exclude: Sequence[str] = (),
        **options: Any,
    ) -> Window:
        """A question about topics of the script; its times in seconds of the tests' time."""
        return Window(
            [self.named(name) for name in topics],
            at(before),
            since=None if since is None else at(since),
            max_out_of_orderness=None
            if out_of_orderness_s is None
            else timedelta(seconds=out_of_orderness_s),
            exclude=[self.named(name) for name in exclude],
            **options,
        )

    # --- steps that are written down ----------------------------------------------------------------

    def do(self, what: str, step: Callable[[], Any]) -> Any:
        """Takes a step and writes down what came of it; None where it was refused."""
        try:
            outcome = step()
        except KafkaOrderedOpsError as error:
            refused = [type(error).__name__, self.plain(error.facts)]
            self.transcript.append((what, refused))
            return None
        self.transcript.append((what, self.plain(outcome)))
        return outcome

    def plan(
        self,
        window_id: str,
        before: float,
        topics: Sequence[str] = ("orders",),
        *,
        group_id: str = "g",
        policy: Policy | None = None,
        **options: Any,
    ) -> WindowPlan | None:
        """Plans a window and keeps the plan."""
        window = self.window(before, topics, **options)
        policy = policy or Policy()
        service = self.windows(group_id)
        plan: WindowPlan | None = self.do(
            f"plan {window_id}", lambda: service.plan(window, window_id, policy)
        )
        if plan is not None:
            self.plans[window_id] = plan
        return plan

    def before_claim(self, action: Callable[[], object], group_id: str = "g") -> None:
        """Lets others act once, when the group's service has looked and is about to change the group's state.

        Inside `action` the steps are those of another process.
        """
        ledger = self.windows(group_id)._ledger
        update = ledger.update

        def others_first(*args: Any, **options: Any) -> Any:
            ledger.update = update  # type: ignore[method-assign]
            mine = self._services.pop((group_id, "[]"))
            try:
                action()
            finally:
                self._services[group_id, "[]"] = mine
            return update(*args, **options)

        ledger.update = others_first  # type: ignore[method-assign]

    def meanwhile(self, step: Callable[[], None], *, after: str) -> None:
        """Takes a step once, right after the service has asked a question of its look-up for the first time."""
        lookup = self.windows()._lookup
        question = getattr(lookup, after)

        def asking(*args: Any, **options: Any) -> Any:
            vars(lookup).pop(after)
            found = question(*args, **options)
            step()
            return found

        vars(lookup)[after] = asking

    def commit(self, window_id: str, group_id: str = "g") -> None:
        """Commits the newest plan of a window."""
        plan = self.plans[window_id]
        self.do(f"commit {window_id}", lambda: self.windows(group_id).commit(plan))

    def abandon(self, window_id: str, group_id: str = "g") -> None:
        """Gives a window up."""
        self.do(f"abandon {window_id}", lambda: self.windows(group_id).abandon(window_id).status)

    def process(self, window_id: str, start: int, end: int, group_id: str = "g") -> None:
        """Records a range of offsets of every partition as processed, and looks at all that are."""
        plan, service = self.plans[window_id], self.windows(group_id)
        done = {tp: OffsetSet.of((start, end)) & taken for tp, taken in plan.taken.items()}
        self.do(f"process {window_id}", lambda: service.mark_processed(plan, done))
        self.do(f"processed of {window_id}", lambda: service.processed(plan))

    def replay(self, window_id: str, group_id: str = "g") -> None:
        """Replays a window, and reads it."""
        plan = self.do(f"replay {window_id}", lambda: self.windows(group_id).replay(window_id))
        if plan is not None:
            self.plans[window_id] = plan
            self.read(window_id)

    def read(self, window_id: str) -> None:
        """Reads the newest plan of a window."""
        plan = self.plans[window_id]
        self.do(f"read {window_id}", lambda: self.rows(plan.taken, plan.isolation))

    def run(self, window_id: str, before: float, *topics: str, **options: Any) -> None:
        """Plans, reads and commits a window."""
        if self.plan(window_id, before, topics or ("orders",), **options) is not None:
            self.read(window_id)
            self.commit(window_id, options.get("group", "g"))

    def look(self, *topics: str, group_id: str = "g") -> None:
        """Writes down all that there is to see of a group."""
        service = self.windows(group_id)
        self.do("state", service.state)
        self.do("windows", service.list)
        self.do("gaps", service.gaps)
        if topics:
            self.do("committed", lambda: self.committed(*topics, group_id=group_id))

    def committed(self, *topics: str, group_id: str = "g") -> Any:
        """What a group has committed on topics of the script."""
        facts = self._lookup.topics([self.named(name) for name in topics])
        found = read_committed_offsets(
            self.settings, self.named(group_id), _partitions(facts), timeout_s=TIMEOUT_S
        )
        return {str(tp): None if one is None else _meaning(one) for tp, one in found.items()}

    def backup(self, topic: str, group_id: str = "g") -> Callable[[], None]:
        """Saves what a group has committed on a topic, metadata and all; returns what puts it back."""
        facts = self._lookup.topics([self.named(topic)])
        found = read_committed_offsets(
            self.settings, self.named(group_id), _partitions(facts), timeout_s=TIMEOUT_S
        )
        saved = {tp.partition: one for tp, one in found.items() if one is not None}

        def put_back() -> None:
            for number, one in saved.items():
                self.foreign_commit(group_id, topic, {number: one.offset}, one.metadata)

        return put_back

    def facts(self, *topics: str) -> None:
        """Writes down what a look-up tells of topics of the script."""
        names = [self.named(name) for name in topics]
        topic_facts = self.do("topics", lambda: self._lookup.selected(names))
        if topic_facts is None:
            return
        partitions = _partitions(topic_facts)
        self.do("log starts", lambda: self._lookup.log_starts(partitions))
        self.do("greatest", lambda: self._greatest(partitions))
        for isolation in Isolation:
            self.do(f"ends {isolation}", lambda: self._lookup.end_offsets(partitions, isolation))  # noqa: B023
            for second in (0, 5, 10, 20, 1_000):
                self.do(
                    f"first at {second} {isolation}",
                    lambda: self._lookup.first_at_or_after(partitions, _ms(second), isolation),  # noqa: B023
                )

    def rows(self, taken: Mapping[TopicPartition, OffsetSet], isolation: Isolation) -> list[Any]:
        """Records, as a reader hands them out; today's timestamps are only called that."""
        rows: list[Any] = []
        with open_reader(
            self.settings, self.named("g"), isolation, taken, stall_timeout_s=self.stall_timeout_s
        ) as reader:
            for batch in reader.batches():
                times = batch.column("timestamp").cast(pa.int64()).to_pylist()
                others = batch.drop_columns(["timestamp"]).to_pylist()
                for time_ms, row in zip(times, others, strict=True):
                    assert time_ms is not None
                    rows.append([*row.values(), _told(time_ms)])
        return sorted(rows, key=lambda row: row[:3])

    def stored(self, topic: str, partition: int = 0) -> list[dict[str, Any]]:
        """All that a partition has, as rows of a reader of committed records."""
        tp = self.tp(topic, partition)
        end = self._lookup.end_offsets([tp], Isolation.READ_COMMITTED)[tp]
        if not end:
            return []
        wanted = {tp: OffsetSet.of((0, end))}
        with open_reader(self.settings, "reads", Isolation.READ_COMMITTED, wanted) as reader:
            return [row for batch in reader.batches() for row in batch.to_pylist()]

    def _greatest(self, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
        found = self._lookup.greatest_timestamps(partitions)
        return {str(tp): None if ms is None else _told(ms) for tp, ms in found.items()}

    # --- what is written down -----------------------------------------------------------------------

    def plain(self, value: Any, name: str = "") -> Any:
        """A value as plain data, with nothing in it that belongs to this world alone."""
        if name in _ID_FIELDS:
            return self._ids.setdefault(value, f"id {len(self._ids)}")
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, str):
            return _TIME.sub(_told_text, _MEMBER.sub("", value.replace(f"-{self._suffix}", "")))
        if isinstance(value, OffsetSet):
            return value.ranges
        if isinstance(value, Mapping):
            return {
                self.plain(str(key)): self.plain(one, str(key))
                for key, one in sorted(value.items(), key=lambda item: str(item[0]))
                if key not in _CHANCE_FIELDS
            }
        if isinstance(value, TopicFacts):
            facts = {"topic_id": value.topic_id, "partitions": value.partitions}
            return self.plain(facts)
        if isinstance(value, CommittedOffset):
            return _meaning(value)
        if isinstance(value, list | tuple):
            return [self.plain(one, name) for one in value]
        if hasattr(value, "to_json"):
            return self.plain(value.to_json())
        return value


def _meaning(committed: CommittedOffset) -> Any:
    offset_map = decode_offset_map(committed.metadata)
    if offset_map is None:
        return committed.offset, committed.metadata
    return committed.offset, offset_map.sequence, offset_map.beyond


def _told(time_ms: int) -> int | str:
    """A timestamp of the tests' time, or of some other day; one that a broker gave is only called today's."""
    return "today" if abs(time_ms - time.time() * 1000) < _TODAY_MS else time_ms


def _told_text(found: re.Match[str]) -> str:
    told = _told(parse_time_ms(found[0], what="a time"))
    return found[0] if isinstance(told, int) else told


def _partitions(topics: Mapping[str, TopicFacts]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name in topics for number in topics[name].partitions]


def _ms(second: float) -> int:
    return BASE_MS + round(second * 1000)
