"""What the relay's HTTP side needs of the service behind it."""

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
    #: In the order of their offsets; all with the same `attempt`.
    records: Sequence[Record]
    #: The token that acknowledges, cancels or extends the lease.
    lease: str
    #: When the lease ends, in milliseconds since the epoch.
    until_ms: int


@dataclass(frozen=True, slots=True)
class Reader:
    """Who calls, and the bounds of all calls under one name at one server."""

    name: str
    #: Whether its leases count as attempts.
    counts: bool
    #: Records under its leases.
    pending_max: int
    #: Groups that it begins in all, and reads at the same time.
    groups_max: int
    #: Windows that it has opened and that are not done.
    windows_max: int


class LeasePlace(NamedTuple):
    """What a lease is about, to check the rights of a caller."""

    topic: str
    group: str


#: A lease by its token, and which of its offsets; None: all of them.
LeasedOffsets = tuple[str, OffsetSet | None]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """What a server knows of one group in one partition."""

    topic: str
    partition: int
    #: None: nobody has read this partition yet.
    group: str | None
    #: The id of the server that hands out its records; None: not known yet.
    owner: str | None
    #: Whether this server is the owner.
    is_mine: bool
    #: Whether this server has read the partition's log to its end.
    is_replayed: bool
    #: Records under a lease.
    pending: int
    #: Offsets acknowledged from `base` on.
    acknowledged: int
    #: The first offset that is not acknowledged; None: not known yet.
    base: int | None
    #: When the oldest lease ends, in milliseconds since the epoch; None: there is none.
    oldest_lease_ms: int | None
    #: Records whose dead letters were refused, so that they are handed out again.
    refused_dead_letters: int
    #: What keeps the server from handing out records, or a dead letter from being written; None: nothing.
    problem: str | None
    #: How many records of the log have been read, and how many there were; None: not known yet.
    replayed: int
    replayed_of: int | None

    def without_group(self) -> PartitionStatus:
        """Return what is left for a caller who may not know of its group."""
        return replace(
            self,
            group=None,
            pending=0,
            acknowledged=0,
            base=None,
            oldest_lease_ms=None,
            refused_dead_letters=0,
            problem=None,
        )


class RelayService(Protocol):
    """One server of the relay. Its methods are called on the event loop that started it, many at a time.

    While it starts, calls raise `NotReadyError`.
    """

    async def start(self) -> None:
        """Begin; return when it takes part in serving, and raise what keeps it from that. May be cancelled."""

    async def close(self) -> None:
        """End; calls that wait fail. May be called at any time, and twice."""

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
            records_max: at least 1.
            wait_s: 0 returns what is there. Where it is not known yet what is there, that is found out first.
            lease_s: how long the records are this client's.
            topics: only records of these topics; None: of all that this server serves.
            reader: who reads; None: without bounds.

        Cancelling the call gives up the wait. Records that were on their way are handed out again when their lease ends.

        Returns:
            The records, and whether every offset of a window is acknowledged. Always False for a group without an end.

        Raises:
            NotReadyError: no log of this server's partitions has been read yet.
            RelayUnavailableError: it was not found out in time what is there, or a lease could not be stored.
            UnknownTopicError: this relay does not serve one of `topics`.
            RelayLimitError: the reader holds as many records, or reads for as many groups, as it may.
            AccessDeniedError: the reader has begun as many groups as it may.
        """

    async def acknowledge(self, leases: Sequence[LeasedOffsets]) -> None:
        """Note that records are done; return when this is stored. Offsets outside their lease are refused.

        Raises:
            LeaseError: a token is invalid; nothing was written.
            RelayError: not stored in time, or not known to be; the same call can be repeated.
        """

    async def cancel(self, leases: Sequence[LeasedOffsets]) -> None:
        """Give records back, to be handed out again at once; raises as `acknowledge` does."""

    async def extend(self, tokens: Sequence[str], lease_s: float) -> list[int]:
        """Let leases end `lease_s` from now; return when each ends, in milliseconds since the epoch.

        Raises:
            LeaseError: a token is invalid, or its lease has ended; nothing was written.
        """

    async def open_window(
        self, plan: WindowPlan, group: str | None, reader: Reader | None = None
    ) -> str:
        """Begin a group with exactly the offsets of a plan; return its name. Repeating the call changes nothing.

        Raises:
            RelayLimitError: `reader` has opened as many windows as it may that are not done.
            UnknownTopicError: this relay does not serve a topic of the plan.
            TopicRecreatedError: the plan is about a topic of before.
            ConfigError: the group exists with other offsets, or the plan does not fit the topics or the relay.
        """

    def place_of(self, token: str) -> LeasePlace:
        """Return what a lease is about, to check the caller's rights; raise `LeaseError` for an invalid token."""

    def status(self) -> list[PartitionStatus]:
        """Return what this server knows, by topic, partition and group; of ended windows only the last ones."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are served."""

    @property
    def is_ready(self) -> bool:
        """Whether reads are served: the logs of this server's partitions have been read."""

    @property
    def ended_by(self) -> BaseException | None:
        """The error that ended this server: nothing will be served any more. None while it runs."""
