"""What was resolved: for each partition the exact offsets of a window, decided once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.errors import ConfigError, PlanTooLargeError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import Fields, JsonError, JsonVersionError
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.types import (
    INT64_MAX,
    Isolation,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.window import Window

#: Version of the plan's JSON. A reader refuses a higher one.
PLAN_VERSION: Final = 2
#: The oldest version that is still read. Its `head_end` came from the broker's index, which counts markers.
_PLAN_VERSION_LEAST: Final = 1

#: A plan is held in memory by every process that touches it, and travels through the ledger.
PLAN_BYTES_MAX: Final = 16 * 1024 * 1024
PLAN_RANGES_MAX: Final = 1_000_000

#: Of a split window. More tasks than any scheduler maps; each one reports in a transaction of its own.
PARTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Which share of a split window a plan is."""

    #: From 0.
    index: int
    count: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"index": self.index, "count": self.count}

    @classmethod
    def from_json(cls, fields: Fields) -> PlanPart:
        """The inverse of `to_json`; raises `JsonError`."""
        part = cls(fields.integer("index", least=0), fields.integer("count", least=1))
        fields.done()
        if part.index >= part.count:
            raise JsonError(f"part {part.index} of {part.count}")
        return part


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """Offsets that an open window holds, and that another one would otherwise take."""

    #: The open window.
    window_id: str
    #: At most so many; offsets, not records: markers and holes are among them.
    offsets: int
    #: Of the open window, when the other one was planned.
    status: WindowStatus
    #: When an attempt last planned, took up or reported the open window, ms since the epoch.
    touched_at_ms: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "window_id": self.window_id,
            "offsets": self.offsets,
            "status": self.status.value,
            "touched_at_ms": self.touched_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> HeldElsewhere:
        """The inverse of `to_json`; raises `JsonError`."""
        held = cls(
            window_id=fields.text("window_id"),
            offsets=fields.integer("offsets", least=0),
            status=fields.choice("status", WindowStatus),
            touched_at_ms=fields.integer("touched_at_ms"),
        )
        fields.done()
        return held


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition's share of a window."""

    tp: TopicPartition
    topic_id: str
    #: The offsets that are the window's: read exactly these. Markers and holes are among them.
    taken: OffsetSet
    #: Offsets that retention took before they could be delivered; done with the window, never read.
    lost: OffsetSet
    #: Everything below was decided when the window was planned.
    decided_end: int
    #: The first visible record stamped at or after the cutoff, or `decided_end`: what the window takes from
    #: there on are out-of-order records. None: it is not known, and the out-of-order records cannot be counted.
    head_end: int | None
    #: Which of the records are late.
    late: LateSteps
    #: Of the log's leader when the window was planned; None: not known.
    leader_epoch: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; ranges as start, length, gap, length, ..."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "topic_id": self.topic_id,
            "taken": ranges_to_json(self.taken),
            "lost": ranges_to_json(self.lost),
            "decided_end": self.decided_end,
            "head_end": self.head_end,
            "late": self.late.to_json(),
            **({} if self.leader_epoch is None else {"leader_epoch": self.leader_epoch}),
        }

    @property
    def may_have_out_of_order(self) -> bool:
        """Whether it takes anything behind a record stamped at or after the cutoff, as far as is known."""
        return bool(self.taken) and (self.head_end is None or self.head_end < self.taken.end)

    @classmethod
    def from_json(cls, fields: Fields, version: int = PLAN_VERSION) -> PartitionPlan:
        """The inverse of `to_json`, of any version that is read; raises `JsonError`."""
        is_exact = version > _PLAN_VERSION_LEAST
        head_end = (fields.integer_or_none if is_exact else fields.integer)("head_end", least=0)
        plan = cls(
            # The same few names in each of a hundred thousand windows: held once.
            tp=TopicPartition(
                sys.intern(fields.text("topic")), fields.integer("partition", least=0)
            ),
            topic_id=sys.intern(fields.text("topic_id")),
            taken=ranges_from_json(fields.integers("taken")),
            lost=ranges_from_json(fields.integers("lost")),
            decided_end=fields.integer("decided_end", least=0),
            head_end=head_end if is_exact else None,
            late=LateSteps.from_json(fields.integers("late")),
            leader_epoch=fields.integer("leader_epoch") if fields.has("leader_epoch") else None,
        )
        fields.done()
        return plan


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """An exact window: immutable, JSON-able, the only thing that a reader needs besides settings.

    `claim_id` and `attempt` are its fencing token: only the newest attempt of a live claim may commit.
    `status` is the window's state in the ledger when this value was made.
    """

    group_id: str
    window_id: str
    window: Window
    claim_id: str
    attempt: int
    status: WindowStatus
    content: PlanContent
    planned_at_ms: int
    partitions: tuple[PartitionPlan, ...]
    #: Open windows of the group whose offsets this one leaves alone.
    stepped_around: tuple[str, ...] = ()
    #: Those of them that hold offsets which this one would otherwise take.
    held_by_open: tuple[HeldElsewhere, ...] = ()
    #: What a person should know: offsets restored, records lost, partitions that appeared.
    notes: tuple[str, ...] = ()
    #: How many records' timestamps were read to make it; of windows planned together, the first one's.
    scanned: int = 0
    #: The share of the window that this is; None: all of it. A share is read and reported, never committed.
    part: PlanPart | None = None

    @property
    def cutoff_ms(self) -> int:
        """The window's exclusive end in time, ms since the epoch."""
        return self.window.cutoff_ms

    @property
    def isolation(self) -> Isolation:
        """Which records count."""
        return self.window.isolation

    @property
    def taken(self) -> Mapping[TopicPartition, OffsetSet]:
        """The offsets to read, for partitions that have any."""
        return {part.tp: part.taken for part in self.partitions if part.taken}

    @property
    def lost(self) -> Mapping[TopicPartition, OffsetSet]:
        """The offsets given up as lost, for partitions that have any."""
        return {part.tp: part.lost for part in self.partitions if part.lost}

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(sorted({part.tp.topic for part in self.partitions}))

    @property
    def offsets(self) -> int:
        """How many offsets are taken: an upper bound for records."""
        return sum(part.taken.count for part in self.partitions)

    @property
    def tells_out_of_order(self) -> bool:
        """Whether it is known of each record that it takes whether it is an out-of-order record."""
        return all(part.head_end is not None for part in self.partitions if part.taken)

    def __iter__(self) -> Iterator[PartitionPlan]:
        return iter(self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Versioned JSON."""
        held = [one.to_json() for one in self.held_by_open]
        return {
            "version": PLAN_VERSION,
            "group": self.group_id,
            "window_id": self.window_id,
            "window": self.window.to_json(),
            "claim_id": self.claim_id,
            "attempt": self.attempt,
            "status": self.status.value,
            "content": self.content.value,
            "planned_at_ms": self.planned_at_ms,
            "partitions": [part.to_json() for part in self.partitions],
            "stepped_around": list(self.stepped_around),
            "notes": list(self.notes),
            "scanned": self.scanned,
            "part": None if self.part is None else self.part.to_json(),
            # Where it is empty, the text is what it was before there was such a field.
            **({"held_by_open": held} if held else {}),
        }

    def to_text(self) -> str:
        """The JSON as text."""
        return strict_json.dumps(self.to_json())

    @classmethod
    def from_json(cls, fields: Fields) -> WindowPlan:
        """The inverse of `to_json`; raises `JsonError`."""
        version = fields.integer("version")
        if not _PLAN_VERSION_LEAST <= version <= PLAN_VERSION:
            raise JsonVersionError(
                f"plan version {version}; this package reads versions {_PLAN_VERSION_LEAST} to {PLAN_VERSION}"
            )
        try:
            window = Window.from_json(fields.object("window"))
        except ConfigError as error:
            raise JsonError(f"window: {error}") from error
        part = fields.object_or_none("part")
        held = fields.objects("held_by_open") if fields.has("held_by_open") else ()
        plan = cls(
            group_id=fields.text("group"),
            window_id=fields.text("window_id"),
            window=window,
            claim_id=fields.text("claim_id"),
            attempt=fields.integer("attempt", least=0),
            status=fields.choice("status", WindowStatus),
            content=fields.choice("content", PlanContent),
            planned_at_ms=fields.integer("planned_at_ms"),
            partitions=tuple(
                PartitionPlan.from_json(part, version) for part in fields.objects("partitions")
            ),
            stepped_around=fields.texts("stepped_around"),
            held_by_open=tuple(HeldElsewhere.from_json(one) for one in held),
            notes=fields.texts("notes"),
            scanned=fields.integer("scanned", least=0),
            part=None if part is None else PlanPart.from_json(part),
        )
        fields.done()
        if len({part.tp for part in plan.partitions}) != len(plan.partitions):
            raise JsonError("a partition stands twice in the plan")
        return plan

    @classmethod
    def from_text(cls, text: str) -> WindowPlan:
        """A plan from its JSON.

        Raises:
            ConfigError: the text is not a plan of this version.
        """
        try:
            return cls.from_json(
                Fields(strict_json.loads(text, limit_bytes=PLAN_BYTES_MAX), "plan")
            )
        except JsonError as error:
            raise ConfigError(f"this is not a window plan: {error}") from error


def check_plan_size(plan: WindowPlan) -> None:
    """Raises `PlanTooLargeError` for a plan with too many ranges or bytes, naming the largest topic."""
    by_topic = dict.fromkeys(plan.topics, 0)
    for part in plan.partitions:
        by_topic[part.tp.topic] += len(part.taken)
    ranges = sum(by_topic.values())
    # A range costs a dozen bytes; text is made only where it could matter.
    size = len(plan.to_text().encode()) if ranges > PLAN_RANGES_MAX // 50 else 0
    if ranges <= PLAN_RANGES_MAX and size <= PLAN_BYTES_MAX:
        return
    worst = max(by_topic, key=lambda topic: by_topic[topic])
    raise PlanTooLargeError(
        f"window {plan.window_id} of group {plan.group_id} has {ranges:,} ranges and {size:,} bytes "
        f"(limits {PLAN_RANGES_MAX:,} and {PLAN_BYTES_MAX:,}), {by_topic[worst]:,} of the ranges in topic "
        f"{worst}: its records lie around the cutoff in no order. Plan fewer topics in one window, move the "
        "cutoff to a quieter time, or set a maximum out-of-orderness",
        topic=worst,
    )


def ranges_to_json(offsets: OffsetSet) -> list[int]:
    """Start, length, gap, length, gap, ...: a third of the size of pairs of absolute offsets."""
    edges = offsets.edges
    return [edge - before for before, edge in zip((0, *edges), edges, strict=False)]


def ranges_from_json(steps: Sequence[int]) -> OffsetSet:
    """The inverse of `ranges_to_json`; raises `JsonError`."""
    if not steps:
        return EMPTY_SET
    edges = list(accumulate(steps))
    if len(steps) % 2 or steps[0] < 0 or min(steps[1:]) <= 0 or edges[-1] > INT64_MAX:
        raise JsonError("ranges do not rise")
    return OffsetSet.from_edges(edges)
