"""The resolved window: for each partition the exact offsets, decided once."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, TypeVar

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster_facts import is_selected
from kafka_ordered_ops.core.errors import ConfigError, PlanTooLargeError, WindowCoveredError
from kafka_ordered_ops.core.names import TOPIC_LENGTH_MAX, is_topic_name
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.packed_ranges import pack, unpack
from kafka_ordered_ops.core.strict_json import Fields, JsonError, JsonVersionError, whole_number
from kafka_ordered_ops.core.time_ranges import LateSteps
from kafka_ordered_ops.core.times import TIME_MS_MAX
from kafka_ordered_ops.core.types import (
    INT64_MAX,
    Isolation,
    PlanContent,
    TopicPartition,
    WindowStatus,
)
from kafka_ordered_ops.core.window.ownership import Publisher
from kafka_ordered_ops.core.window.window import Window

_Part = TypeVar("_Part")

#: Version of the plan's JSON. Readers refuse others.
PLAN_VERSION: Final = 1

#: Every process that uses a plan holds it in memory, and the ledger stores it.
PLAN_BYTES_MAX: Final = 16 * 1024 * 1024
PLAN_RANGES_MAX: Final = 10_000_000
#: Ranges and partitions of a plan whose text is certainly small enough.
_SMALL_PLAN: Final = 20_000

#: Ranges of one set that are stored as a list of numbers, which people can read.
_PLAIN_RANGES_MAX: Final = 64

#: Attempts of one window. Replays are numbered by microseconds since the epoch.
ATTEMPT_MAX: Final = 1 << 60

#: Kafka's topic ids have 22 characters.
TOPIC_ID_LENGTH_MAX: Final = 64

#: Ranges in which a partition's share names its late records: they cost a few bytes each.
EARLIER_RANGES_MAX: Final = 256

#: Parts of a split window. More tasks than any scheduler maps; each reports in its own transaction.
PARTS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Which part of a split window a plan is."""

    #: From 0.
    index: int
    count: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"index": self.index, "count": self.count}

    @classmethod
    def from_json(cls, fields: Fields) -> PlanPart:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        part = cls(
            fields.integer("index", least=0), fields.integer("count", least=1, greatest=PARTS_MAX)
        )
        fields.done()
        if part.index >= part.count:
            raise JsonError(f"part {part.index} of {part.count}")
        return part


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """Offsets that an open window holds and that another window would otherwise take."""

    #: The open window.
    window_id: str
    #: An upper bound. Counts offsets, not records: markers and holes are included.
    offsets: int
    #: Status of the open window when the other window was planned.
    status: WindowStatus
    #: When an attempt last planned, took up or reported the open window, ms since the epoch.
    touched_at_ms: int

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "window_id": self.window_id,
            "offsets": self.offsets,
            "status": self.status.value,
            "touched_at_ms": self.touched_at_ms,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> HeldElsewhere:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        held = cls(
            window_id=fields.text("window_id"),
            offsets=fields.integer("offsets", least=0),
            status=fields.choice("status", WindowStatus),
            touched_at_ms=stored_time_ms(fields, "touched_at_ms"),
        )
        fields.done()
        return held


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition's share of a window."""

    tp: TopicPartition
    topic_id: str
    #: The offsets of the window: read exactly these. Includes markers and holes.
    taken: OffsetSet
    #: Offsets that retention removed before delivery; done with the window, never read.
    lost: OffsetSet
    #: Every offset below it was decided when the window was planned.
    decided_end: int
    #: The first visible record stamped at or after the cutoff, or `decided_end`. Records taken from here on are
    #: out of order. None: not known, and out-of-order records cannot be counted.
    head_end: int | None
    #: Which records are late.
    late: LateSteps
    #: Epoch of the log's leader when the window was planned; None: not known.
    leader_epoch: int | None = None
    #: The part of `lost` that was removed before any window read it: its records may have had any time.
    lost_untimed: OffsetSet = EMPTY_SET
    #: Where the window may hold records stamped before its `since`, with other offsets between them.
    earlier: OffsetSet = EMPTY_SET

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ranges as `ranges_to_json` has them."""
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
            **({"lost_untimed": ranges_to_json(self.lost_untimed)} if self.lost_untimed else {}),
            **({"earlier": ranges_to_json(self.earlier)} if self.earlier else {}),
        }

    @property
    def ranges(self) -> int:
        """The number of ranges that the ledger stores."""
        return len(self.taken) + len(self.lost) + len(self.lost_untimed) + len(self.earlier)

    @property
    def may_have_out_of_order(self) -> bool:
        """Whether the plan may take records after one stamped at or after the cutoff."""
        return bool(self.taken) and (self.head_end is None or self.head_end < self.taken.end)

    @classmethod
    def from_json(cls, fields: Fields) -> PartitionPlan:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        plan = cls(
            # These names repeat in each of a hundred thousand windows: keep each string once.
            tp=TopicPartition(sys.intern(stored_topic(fields)), fields.int32("partition")),
            topic_id=sys.intern(fields.text("topic_id", length_max=TOPIC_ID_LENGTH_MAX)),
            taken=stored_ranges(fields, "taken"),
            lost=stored_ranges(fields, "lost"),
            decided_end=fields.integer("decided_end", least=0),
            head_end=fields.integer_or_none("head_end", least=0),
            late=LateSteps.from_json(fields.integers("late")),
            leader_epoch=fields.int32("leader_epoch") if fields.has("leader_epoch") else None,
            lost_untimed=_ranges_or_none(fields, "lost_untimed"),
            earlier=_ranges_or_none(fields, "earlier"),
        )
        fields.done()
        return plan


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """An exact window: immutable, stored as JSON, and all that a reader needs besides settings.

    `claim_id` and `attempt` are its fencing token: only the newest attempt of a live claim may commit. `status` is the
    window's status in the ledger when this value was created.
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
    #: Open windows of the group that this window steps around.
    stepped_around: tuple[str, ...] = ()
    #: Those of them that hold offsets which this window would otherwise take.
    held_by_open: tuple[HeldElsewhere, ...] = ()
    #: Messages for people: offsets restored, records lost, partitions added.
    notes: tuple[str, ...] = ()
    #: How many timestamps were read for it; for windows planned together, counted on the first one.
    scanned: int = 0
    #: Which part of the window this is; None: the whole window. A part is read and reported, never committed.
    part: PlanPart | None = None
    #: The ledger that the window is claimed in, as ``cluster id/topic id``; empty in a preview.
    ledger_id: str = ""
    #: Earlier claims of this window, whose output this claim's may replace: the window was rewound, and planned again.
    replaces: tuple[str, ...] = ()
    #: Whether the output may replace one with more records; see `Policy.allow_fewer`.
    allow_fewer: bool = False

    @property
    def cutoff_ms(self) -> int:
        """The window's exclusive end in time, ms since the epoch."""
        return self.window.cutoff_ms

    @property
    def isolation(self) -> Isolation:
        """The isolation: which records count."""
        return self.window.isolation

    @property
    def taken(self) -> Mapping[TopicPartition, OffsetSet]:
        """The offsets to read, for partitions that have any."""
        return {part.tp: part.taken for part in self.partitions if part.taken}

    @property
    def lost(self) -> Mapping[TopicPartition, OffsetSet]:
        """The offsets recorded as lost, for partitions that have any."""
        return {part.tp: part.lost for part in self.partitions if part.lost}

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics, by name."""
        return {part.tp.topic: part.topic_id for part in self.partitions}

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics, sorted."""
        return tuple(sorted({part.tp.topic for part in self.partitions}))

    @property
    def offsets(self) -> int:
        """The number of offsets taken: an upper bound for records."""
        return sum(part.taken.count for part in self.partitions)

    @property
    def tells_out_of_order(self) -> bool:
        """Whether the plan knows of every record whether it is out of order."""
        return all(part.head_end is not None for part in self.partitions if part.taken)

    @property
    def publisher(self) -> Publisher:
        """Who asks to replace what readers see of this window."""
        claims = (self.claim_id, *self.replaces)
        return Publisher(self.ledger_id, self.group_id, self.window_id, claims)

    def __iter__(self) -> Iterator[PartitionPlan]:
        return iter(self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return versioned JSON."""
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
            "ledger": self.ledger_id,
            "replaces": list(self.replaces),
            "allow_fewer": self.allow_fewer,
            "held_by_open": [one.to_json() for one in self.held_by_open],
        }

    def to_text(self) -> str:
        """Return the JSON as text."""
        return strict_json.dumps(self.to_json())

    @classmethod
    def from_json(cls, fields: Fields) -> WindowPlan:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        if (version := fields.integer("version")) != PLAN_VERSION:
            raise JsonVersionError(
                f"plan version {version}; this package reads version {PLAN_VERSION}"
            )
        try:
            window = Window.from_json(fields.object("window"))
        except ConfigError as error:
            raise JsonError(f"window: {error}") from error
        part = fields.object_or_none("part")
        plan = cls(
            group_id=fields.text("group"),
            window_id=fields.text("window_id"),
            window=window,
            claim_id=fields.text("claim_id"),
            attempt=fields.integer("attempt", least=0, greatest=ATTEMPT_MAX),
            status=fields.choice("status", WindowStatus),
            content=fields.choice("content", PlanContent),
            planned_at_ms=stored_time_ms(fields, "planned_at_ms"),
            partitions=tuple(
                bounded_ranges(
                    map(PartitionPlan.from_json, fields.objects("partitions")),
                    lambda one: one.ranges,
                )
            ),
            stepped_around=fields.texts("stepped_around"),
            held_by_open=tuple(map(HeldElsewhere.from_json, fields.objects("held_by_open"))),
            notes=fields.texts("notes"),
            scanned=fields.integer("scanned", least=0),
            part=None if part is None else PlanPart.from_json(part),
            ledger_id=fields.text("ledger"),
            replaces=fields.texts("replaces"),
            allow_fewer=fields.boolean("allow_fewer"),
        )
        fields.done()
        if len({part.tp for part in plan.partitions}) != len(plan.partitions):
            raise JsonError("the plan has a partition twice")
        # What may be read is what the caller asked for, whoever wrote the plan.
        for topic in plan.topics:
            if not is_selected(topic, window.topics, window.exclude):
                raise JsonError(f"the plan takes topic {topic}, which its window does not ask for")
        return plan

    @classmethod
    def from_text(cls, text: str) -> WindowPlan:
        """Parse a plan from its JSON text.

        Raises:
            ConfigError: the text is not a plan of a readable version.
        """
        try:
            return cls.from_json(
                Fields(strict_json.loads(text, limit_bytes=PLAN_BYTES_MAX), "plan")
            )
        except JsonError as error:
            raise ConfigError(f"this is not a window plan: {error}") from error


def stored_topic(fields: Fields) -> str:
    """Return the field `topic`; raise `JsonError` for a name that Kafka allows no topic: the client fails on some."""
    name = fields.text("topic", length_max=TOPIC_LENGTH_MAX)
    if not is_topic_name(name):
        raise JsonError(f"{name!a} is not a topic name")
    return name


def stored_time_ms(fields: Fields, name: str) -> int:
    """Return a time that a clock reported when a record was written, ms since the epoch; raise `JsonError`."""
    return fields.integer(name, least=0, greatest=TIME_MS_MAX)


def check_plan_size(plan: WindowPlan) -> None:
    """Raise `PlanTooLargeError` for a plan with too many ranges or bytes, naming the largest topic."""
    by_topic = dict.fromkeys(plan.topics, 0)
    for part in plan.partitions:
        by_topic[part.tp.topic] += part.ranges
    ranges = sum(by_topic.values())
    size = 0 if ranges + len(plan.partitions) <= _SMALL_PLAN else len(plan.to_text().encode())
    if ranges <= PLAN_RANGES_MAX and size <= PLAN_BYTES_MAX:
        return
    worst = max(by_topic, key=lambda topic: by_topic[topic])
    partitions = len(plan.partitions)
    # A range of a partition with many takes a few bits, and a partition some hundred bytes.
    reason = (
        f"they are of {partitions:,} partitions. Plan fewer topics in one window"
        if ranges <= 2 * partitions
        else "its records lie around the cutoff in no order. Plan fewer topics in one window, move the cutoff to a quieter "
        "time, or set a maximum out-of-orderness"
    )
    raise PlanTooLargeError(
        f"window {plan.window_id} of group {plan.group_id} has {ranges:,} ranges and {size:,} bytes "
        f"(limits {PLAN_RANGES_MAX:,} and {PLAN_BYTES_MAX:,}), {by_topic[worst]:,} of the ranges in topic "
        f"{worst}: {reason}",
        topic=worst,
    )


def newest_attempt(plan: WindowPlan, result: object) -> int:
    """Return the newest attempt of a window that the ledger knows of: hosts number their replays freely."""
    found: list[object] = [plan.attempt]
    if isinstance(result, Mapping):
        parts = result.get("parts")
        for one in (result, result.get("write"), *(parts if isinstance(parts, list) else ())):
            if isinstance(one, Mapping):
                found.append(one.get("attempt"))
    return max(one for one in found if isinstance(one, int))


def ranges_to_json(offsets: OffsetSet) -> list[int] | str:
    """Encode ranges as start, length, gap, length, ...; many of them as text: their number, a colon, packed in base64."""
    if len(offsets) > _PLAIN_RANGES_MAX:
        return f"{len(offsets)}:{base64.b64encode(pack(offsets)).decode()}"
    edges = offsets.edges
    return [edge - before for before, edge in zip((0, *edges), edges, strict=False)]


def ranges_from_json(stored: list[int] | str) -> OffsetSet:
    """Return the inverse of `ranges_to_json`; raise `JsonError`."""
    if isinstance(stored, str):
        number, _, packed = stored.partition(":")
        ranges = whole_number(
            number, least=1, greatest=PLAN_RANGES_MAX, what="the number of ranges"
        )
        try:
            return unpack(base64.b64decode(packed, validate=True), ranges)
        except ValueError as error:
            raise JsonError(f"a set of {ranges:,} ranges: {error}") from error
    if not stored:
        return EMPTY_SET
    edges = list(accumulate(stored))
    if len(stored) % 2 or stored[0] < 0 or min(stored[1:]) <= 0 or edges[-1] > INT64_MAX:
        raise JsonError("ranges do not rise")
    return OffsetSet.from_edges(edges)


def stored_ranges(fields: Fields, name: str) -> OffsetSet:
    """Return the set in a field; raise `JsonError`."""
    return ranges_from_json(fields.integers_or_text(name, length_max=PLAN_BYTES_MAX))


def bounded_ranges(parts: Iterable[_Part], ranges_of: Callable[[_Part], int]) -> Iterator[_Part]:
    """Yield the parts of a record; raise `JsonError` as soon as they have too many ranges: packed ones take no room."""
    ranges = 0
    for part in parts:
        ranges += ranges_of(part)
        if ranges > PLAN_RANGES_MAX:
            raise JsonError(f"more than {PLAN_RANGES_MAX:,} ranges")
        yield part


def _ranges_or_none(fields: Fields, name: str) -> OffsetSet:
    return stored_ranges(fields, name) if fields.has(name) else EMPTY_SET


def check_not_covered(plan: WindowPlan) -> None:
    """Raise `WindowCoveredError` for a plan whose records other windows deliver."""
    if plan.content is PlanContent.COVERED:
        raise WindowCoveredError(
            f"window {plan.window_id} of group {plan.group_id} has no records: other windows have "
            "taken all records that it asks for, and an empty output would hide theirs. Replay one of "
            "them, or skip this window",
            window_id=plan.window_id,
        )
