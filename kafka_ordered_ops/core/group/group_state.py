"""A group's contents in the ledger, as values and their JSON.

One group-state record carries the progress of every partition, the ids of the open windows and inferred columns; each window
has a record with its plan, and may have another one with its processed offsets; each scanned partition has a time map. A decision
reads all of it at one point in the log, and writes what it changes in one transaction, so the records never disagree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from msgspec import field as stored_field

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.errors import LedgerCorruptError
from kafka_ordered_ops.core.group.claims import Claims as Claims
from kafka_ordered_ops.core.group.claims import appeared_since as appeared_since
from kafka_ordered_ops.core.group.processed import ProcessedOffsets
from kafka_ordered_ops.core.group.progress import PartitionState as PartitionState
from kafka_ordered_ops.core.group.progress import StoredTopic, topic_to_json, topics_from
from kafka_ordered_ops.core.group.progress import TopicState as TopicState
from kafka_ordered_ops.core.group.reports import Forgotten as Forgotten
from kafka_ordered_ops.core.group.reports import PartReports as PartReports
from kafka_ordered_ops.core.group.reports import Pruned as Pruned
from kafka_ordered_ops.core.group.reports import StoredReports
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.planning.time_map import EMPTY_MAP, TimeMap
from kafka_ordered_ops.core.processing.new_record import NewRecord
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.types import (
    Isolation,
    Mode,
    ProgressFormat,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.column_types import fields_from_json
from kafka_ordered_ops.core.window.plan import (
    PartitionPlan,
    StoredPlan,
    TimeMs,
    WindowPlan,
)
from kafka_ordered_ops.core.window.window import Window

#: Version of the records of groups and windows in the ledger. Readers refuse others.
LEDGER_VERSION: Final = 1

#: Changes of one group: a thousand a second for a hundred thousand years.
SEQUENCE_MAX: Final = 1 << 62
SequenceNumber = Annotated[int, Meta(ge=1, le=SEQUENCE_MAX)]


@dataclass(frozen=True, slots=True)
class GroupDefinition:
    """The definition that all windows of a group share; changing it requires `redefine`.

    Answers under another mode or isolation would contradict the windows there are; other topics are most often a slip.
    """

    #: None until a window other than a sweep was planned.
    mode: Mode | None
    isolation: Isolation
    topics: tuple[str, ...]
    exclude: tuple[str, ...]
    #: The planner of its windows: one task, asset or key of a host. None: any.
    owner: str | None = None

    @classmethod
    def of(cls, window: Window, owner: str | None = None) -> GroupDefinition:
        """Return the definition that a window of this owner requires."""
        return cls(
            window.mode, window.isolation, tuple(window.topics), tuple(window.exclude), owner
        )

    def differences(self, window: Window, owner: str | None = None) -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ: (the group's, the window's). Owners differ only if both are known."""
        other = GroupDefinition.of(window, owner)
        mine, theirs = self.to_json(), other.to_json()
        if None in (self.mode, other.mode):
            del mine["mode"]
        if None in (self.owner, owner):
            mine.pop("owner", None)
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}

    def owned_by(self, owner: str | None) -> GroupDefinition:
        """Return the same with an owner; None changes nothing."""
        return self if owner is None else replace(self, owner=owner)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "owner": self.owner,
            "mode": None if self.mode is None else self.mode.value,
            "isolation": self.isolation.value,
            "topics": list(self.topics),
            "exclude": list(self.exclude),
        }


class _StoredDefinition(Stored, frozen=True):
    owner: Text | None
    mode: Mode | None
    isolation: Isolation
    topics: Texts
    exclude: Texts


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group's progress, and which windows are open."""

    group_id: str
    #: Rises by one with every change.
    sequence: int
    #: Of the group's first window, or as it was declared again; without topics after a fail-over, until the next window.
    definition: GroupDefinition
    #: That were planned: topics that match them later start at earliest.
    patterns: tuple[str, ...]
    topics: Mapping[str, TopicState]
    #: Ids of windows that claim offsets and are not committed.
    open: tuple[str, ...]
    #: Ids of windows that are committed, and whose output is not published yet.
    unpublished: tuple[str, ...] = ()
    #: With which the group's committed offsets were last written to Kafka; None: never.
    offsets_sequence: int | None = None
    #: Where the progress is kept.
    format: ProgressFormat = ProgressFormat.LEDGER
    #: Inferred ones of ``value`` and ``key``, as `fields_to_json` returns them.
    columns: Mapping[str, list[Any]] = field(default_factory=dict)

    def partition(self, tp: TopicPartition) -> PartitionState | None:
        """Return the state of a partition, or None where the group has none."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def __iter__(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        for name, topic in self.topics.items():
            for number, partition in topic.partitions.items():
                yield TopicPartition(name, number), partition

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        return {
            "version": LEDGER_VERSION,
            "format": self.format.value,
            "kind": "windows",
            "group": self.group_id,
            "sequence": self.sequence,
            "definition": self.definition.to_json(),
            "patterns": list(self.patterns),
            "topics": [topic_to_json(name, topic) for name, topic in sorted(self.topics.items())],
            "open": list(self.open),
            "unpublished": list(self.unpublished),
            "offsets_sequence": self.offsets_sequence,
            "columns": deepcopy(self.columns),
        }

    @classmethod
    def from_json(cls, value: Any) -> GroupState:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _StoredState.parse(value, "state")
        definition = GroupDefinition(**stored.definition.fields())
        for columns in stored.columns.values():
            fields_from_json(columns)
        fields = stored.fields(definition=definition, topics=topics_from(stored.topics))
        del fields["kind"]
        return cls(**fields)


class _StoredState(Stored, frozen=True, rename={"group_id": "group"}):
    what = "the group's state"

    version: Literal[1]
    format: ProgressFormat
    kind: Literal["windows"]
    group_id: Text
    sequence: SequenceNumber
    definition: _StoredDefinition
    patterns: Texts
    topics: list[StoredTopic]
    open: Texts
    unpublished: Texts
    offsets_sequence: SequenceNumber | None
    columns: dict[Literal["value", "key"], list[Any]] = stored_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """A window in the ledger: its plan with the newest status and attempt, and its result."""

    plan: WindowPlan
    #: The sink's report; displayed, and passed back to the sink for publishing.
    result: Any = None
    #: Who planned or took it up last: a host's run id, for people.
    run_id: str | None = None
    #: When an attempt last planned, took up, reported or processed it: a claim's age.
    touched_at_ms: int = 0
    committed_at_ms: int | None = None
    #: Of a window that was split among several tasks.
    parts: PartReports | None = None
    #: Of an old window: its plan has no partitions any more.
    pruned: Pruned | None = None

    @property
    def status(self) -> WindowStatus:
        """The window's state."""
        return self.plan.status

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
        return {
            "version": LEDGER_VERSION,
            "plan": self.plan.to_json(),
            "result": self.result,
            "run_id": self.run_id,
            "touched_at_ms": self.touched_at_ms,
            "committed_at_ms": self.committed_at_ms,
            "parts": None if self.parts is None else self.parts.to_json(),
            "pruned": None if self.pruned is None else self.pruned.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any) -> WindowRecord:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        stored = _StoredWindow.parse(value, "window")
        parts = None if stored.parts is None else stored.parts.reports
        return cls(**stored.fields(plan=stored.plan.plan, parts=parts))


class _StoredWindow(Stored, frozen=True):
    what = "the window"

    version: Literal[1]
    plan: StoredPlan
    result: dict[str, Any] | None
    run_id: Text | None
    touched_at_ms: TimeMs
    committed_at_ms: TimeMs | None
    parts: StoredReports | None
    pruned: Pruned | None

    def __post_init__(self) -> None:
        """Refuse what no sink of any version reports: its shape alone is checked."""
        parts = (self.result or {}).get("parts", [])
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise JsonError("the result's parts are no list of objects")


@dataclass(frozen=True, slots=True)
class GroupView:
    """All that a decision about a group reads, at one point in the ledger."""

    group_id: str
    state: GroupState | None = None
    windows: Mapping[str, WindowRecord] = field(default_factory=dict)
    time_maps: Mapping[TopicPartition, TimeMap] = field(default_factory=dict)
    #: Errors of windows whose records cannot be read, or disagree with the state. Of open ones, offsets are unknown.
    unreadable: Mapping[str, LedgerCorruptError] = field(default_factory=dict)
    #: Of the windows for which the view was asked, by id. They may be those of an older claim.
    processed: Mapping[str, ProcessedOffsets] = field(default_factory=dict)
    #: What is kept of forgotten windows, of those for which the view was asked by id.
    forgotten: Mapping[str, Forgotten] = field(default_factory=dict)

    def disagreements(self) -> dict[str, LedgerCorruptError]:
        """Return the windows that are open in the state and not in their records, or the reverse, by id.

        Only another program can cause that, or a fold that has missed removals from the log.
        """
        listed = dict.fromkeys(self.state.open if self.state else ())
        wrong = {}
        for window_id in listed:
            record = self.windows.get(window_id)
            if (record is None or not record.status.is_open) and window_id not in self.unreadable:
                wrong[window_id] = LedgerCorruptError(
                    f"group {self.group_id}: the ledger lists window {window_id} as open but has no open record of "
                    "it: another program removed or overwrote the record. Restore it, or abandon the window to release "
                    "its offsets; no window is planned before that"
                )
        for window_id, record in self.windows.items():
            if record.status.is_open and window_id not in listed:
                wrong[window_id] = LedgerCorruptError(
                    f"group {self.group_id}: the ledger has window {window_id} as {record.status}, but the group's "
                    "state does not list it as open: another program removed or replaced the state. Restore "
                    "the ledger topic, or abandon the window to remove its record"
                )
        return wrong

    def check_readable(self, window_ids: Iterable[str] | None = None) -> None:
        """Raise `LedgerCorruptError` when one of the windows, or any, cannot be read."""
        for window_id in self.unreadable if window_ids is None else window_ids:
            if (error := self.unreadable.get(window_id)) is not None:
                raise LedgerCorruptError(error.message)

    def open_windows(self) -> list[WindowRecord]:
        """Return the windows that claim offsets, but for those that cannot be read."""
        return [
            self.windows[window_id]
            for window_id in (self.state.open if self.state else ())
            if window_id not in self.unreadable
        ]

    def open_unreadable(self) -> list[str]:
        """Return the ids of open windows whose claims are unknown."""
        return [name for name in (self.state.open if self.state else ()) if name in self.unreadable]

    def claims(self) -> Claims:
        """Return the offsets that open windows hold, by partition.

        Raises:
            LedgerCorruptError: an open window cannot be read: it may hold any offset.
        """
        self.check_readable(self.open_unreadable())
        return self.known_claims()

    def known_claims(self) -> Claims:
        """Return the offsets of readable open windows; for display, not for planning."""
        by_partition: dict[TopicPartition, list[tuple[PartitionPlan, TimeRange]]] = {}
        appeared: dict[TopicPartition, list[TimeRange]] = {}
        if self.state is None:
            return Claims(by_partition)
        for record in self.open_windows():
            times = record.plan.window.times
            for part in record.plan:
                by_partition.setdefault(part.tp, []).append((part, times))
            for tp in appeared_since(self.state.topics, record.plan):
                appeared.setdefault(tp, []).append(times)
        return Claims(by_partition, appeared)

    def processed_offsets(self, plan: WindowPlan) -> dict[TopicPartition, OffsetSet]:
        """Return the offsets of a plan that attempts of its claim have processed; empty if it is written or closed.

        The view must have been asked for the window's processed offsets.
        """
        record, processed = self.windows.get(plan.window_id), self.processed.get(plan.window_id)
        if record is None or processed is None or record.status is not WindowStatus.PLANNED:
            return {}
        if not plan.claim_id == record.plan.claim_id == processed.claim_id:
            return {}
        # A part has its share of the window.
        shares = {part.tp: part.taken & processed.offsets.get(part.tp, EMPTY_SET) for part in plan}
        return {tp: offsets for tp, offsets in shares.items() if offsets}

    def needs(self, window_id: str, claim_id: str) -> bool:
        """Return whether a claim's output may still be published; the view must have been asked for the window."""
        record = self.windows.get(window_id)
        if record is None or record.plan.claim_id != claim_id:
            return window_id in self.unreadable
        is_waiting = self.state is not None and window_id in self.state.unpublished
        return record.status.is_open or is_waiting

    def time_map(self, tp: TopicPartition, topic_id: str | None = None) -> TimeMap:
        """Return the known timestamps of a partition.

        Args:
            tp: the partition.
            topic_id: the topic's id; None: the topic of the group's progress. Nothing is known of another topic of
                the same name.
        """
        if topic_id is None:
            topic = None if self.state is None else self.state.topics.get(tp.topic)
            topic_id = "" if topic is None else topic.topic_id
        time_map = self.time_maps.get(tp, EMPTY_MAP)
        return time_map if topic_id and time_map.topic_id == topic_id else EMPTY_MAP


@dataclass(frozen=True, slots=True)
class Change:
    """The records that a decision writes, in one transaction."""

    state: GroupState
    records: tuple[WindowRecord, ...]
    #: Only the maps that change; an empty one removes the record.
    time_maps: Mapping[TopicPartition, TimeMap] = field(default_factory=dict)
    #: Where the group's committed offsets move, or are written again, with it: those of the group's topics that the
    #: cluster still has, as it said before the fence. None: they stay.
    commits_to: Mapping[str, TopicFacts] | None = None
    #: Ids of windows whose records are removed.
    forgotten: tuple[str, ...] = ()
    #: What is kept of those of them that were delivered.
    forgotten_records: Mapping[str, Forgotten] = field(default_factory=dict)
    #: Processed offsets of planned windows, by id.
    processed: Mapping[str, ProcessedOffsets] = field(default_factory=dict)
    #: Records that the committed windows have left out.
    dead_letters: tuple[NewRecord, ...] = ()

    @property
    def finished(self) -> frozenset[str]:
        """Ids of the windows that no attempt processes any more: their processed offsets are removed."""
        written = (
            record.plan for record in self.records if record.status is not WindowStatus.PLANNED
        )
        return frozenset({*self.forgotten, *(plan.window_id for plan in written)})

    def __post_init__(self) -> None:
        if self.commits_to is not None:
            moved = replace(self.state, offsets_sequence=self.state.sequence)
            object.__setattr__(self, "state", moved)

    def applied_to(self, view: GroupView) -> GroupView:
        """Return the view after the transaction."""
        maps = {**view.time_maps, **self.time_maps}
        windows = {**view.windows, **{record.plan.window_id: record for record in self.records}}
        processed, finished = {**view.processed, **self.processed}, self.finished
        return replace(
            view,
            state=self.state,
            windows={
                name: record for name, record in windows.items() if name not in self.forgotten
            },
            unreadable={
                name: error for name, error in view.unreadable.items() if name not in self.forgotten
            },
            time_maps={tp: time_map for tp, time_map in maps.items() if time_map},
            processed={
                name: offsets for name, offsets in processed.items() if name not in finished
            },
            forgotten={**view.forgotten, **self.forgotten_records},
        )


class Changes:
    """Several changes that become one, each made on the view that the earlier ones leave."""

    def __init__(self, view: GroupView) -> None:
        # Written to from here on: copied once, and not for each of thousands of changes.
        self._windows = dict(view.windows)
        self._time_maps = dict(view.time_maps)
        self._processed = dict(view.processed)
        self._last: Change | None = None
        self._records: dict[str, WindowRecord] = {}
        self._changed_maps: dict[TopicPartition, TimeMap] = {}
        self._changed_processed: dict[str, ProcessedOffsets] = {}
        self._commits_to: Mapping[str, TopicFacts] | None = None
        self._forgotten: list[str] = []
        self._forgotten_records: dict[str, Forgotten] = {}
        #: The group after all changes so far; good until the next one.
        self.view = replace(
            view, windows=self._windows, time_maps=self._time_maps, processed=self._processed
        )

    def add(self, change: Change) -> None:
        """Add a change made on `view`."""
        self._last = change
        for record in change.records:
            self._records[record.plan.window_id] = record
        self._changed_maps |= change.time_maps
        if change.commits_to is not None:
            self._commits_to = {**(self._commits_to or {}), **change.commits_to}
        self._forgotten += change.forgotten
        self._forgotten_records |= change.forgotten_records
        self._windows |= {record.plan.window_id: record for record in change.records}
        for window_id in change.forgotten:
            self._windows.pop(window_id, None)
        self._time_maps |= change.time_maps
        for held in (self._processed, self._changed_processed):
            held |= change.processed
            for window_id in change.finished & held.keys():
                del held[window_id]
        self.view = replace(self.view, state=change.state)

    def joined(self) -> Change | None:
        """Return all of them as one; None where there were none."""
        if self._last is None:
            return None
        return Change(
            state=self._last.state,
            records=tuple(self._records.values()),
            time_maps=self._changed_maps,
            commits_to=self._commits_to,
            forgotten=tuple(self._forgotten),
            forgotten_records=self._forgotten_records,
            processed=self._changed_processed,
        )


def next_state(
    state: GroupState,
    *,
    opened: Iterable[str] = (),
    closed: Collection[str] = (),
    unpublished: Iterable[str] = (),
    published: Collection[str] = (),
) -> GroupState:
    """Return the state after one more change, with windows opened or closed, and committed before their output is seen or after."""
    gone, seen = frozenset(closed), frozenset(published)
    open_ids = [name for name in state.open if name not in gone] if gone else state.open
    waiting = [name for name in state.unpublished if name not in seen]
    return replace(
        state,
        sequence=state.sequence + 1,
        open=(*open_ids, *opened),
        unpublished=tuple(dict.fromkeys((*waiting, *unpublished))),
    )
