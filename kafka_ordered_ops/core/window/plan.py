"""The resolved window: for each partition the exact offsets, decided once."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.cluster.cluster_facts import is_selected
from kafka_ordered_ops.core.cluster.names import TOPIC_LENGTH_MAX, is_topic_name
from kafka_ordered_ops.core.errors import ConfigError, PlanTooLargeError, WindowCoveredError
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.strict_json import (
    Count,
    Int32,
    JsonError,
    Stored,
    Text,
    Texts,
    whole_number,
)
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
from kafka_ordered_ops.core.window.packed_ranges import pack, unpack
from kafka_ordered_ops.core.window.window import StoredWindow, Window

_Part = TypeVar("_Part")

#: Version of the plan's JSON. Readers refuse other versions.
PLAN_VERSION: Final = 1

#: Limits of a plan: every process that uses it holds it in memory, and the ledger stores it.
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

#: Ranges of `PartitionPlan.earlier`; each takes a few bytes.
EARLIER_RANGES_MAX: Final = 256

#: Parts of a split window: more than any scheduler maps to tasks. Each part reports in its own transaction.
PARTS_MAX: Final = 10_000

#: Types of stored fields.
Attempt = Annotated[int, Meta(ge=0, le=ATTEMPT_MAX)]
PartsCount = Annotated[int, Meta(ge=1, le=PARTS_MAX)]
#: As `ranges_to_json` has them.
Ranges = list[int] | Annotated[str, Meta(max_length=PLAN_BYTES_MAX)]
#: A time that a clock reported when a record was written, ms since the epoch.
TimeMs = Annotated[int, Meta(ge=0, le=TIME_MS_MAX)]
TopicId = Annotated[str, Meta(max_length=TOPIC_ID_LENGTH_MAX)]
TopicName = Annotated[str, Meta(max_length=TOPIC_LENGTH_MAX)]


class PlanPart(Stored, frozen=True):
    """The part of a split window that a plan is for."""

    #: From 0.
    index: Count
    count: PartsCount

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.count}"


class HeldElsewhere(Stored, frozen=True):
    """Offsets that an open window holds and that another window would otherwise take."""

    #: The open window.
    window_id: Text
    #: An upper bound for the records: control records and gaps count as well.
    offsets: Count
    #: Status of the open window when the other window was planned.
    status: WindowStatus
    #: When an attempt last planned, took up or reported the open window, ms since the epoch.
    touched_at_ms: TimeMs


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition's share of a window."""

    tp: TopicPartition
    topic_id: str
    #: The offsets of the window: read exactly these. They include control records and gaps.
    taken: OffsetSet
    #: Offsets that retention removed before delivery; done with the window, never read.
    lost: OffsetSet
    #: Every offset below it was decided when the window was planned.
    decided_end: int
    #: The first visible record stamped at or after the cutoff, or `decided_end`. Records taken from here on are
    #: out of order. None if unknown: out-of-order records cannot be counted then.
    head_end: int | None
    #: Which records are late.
    late: LateSteps
    #: Epoch of the log's leader when the window was planned; None if unknown.
    leader_epoch: int | None = None
    #: The part of `lost` that was removed before any window read it: its records may have had any time.
    lost_untimed: OffsetSet = EMPTY_SET
    #: Ranges in which the window may have records stamped before its `since`; they may contain other offsets.
    earlier: OffsetSet = EMPTY_SET

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; ranges as `ranges_to_json` returns them."""
        return {
            "topic": self.tp.topic,
            "partition": self.tp.partition,
            "topic_id": self.topic_id,
            "taken": ranges_to_json(self.taken),
            "lost": ranges_to_json(self.lost),
            "decided_end": self.decided_end,
            "head_end": self.head_end,
            "late": self.late.to_json(),
            "leader_epoch": self.leader_epoch,
            "lost_untimed": ranges_to_json(self.lost_untimed),
            "earlier": ranges_to_json(self.earlier),
        }

    @property
    def ranges(self) -> int:
        """The number of ranges that the ledger stores."""
        return len(self.taken) + len(self.lost) + len(self.lost_untimed) + len(self.earlier)

    @property
    def may_have_out_of_order(self) -> bool:
        """Whether the plan may take records after one stamped at or after the cutoff."""
        return bool(self.taken) and (self.head_end is None or self.head_end < self.taken.end)


class _StoredShare(Stored, frozen=True):
    topic: TopicName
    partition: Int32
    topic_id: TopicId
    taken: Ranges
    lost: Ranges
    decided_end: Count
    head_end: Count | None
    late: list[int]
    leader_epoch: Int32 | None
    lost_untimed: Ranges
    earlier: Ranges

    @property
    def plan(self) -> PartitionPlan:
        return PartitionPlan(
            # These names repeat in each of a hundred thousand windows: keep each string once.
            TopicPartition(sys.intern(stored_topic(self.topic)), self.partition),
            sys.intern(self.topic_id),
            ranges_from_json(self.taken),
            ranges_from_json(self.lost),
            self.decided_end,
            self.head_end,
            LateSteps.from_json(self.late),
            self.leader_epoch,
            ranges_from_json(self.lost_untimed),
            ranges_from_json(self.earlier),
        )


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """An exact window: immutable, stored as JSON. A reader needs only the plan and its settings.

    `claim_id` and `attempt` are the fencing token: only the newest attempt of a live claim may commit. `status` is the
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
    #: The open windows that hold offsets which this window would otherwise take.
    held_by_open: tuple[HeldElsewhere, ...] = ()
    #: Messages for people: offsets restored, records lost, partitions added.
    notes: tuple[str, ...] = ()
    #: The number of timestamps read for the plan; for windows planned together, the first window has the total.
    scanned: int = 0
    #: The part of a split window; None for the whole window. A part is read and reported, never committed.
    part: PlanPart | None = None
    #: The ledger that the window is claimed in, as ``cluster id/topic id``; empty in a preview.
    ledger_id: str = ""
    #: Earlier claims of this window whose output may be replaced: the window was rewound, and planned again.
    replaces: tuple[str, ...] = ()
    #: Whether the output may replace an output with more records; see `Policy.allow_fewer`.
    allow_fewer: bool = False
    #: Whether the commit adopts other programs' commits as the group's progress; see `Policy.on_foreign_commit`.
    adopts_commits: bool = False

    @property
    def cutoff_ms(self) -> int:
        """The window's exclusive end in time, ms since the epoch."""
        return self.window.cutoff_ms

    @property
    def isolation(self) -> Isolation:
        """The isolation level: which records count."""
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
        """Whether the plan determines, for every record, whether it is out of order."""
        return all(part.head_end is not None for part in self.partitions if part.taken)

    @property
    def publisher(self) -> Publisher:
        """The publisher that may replace the published output of this window."""
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
            "adopts_commits": self.adopts_commits,
            "held_by_open": [held.to_json() for held in self.held_by_open],
        }

    def to_text(self) -> str:
        """Return the JSON as text."""
        return strict_json.dumps(self.to_json())

    @classmethod
    def from_json(cls, value: Any) -> WindowPlan:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        return StoredPlan.parse(value, "plan").plan

    @classmethod
    def from_text(cls, text: str) -> WindowPlan:
        """Parse a plan from its JSON text.

        Raises:
            ConfigError: the text is not a plan of a readable version.
        """
        try:
            return cls.from_json(strict_json.loads(text, limit_bytes=PLAN_BYTES_MAX))
        except JsonError as error:
            raise ConfigError(f"this is not a window plan: {error}") from error


class StoredPlan(Stored, frozen=True, rename={"group_id": "group", "ledger_id": "ledger"}):
    """The JSON of a `WindowPlan`."""

    what = "the plan"

    version: Literal[1]
    group_id: Text
    window_id: Text
    window: StoredWindow
    claim_id: Text
    attempt: Attempt
    status: WindowStatus
    content: PlanContent
    planned_at_ms: TimeMs
    partitions: list[_StoredShare]
    stepped_around: Texts
    held_by_open: tuple[HeldElsewhere, ...]
    notes: Texts
    scanned: Count
    part: PlanPart | None
    ledger_id: Text
    replaces: Texts
    allow_fewer: bool
    adopts_commits: bool

    @property
    def plan(self) -> WindowPlan:
        """The plan; raises `JsonError` if it contradicts itself."""
        if self.part is not None and self.part.index >= self.part.count:
            raise JsonError(f"the plan is of part {self.part.index} of {self.part.count}")
        shares = (share.plan for share in self.partitions)
        partitions = tuple(bounded_ranges(shares, lambda part: part.ranges))
        plan = WindowPlan(**self.fields(window=self.window.window, partitions=partitions))
        if len({part.tp for part in plan.partitions}) != len(plan.partitions):
            raise JsonError("the plan has a partition twice")
        # Do not trust the author of the plan: it must only take topics that the window asks for.
        for topic in plan.topics:
            if not is_selected(topic, plan.window.topics, plan.window.exclude):
                raise JsonError(f"the plan takes topic {topic}, which its window does not ask for")
        return plan


def stored_topic(name: str) -> str:
    """Return a topic name; raise `JsonError` if it is invalid: some names crash the client."""
    if not is_topic_name(name):
        raise JsonError(f"{name!a} is not a topic name")
    return name


def check_plan_size(plan: WindowPlan) -> None:
    """Raise `PlanTooLargeError` for a plan with too many ranges or bytes; the error has the largest topic."""
    by_topic = dict.fromkeys(plan.topics, 0)
    for part in plan.partitions:
        by_topic[part.tp.topic] += part.ranges
    ranges = sum(by_topic.values())
    size = 0 if ranges + len(plan.partitions) <= _SMALL_PLAN else len(plan.to_text().encode())
    if ranges <= PLAN_RANGES_MAX and size <= PLAN_BYTES_MAX:
        return
    worst = max(by_topic, key=lambda topic: by_topic[topic])
    partitions = len(plan.partitions)
    # In a partition with many ranges, each takes a few bits; a partition takes about a hundred bytes.
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
    """Return the newest attempt of a window in the ledger: hosts choose the numbers of their replays."""
    attempts: list[object] = [plan.attempt]
    if isinstance(result, Mapping):
        parts = result.get("parts")
        for report in (result, result.get("write"), *(parts if isinstance(parts, list) else ())):
            if isinstance(report, Mapping):
                attempts.append(report.get("attempt"))
    return max(attempt for attempt in attempts if isinstance(attempt, int))


def ranges_to_json(offsets: OffsetSet) -> list[int] | str:
    """Encode ranges as start, length, gap, length, ...; many ranges as text: their number, a colon, packed base64."""
    if len(offsets) > _PLAIN_RANGES_MAX:
        return f"{len(offsets)}:{base64.b64encode(pack(offsets)).decode()}"
    edges = offsets.edges
    return [edge - before for before, edge in zip((0, *edges), edges, strict=False)]


def ranges_from_json(stored: list[int] | str) -> OffsetSet:
    """Decode ranges of `ranges_to_json`; raise `JsonError` if they are invalid."""
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


def bounded_ranges(parts: Iterable[_Part], ranges_of: Callable[[_Part], int]) -> Iterator[_Part]:
    """Yield the parts of a record; raise `JsonError` as soon as they have too many ranges: packed ranges take few bytes."""
    ranges = 0
    for part in parts:
        ranges += ranges_of(part)
        if ranges > PLAN_RANGES_MAX:
            raise JsonError(f"more than {PLAN_RANGES_MAX:,} ranges")
        yield part


def decoded_alike(plans: Iterable[WindowPlan]) -> list[list[WindowPlan]]:
    """Return the plans by their formats and schemas, each group for one pass: those planned earlier may have older ones."""
    alike: dict[str, list[WindowPlan]] = {}
    for plan in plans:
        alike.setdefault(plan.window.decoding, []).append(plan)
    return [*alike.values()]


def check_not_covered(plan: WindowPlan) -> None:
    """Raise `WindowCoveredError` for a plan whose records other windows deliver."""
    if plan.content is PlanContent.COVERED:
        raise WindowCoveredError(
            f"window {plan.window_id} of group {plan.group_id} has no records: other windows have "
            "taken all records that it asks for, and an empty output would hide theirs. Replay one of "
            "them, or skip this window",
            window_id=plan.window_id,
        )
