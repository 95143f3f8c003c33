"""The interface between the relay's HTTP side and its service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.record import Record
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.core.window.plan import WindowPlan


@dataclass(frozen=True, slots=True)
class Delivered:
    """Records of one partition, leased together to one client."""

    tp: TopicPartition
    #: Ordered by offset, all with the same `attempt`.
    records: Sequence[Record]
    #: The token that acknowledges, cancels or extends the lease.
    lease: str
    #: When the lease ends, in milliseconds since the epoch.
    until_ms: int


@dataclass(frozen=True, slots=True)
class Reader:
    """A caller, and the limits of all calls under its name at one server."""

    name: str
    #: Whether the reader's leases count as attempts.
    counts: bool
    #: The largest number of records under leases.
    pending_max: int
    #: The largest number of groups that it begins in all, and that it reads at the same time.
    groups_max: int
    #: The largest number of unfinished windows that it has opened.
    windows_max: int


class LeasePlace(NamedTuple):
    """The topic and group of a lease, for checking a caller's rights."""

    topic: str
    group: str


#: A lease's token, and the offsets to change; None for all of them.
LeasedOffsets = tuple[str, OffsetSet | None]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one group in one partition, as a server knows it."""

    topic: str
    partition: int
    #: None if nobody has read this partition yet.
    group: str | None
    #: The id of the server that hands out its records; None if not known yet.
    owner: str | None
    #: Whether this server is the owner.
    is_mine: bool
    #: Whether this server has read the partition's log to its end.
    is_replayed: bool
    #: The number of offsets that are neither acknowledged nor leased, up to the end of the topic's partition or of the
    #: window, transaction markers included; None if the end is not known yet.
    waiting: int | None
    #: The number of leased records.
    pending: int
    #: The number of acknowledged offsets from `base` on.
    acknowledged: int
    #: The first offset that is not acknowledged; None if not known yet.
    base: int | None
    #: When the oldest lease ends, in milliseconds since the epoch; None without leases.
    oldest_lease_ms: int | None
    #: The number of records whose dead letters were refused, so that they are handed out again.
    refused_dead_letters: int
    #: The problem that keeps the server from handing out records or from writing dead letters; None without problems.
    problem: str | None
    #: How many records of the log have been read, and how many there were; None if not known yet.
    replayed: int
    replayed_of: int | None

    def without_group(self) -> PartitionStatus:
        """Return the status for a caller that may not know the group."""
        return replace(
            self,
            group=None,
            waiting=None,
            pending=0,
            acknowledged=0,
            base=None,
            oldest_lease_ms=None,
            refused_dead_letters=0,
            problem=None,
        )


class RelayService(Protocol):
    """One server of the relay. Its methods are called concurrently on the event loop that started it.

    During the start, calls raise `NotReadyError`.
    """

    async def start(self) -> None:
        """Start; return when the server has joined, or raise the error that prevents it. May be cancelled."""

    async def close(self) -> None:
        """End; waiting calls fail. May be called at any time, and twice."""

    async def read(
        self,
        group: str,
        *,
        records_max: int,
        wait_s: float,
        lease_s: float,
        topics: frozenset[str] | None,
        reader: Reader | None = None,
    ) -> tuple[list[Delivered], bool]:
        """Lease up to `records_max` records; wait for the first one up to `wait_s`.

        Args:
            group: the client group.
            records_max: the largest number of records, at least 1.
            wait_s: how long to wait; 0 returns available records. If these are not known yet, they are determined first.
            lease_s: how long the client holds the records.
            topics: selects records of these topics; None selects all topics of this server.
            reader: the reader; None for one without limits.

        Cancelling the call ends the wait. Records that were being delivered are handed out again when their lease ends.

        Returns:
            The records, and whether every offset of a window is acknowledged. Always False for a group without an end.

        Raises:
            NotReadyError: no log of this server's partitions has been read yet.
            RelayUnavailableError: the available records were not known in time, or a lease could not be stored.
            UnknownTopicError: this relay does not serve one of `topics`.
            RelayLimitError: the reader has reached its limit of records or of groups at the same time.
            AccessDeniedError: the reader has reached its limit of groups in all.
        """

    async def acknowledge(self, leases: Sequence[LeasedOffsets]) -> None:
        """Acknowledge records; return when this is stored. Offsets outside their lease are refused.

        Raises:
            LeaseError: a token is invalid; nothing was written.
            RelayError: it is not known to be stored in time; the same call can be repeated.
        """

    async def cancel(self, leases: Sequence[LeasedOffsets]) -> None:
        """Give records back, to be handed out again at once; raise as `acknowledge` does."""

    async def extend(self, tokens: Sequence[str], lease_s: float) -> list[int]:
        """Extend leases to `lease_s` from now; return when each ends, in milliseconds since the epoch.

        Raises:
            LeaseError: a token is invalid, or its lease has ended; nothing was written.
        """

    async def open_window(
        self, plan: WindowPlan, group: str | None, reader: Reader | None = None
    ) -> str:
        """Open a group with exactly the offsets of a plan; return its name. Repeating the call changes nothing.

        Raises:
            RelayLimitError: `reader` has reached its limit of unfinished windows.
            UnknownTopicError: this relay does not serve a topic of the plan.
            TopicRecreatedError: the plan is about a topic that was deleted and recreated.
            ConfigError: the group exists with other offsets, or the plan does not fit the topics or the relay.
        """

    def place_of(self, token: str) -> LeasePlace:
        """Return the topic and group of a lease, for checking rights; raise `LeaseError` for an invalid token."""

    def status(self) -> list[PartitionStatus]:
        """Return this server's status by topic, partition and group; of ended windows, only the last ones."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are served."""

    @property
    def is_ready(self) -> bool:
        """Whether reads are served: the logs of this server's partitions have been read."""

    @property
    def ended_by(self) -> BaseException | None:
        """The error that ended this server, which serves nothing any more; None while it runs."""
