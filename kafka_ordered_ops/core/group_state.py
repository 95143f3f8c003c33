"""What the ledger holds about a group, as values and their JSON.

One group-state record carries the progress of every partition and the ids of the open windows; each window
has a record with its plan; each scanned partition has a time map. A decision reads all of it at one point
in the log, and writes what it changes in one transaction, so the records never disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kafka_ordered_ops.core.errors import LedgerCorruptError, LedgerVersionError
from kafka_ordered_ops.core.offset_set import OffsetSet, union_of
from kafka_ordered_ops.core.plan import (
    NO_STEPS,
    LateSteps,
    PartitionPlan,
    WindowPlan,
    ranges_from_json,
    ranges_to_json,
)
from kafka_ordered_ops.core.strict_json import Fields, JsonError
from kafka_ordered_ops.core.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.types import Isolation, TopicPartition, WindowStatus

#: Version of every record in the ledger. A reader refuses a higher one.
LEDGER_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A group's progress on one partition."""

    #: Where the group began; everything below counts as done without having been delivered.
    origin: int
    #: Offsets that committed windows took; holds [0, origin).
    done: OffsetSet
    #: The group's committed offset in Kafka when it was last written or seen; None: there was none.
    committed: int | None
    #: The cutoffs of committed windows.
    late: LateSteps = NO_STEPS

    @property
    def base(self) -> int:
        """The first offset that is not done: the group's committed offset."""
        return self.done.first_missing(0)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A group's progress on one topic."""

    topic_id: str
    #: Whether a window with this topic was ever committed; until then its origin may be chosen anew.
    settled: bool
    partitions: Mapping[int, PartitionState]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group's progress, and which windows are open."""

    group: str
    #: Rises by one with every change.
    sequence: int
    #: Of the group's first window; an answer under the other isolation would contradict it.
    isolation: Isolation
    #: Topic patterns the group has planned: topics that come to match them later start at earliest.
    patterns: tuple[str, ...]
    topics: Mapping[str, TopicState]
    #: Ids of windows that claim offsets and are not committed.
    open: tuple[str, ...]

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        """The state of a partition, or None where the group has none."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def __iter__(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        for name, topic in self.topics.items():
            for number, partition in topic.partitions.items():
                yield TopicPartition(name, number), partition

    def to_json(self) -> dict[str, Any]:
        """Versioned JSON."""
        return {
            "version": LEDGER_VERSION,
            "kind": "windows",
            "group": self.group,
            "sequence": self.sequence,
            "isolation": self.isolation.value,
            "patterns": list(self.patterns),
            "topics": [_topic_to_json(name, topic) for name, topic in sorted(self.topics.items())],
            "open": list(self.open),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> GroupState:
        """The inverse of `to_json`; raises `JsonError` or `LedgerVersionError`."""
        check_version(fields, "group state")
        if (kind := fields.text("kind")) != "windows":
            raise JsonError(f"group state of kind {kind!r}, not 'windows'")
        state = cls(
            group=fields.text("group"),
            sequence=fields.integer("sequence", least=1),
            isolation=fields.choice("isolation", Isolation),
            patterns=fields.texts("patterns"),
            topics=dict(_topic_from_json(topic) for topic in fields.objects("topics")),
            open=fields.texts("open"),
        )
        fields.done()
        return state


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window in the ledger: its plan with the newest status and attempt, and what came of it."""

    plan: WindowPlan
    #: What the sink reported; shown, and given back to it for publishing.
    result: Any = None
    #: Who planned or took it up last: a host's run id, for people.
    run_id: str | None = None
    committed_at_ms: int | None = None

    @property
    def status(self) -> WindowStatus:
        """The window's state."""
        return self.plan.status

    def to_json(self) -> dict[str, Any]:
        """Versioned JSON."""
        return {
            "version": LEDGER_VERSION,
            "plan": self.plan.to_json(),
            "result": self.result,
            "run_id": self.run_id,
            "committed_at_ms": self.committed_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> WindowRecord:
        """The inverse of `to_json`; raises `JsonError` or `LedgerVersionError`."""
        check_version(fields, "window")
        record = cls(
            plan=WindowPlan.from_json(fields.object("plan")),
            result=fields.anything("result"),
            run_id=fields.text_or_none("run_id"),
            committed_at_ms=fields.integer_or_none("committed_at_ms"),
        )
        fields.done()
        return record


@dataclass(frozen=True, slots=True)
class Claims:
    """The shares of open windows, each with its window's cutoff, by partition."""

    by_partition: Mapping[TopicPartition, Sequence[tuple[PartitionPlan, int]]]

    def offsets(self, tp: TopicPartition) -> OffsetSet:
        """The offsets of a partition that open windows hold."""
        return union_of(part.taken | part.lost for part, _ in self.by_partition.get(tp, ()))

    def late(self, tp: TopicPartition, committed: LateSteps) -> LateSteps:
        """Which records are late, given the committed windows and the open ones."""
        for part, cutoff_ms in self.by_partition.get(tp, ()):
            committed = committed.with_step(part.decided_end, cutoff_ms)
        return committed


@dataclass(frozen=True, slots=True)
class GroupView:
    """Everything a decision about a group reads, as of one point in the ledger."""

    group: str
    state: GroupState | None = None
    windows: Mapping[str, WindowRecord] = field(default_factory=dict)
    time_maps: Mapping[TopicPartition, TimeMap] = field(default_factory=dict)

    def check(self) -> None:
        """Raises `LedgerCorruptError` when the records disagree, which only a foreign hand can cause."""
        listed = self.state.open if self.state else ()
        missing = [
            window_id
            for window_id in listed
            if (record := self.windows.get(window_id)) is None or not record.status.is_open
        ]
        if missing:
            raise LedgerCorruptError(
                f"group {self.group}: the ledger lists window {missing[0]} as open and holds no open record of "
                f"it ({len(missing)} such): records were removed or written by something else. Restore the "
                "ledger topic, or start a new group"
            )

    def open_windows(self, *, but: str | None = None) -> list[WindowRecord]:
        """The windows that claim offsets, but the one named."""
        ids = self.state.open if self.state else ()
        return [self.windows[window_id] for window_id in ids if window_id != but]

    def claims(self, *, but: str | None = None) -> Claims:
        """What open windows hold, by partition, leaving out the window named."""
        by_partition: dict[TopicPartition, list[tuple[PartitionPlan, int]]] = {}
        for record in self.open_windows(but=but):
            for part in record.plan:
                by_partition.setdefault(part.tp, []).append((part, record.plan.cutoff_ms))
        return Claims(by_partition)

    def time_map(self, tp: TopicPartition) -> TimeMap:
        """What is known of a partition's timestamps."""
        return self.time_maps.get(tp, EMPTY_MAP)


@dataclass(frozen=True, slots=True)
class Change:
    """What a decision writes, in one transaction."""

    state: GroupState
    record: WindowRecord
    #: Only the maps that change; an empty one removes the record.
    time_maps: Mapping[TopicPartition, TimeMap] = field(default_factory=dict)
    #: Whether the group's committed offsets move (or are written again) with it.
    moves_offsets: bool = False

    def applied_to(self, view: GroupView) -> GroupView:
        """The view after the transaction."""
        maps = {**view.time_maps, **self.time_maps}
        return replace(
            view,
            state=self.state,
            windows={**view.windows, self.record.plan.window_id: self.record},
            time_maps={tp: time_map for tp, time_map in maps.items() if time_map},
        )


def check_version(fields: Fields, what: str) -> None:
    """Takes the version off a record; raises `LedgerVersionError` for one of a newer package."""
    if (version := fields.integer("version")) != LEDGER_VERSION:
        raise LedgerVersionError(
            f"a {what} record of the ledger has version {version}; this package reads {LEDGER_VERSION}: "
            "upgrade it to the version that wrote the ledger"
        )


def _topic_to_json(name: str, topic: TopicState) -> dict[str, Any]:
    return {
        "topic": name,
        "topic_id": topic.topic_id,
        "settled": topic.settled,
        "partitions": [
            {
                "partition": number,
                "origin": state.origin,
                "done": ranges_to_json(state.done),
                "committed": state.committed,
                "late": state.late.to_json(),
            }
            for number, state in sorted(topic.partitions.items())
        ],
    }


def _topic_from_json(fields: Fields) -> tuple[str, TopicState]:
    name = fields.text("topic")
    topic = TopicState(
        topic_id=fields.text("topic_id"),
        settled=fields.boolean("settled"),
        partitions=dict(_partition_from_json(one) for one in fields.objects("partitions")),
    )
    fields.done()
    return name, topic


def _partition_from_json(fields: Fields) -> tuple[int, PartitionState]:
    number = fields.integer("partition", least=0)
    state = PartitionState(
        origin=fields.integer("origin", least=0),
        done=ranges_from_json(fields.integers("done")),
        committed=fields.integer_or_none("committed"),
        late=LateSteps.from_json(fields.integers("late")),
    )
    fields.done()
    return number, state
