"""A group as it must be, kept in plain sets beside the package: what is done, claimed, frozen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.oracle.journal import PlanSeen, Question
from tests.support.oracle.plain import Row
from tests.support.oracle.truth import LogKey, Truth
from tests.support.oracle.verdict import DONE, NO_TIMESTAMP, OPEN, first_missing

Place = tuple[LogKey, int]

#: Above every offset: from nowhere on.
_NOWHERE = 2**62


@dataclass
class Held:
    """One window, as the newest call left it."""

    plan: PlanSeen
    status: str
    touched_ms: int
    committed_ms: int = 0
    #: Into how many parts this attempt is split, and which have reported.
    parts: tuple[int, set[int]] | None = None
    is_pruned: bool = False
    #: Records that readers must see flagged, and those that they may.
    late: set[Place] = field(default_factory=set)
    perhaps_late: set[Place] = field(default_factory=set)

    @property
    def is_open(self) -> bool:
        """Whether it claims its offsets."""
        return self.status in OPEN

    @property
    def is_done(self) -> bool:
        """Whether its offsets are progress."""
        return self.status in DONE

    def is_owned_by(self, claim_id: str, attempt: int) -> bool:
        """Whether this attempt may write."""
        newest = self.plan.claim_id, self.plan.attempt
        return (claim_id == newest[0] and self.is_done) or (
            self.is_open and (claim_id, attempt) == newest
        )


@dataclass
class Frozen:
    """The times of a window that was planned, and on each log up to where it had looked."""

    low_ms: int
    before_ms: int
    #: Late from here on, for sure; and late from here on, perhaps.
    surely: dict[LogKey, int]
    perhaps: dict[LogKey, int]

    def holds(self, time_ms: int) -> bool:
        """Whether a time is frozen by it."""
        return self.low_ms <= time_ms < self.before_ms


class Group:
    """What the calls so far must have left of a group."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.windows: dict[str, Held] = {}
        #: By the id of the claim, in the order in which they were planned.
        self.frozen: dict[str, Frozen] = {}
        self.done: dict[LogKey, set[int]] = {}
        self.origin: dict[LogKey, int] = {}
        #: Topics by name and id with progress that was ever committed.
        self.settled: set[tuple[str, str]] = set()
        self.patterns: set[str] = set()
        #: What the windows of the group have in common.
        self.definition: tuple[object, ...] | None = None
        #: The committed offset of each known partition, as the group left it.
        self.committed: dict[LogKey, int | None] = {}
        self.attempts: dict[str, int] = {}
        #: Ids of windows that were rewound and planned again: readers may see the output of an earlier claim.
        self.delivered: set[str] = set()
        #: What windows asked for that were delivered and forgotten: their ids are used up.
        self.forgotten: dict[str, Question] = {}

    # --- what is known ----------------------------------------------------------------------------

    def topic_id(self, topic: str) -> str | None:
        """The id of the topic that the group's progress is about."""
        return next((key.topic_id for key in self.origin if key.topic == topic), None)

    def recreated(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics that are there, and are not those that the group knows."""
        now = self.truth.topic_ids
        return {
            name
            for name in topics
            if name in now and (known := self.topic_id(name)) is not None and known != now[name]
        }

    def moved_by_others(self, committed: dict[tuple[str, int], int]) -> dict[LogKey, int]:
        """Committed offsets that are there, and are not where the group left them."""
        return {
            key: committed[key.topic, key.partition]
            for key, known in self.committed.items()
            if (key.topic, key.partition) in committed
            and self.truth.topic_ids.get(key.topic) == key.topic_id
            and committed[key.topic, key.partition] != known
        }

    def base(self, key: LogKey) -> int:
        """The first offset that is not done."""
        return first_missing(self.done[key], self.origin[key])

    def claimed(self, key: LogKey) -> set[int]:
        """Offsets that open windows hold."""
        return {
            offset
            for held in self.windows.values()
            if held.is_open
            for offset in held.plan.holds.get(key, ())
        }

    def lost(self, key: LogKey, start: int) -> set[int]:
        """Offsets that are gone from the log, and that no window holds."""
        return set(range(self.origin[key], start)) - self.done[key] - self.claimed(key)

    def is_frozen(self, key: LogKey, time_ms: int, *, surely: bool) -> bool:
        """Whether a window was planned for a time on a partition."""
        return any(
            one.holds(time_ms) and key in (one.surely if surely else one.perhaps)
            for one in self.frozen.values()
        )

    def is_late(self, key: LogKey, offset: int, time_ms: int, *, surely: bool) -> bool:
        """Whether that window had looked only below the offset."""
        return any(
            one.holds(time_ms)
            and offset >= (one.surely if surely else one.perhaps).get(key, _NOWHERE)
            for one in self.frozen.values()
        )

    def wants(self, asked: Question, key: LogKey, row: Row, *, surely: bool) -> bool:
        """Whether a window that is planned now asks for a record; no interval asks for one without a timestamp."""
        if asked.since_ms is not None and row.time_ms == NO_TIMESTAMP:
            return False
        if asked.low_ms <= row.time_ms < asked.cutoff_ms:
            return True
        return row.time_ms < asked.low_ms and self.is_frozen(key, row.time_ms, surely=surely)

    def covers(self, keys: Iterable[LogKey], asked: Question, *, surely: bool) -> bool:
        """Whether windows were planned for all times of a question, on every partition."""
        keys = list(keys)
        return bool(keys) and all(self._covers(key, asked, surely=surely) for key in keys)

    def _covers(self, key: LogKey, asked: Question, *, surely: bool) -> bool:
        reached = asked.low_ms
        ranges = [
            (one.low_ms, one.before_ms)
            for one in self.frozen.values()
            if key in (one.surely if surely else one.perhaps)
        ]
        for low_ms, before_ms in sorted(ranges):
            if low_ms <= reached:
                reached = max(reached, before_ms)
        return reached >= asked.cutoff_ms

    def gap_of(self, key: LogKey, time_ms: int) -> tuple[int, int] | None:
        """The times around one that no window of a partition covers; None if one does, or none comes after it.

        No interval covers a record without a timestamp.
        """
        ranges = [(one.low_ms, one.before_ms) for one in self.frozen.values() if key in one.surely]
        if self.definition is not None and self.definition[0] == "interval":
            ranges += [(low, NO_TIMESTAMP) for low, _ in ranges if low < NO_TIMESTAMP]
            ranges = [
                (NO_TIMESTAMP + 1, before) if low <= NO_TIMESTAMP < before else (low, before)
                for low, before in ranges
            ]
        later = [low for low, _ in ranges if low > time_ms]
        if not later or any(low <= time_ms < before for low, before in ranges):
            return None
        earlier = [before for _, before in ranges if before <= time_ms]
        return max(earlier, default=-(2**63)), min(later)

    def is_certain(self, topic: str) -> bool:
        """Whether it is known of all partitions of a topic which windows cover their times."""
        return not any(
            (key in one.surely) != (key in one.perhaps)
            for key in self.origin
            if key.topic == topic
            for one in self.frozen.values()
        )

    # --- what happens -----------------------------------------------------------------------------

    def begin(self, key: LogKey, origin: int, committed: int | None) -> None:
        """A partition that the group has never planned.

        Windows that were planned before it was there may count as planned for it, from its first offset on.
        """
        siblings = {other for other in self.origin if other[:2] == key[:2]}
        for one in self.frozen.values():
            if siblings & one.perhaps.keys() or not siblings:
                one.perhaps.setdefault(key, 0)
        self.origin[key], self.done[key], self.committed[key] = origin, set(), committed

    def freeze(self, plan: PlanSeen) -> None:
        """A window was planned: its times are its own from now on."""
        ends = {key: share.decided_end for key, share in plan.shares.items()}
        asked = plan.question
        self.frozen[plan.claim_id] = Frozen(asked.low_ms, asked.cutoff_ms, dict(ends), dict(ends))

    def commit(self, held: Held, now_ms: int) -> None:
        """A window's offsets are progress."""
        held.status, held.committed_ms = "committed", now_ms
        for key, offsets in held.plan.holds.items():
            if key in self.done:
                self.done[key] |= offsets
                self.settled.add(key[:2])
        self.restore_committed()

    def restore_committed(self) -> None:
        """Every commit leaves the offsets of all partitions."""
        for key in self.committed:
            self.committed[key] = self.base(key)

    def abandon(self, held: Held) -> None:
        """A window's offsets are free, and so is the choice of a start that nothing was committed from."""
        held.status = "abandoned"
        self.frozen.pop(held.plan.claim_id, None)
        topics = {key[:2] for key in held.plan.shares}
        kept = {
            key[:2] for other in self.windows.values() if other.is_open for key in other.plan.shares
        }
        for topic in topics - self.settled - kept:
            self.forget_topic(topic)

    def forget_topic(self, topic: tuple[str, str]) -> None:
        """Nothing is known of a topic any more."""
        for key in [key for key in self.origin if key[:2] == topic]:
            del self.origin[key], self.done[key], self.committed[key]
            for one in self.frozen.values():
                one.surely.pop(key, None)
                one.perhaps.pop(key, None)

    def forget_window(self, window_id: str) -> None:
        """Nothing is left of a window but progress, that its times were planned, and that it was delivered."""
        held = self.windows.pop(window_id)
        if held.is_done or held.status == "rewound" or window_id in self.delivered:
            self.forgotten[window_id] = held.plan.question

    def cut(self, key: LogKey, offset: int) -> set[str]:
        """Progress of a partition ends at an offset now; the windows that are rewound by it."""
        self.done[key] = {one for one in self.done[key] if one < offset}
        self.origin[key] = min(self.origin[key], offset)
        rewound = {
            window_id
            for window_id, held in self.windows.items()
            if held.is_done
            and not held.is_pruned
            and max(held.plan.holds.get(key, ()), default=-1) >= offset
        }
        kept = {held.plan.claim_id for held in self.windows.values() if held.is_open}
        kept |= {
            held.plan.claim_id
            for window_id, held in self.windows.items()
            if held.is_done and window_id not in rewound and not held.is_pruned
        }
        known = {held.plan.claim_id for held in self.windows.values()}
        for claim_id, one in self.frozen.items():
            if claim_id in kept:
                continue
            one.surely.pop(key, None)
            if claim_id in known and not self._was_pruned(claim_id):
                one.perhaps.pop(key, None)
            elif key in one.perhaps:
                # Of a window that was pruned nobody knows up to where it had looked.
                one.perhaps[key] = 0
        return rewound

    def _was_pruned(self, claim_id: str) -> bool:
        return any(
            held.is_pruned and held.plan.claim_id == claim_id for held in self.windows.values()
        )
