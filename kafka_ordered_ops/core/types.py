"""The words of the package as types: a place in a log, a time, a partition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


class Isolation(StrEnum):
    """Which records count: those of committed transactions only, or all up to the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class OnDataLoss(StrEnum):
    """What to do when records of a window are gone: stop, or write them down as lost and go on."""

    FAIL = "fail"
    WARN = "warn"


class OnCovered(StrEnum):
    """What to do with a window of which other windows have taken everything.

    Skip plans it with nothing in it, and no sink ever sees it. Replay gives the plan of the committed window
    that has the same times and topics. Fail says so.
    """

    SKIP = "skip"
    REPLAY = "replay"
    FAIL = "fail"


class Mode(StrEnum):
    """What the windows of a group take.

    Catch-up: everything stamped before the cutoff that no window has taken. Interval: what is stamped from
    `since` to the cutoff, and late records of intervals that were planned before.
    """

    CATCH_UP = "catch_up"
    INTERVAL = "interval"


class OnOpenClaim(StrEnum):
    """What a plan does about open windows of the group that may hold records it asks for.

    Step around leaves their offsets alone. Wait waits until they are committed or abandoned. Take over
    abandons those that nobody has touched for longer than an age limit. Fail says so.
    """

    STEP_AROUND = "step_around"
    WAIT = "wait"
    TAKE_OVER = "take_over"
    FAIL = "fail"


class OnForeignCommit(StrEnum):
    """What to do when somebody else moved the group's committed offset: stop, or take it as progress."""

    FAIL = "fail"
    ADOPT = "adopt"


class WindowStatus(StrEnum):
    """A window's life: planned, written, committed, published; or abandoned; or rewound.

    Rewound: it was committed, and then progress was moved back behind some of its offsets.
    """

    PLANNED = "planned"
    WRITTEN = "written"
    COMMITTED = "committed"
    PUBLISHED = "published"
    ABANDONED = "abandoned"
    REWOUND = "rewound"

    @property
    def is_open(self) -> bool:
        """Whether the window still claims its offsets without having committed them."""
        return self in (WindowStatus.PLANNED, WindowStatus.WRITTEN)

    @property
    def is_done(self) -> bool:
        """Whether the window's offsets are part of the group's progress."""
        return self in (WindowStatus.COMMITTED, WindowStatus.PUBLISHED)


class PlanContent(StrEnum):
    """What a plan holds: offsets, nothing because nothing happened, nothing because others took it."""

    RECORDS = "records"
    EMPTY = "empty"
    COVERED = "covered"
