"""The basic types of the package: a place in a log, a time, a partition, and the choices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

INT32_MAX = (1 << 31) - 1
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
    """Which records count: only those of committed transactions, or all up to the high watermark."""

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class GroupProtocol(StrEnum):
    """The protocol by which a group assigns its partitions. All members of a group use the same one.

    `CLASSIC`: the members assign them, cooperatively. `CONSUMER`: the brokers do (KIP-848, Kafka 4.0 and later); how long
    a silent member keeps its partitions is then a setting of the group.
    """

    CLASSIC = "classic"
    CONSUMER = "consumer"


class PartitionBy(StrEnum):
    """The folders above a window's folder: ``date=2026-11-20``, or ``date=2026-11-20/hour=11``."""

    DATE = "date"
    HOUR = "hour"


class OnDataLoss(StrEnum):
    """What to do if records of a window are gone or cannot be read: fail, or record the offsets as lost and continue."""

    FAIL = "fail"
    WARN = "warn"


class OnCovered(StrEnum):
    """What to do with a window if other windows have taken all of its records.

    `AUTO`, the default everywhere, and `SKIP` plan it empty, and no sink sees it. `REPLAY` returns the plan of the
    committed window with the same times and topics. `FAIL` raises `WindowCoveredError`. Tasks and assets that run again
    for a finished window read its records again under `AUTO` and `REPLAY`, and do not under `SKIP`.
    """

    SKIP = "skip"
    REPLAY = "replay"
    FAIL = "fail"
    AUTO = "auto"

    @property
    def allows_covered(self) -> bool:
        """Whether a covered window is planned, without records."""
        return self in (OnCovered.AUTO, OnCovered.SKIP)


class Mode(StrEnum):
    """The kind of a group's windows.

    Catch-up: every record stamped before the cutoff that no window has taken. Interval: records stamped from `since`
    up to the cutoff, and late records of intervals planned before.
    """

    CATCH_UP = "catch_up"
    INTERVAL = "interval"


class OnOpenClaim(StrEnum):
    """What a plan does about open windows of the group that may hold records that it asks for.

    `STEP_AROUND` leaves their offsets alone. `WAIT` waits until they are committed or abandoned. `TAKE_OVER` abandons
    windows that no attempt has touched for longer than an age limit. `FAIL` raises `OpenClaimError`.
    """

    STEP_AROUND = "step_around"
    WAIT = "wait"
    TAKE_OVER = "take_over"
    FAIL = "fail"


class OnForeignCommit(StrEnum):
    """What to do if another program moved the group's committed offset: fail, or adopt it as progress."""

    FAIL = "fail"
    ADOPT = "adopt"


class ProgressFormat(StrEnum):
    """Where a window group's progress is kept, and so which programs may continue it.

    `LEDGER`: in the ledger; commits have offset maps of this package. `DUAL`: in the ledger, and each commit has
    an offset map of Confluent's Parallel Consumer, so that windows and Parallel Consumer may run in turn.
    `PARALLEL_CONSUMER`: the group was handed over to Parallel Consumer, and no window is planned.
    """

    LEDGER = "ledger"
    DUAL = "dual"
    PARALLEL_CONSUMER = "parallel-consumer"

    @property
    def is_shared(self) -> bool:
        """Whether commits carry Parallel Consumer's offset maps."""
        return self is not ProgressFormat.LEDGER


class WindowStatus(StrEnum):
    """The states of a window: planned, written, committed, published; or abandoned; or rewound.

    Rewound: the window was committed, and later progress was moved back to before some of its offsets.
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
    """The content of a plan: records; nothing, as no records exist; or nothing, as other windows have the records."""

    RECORDS = "records"
    EMPTY = "empty"
    COVERED = "covered"
