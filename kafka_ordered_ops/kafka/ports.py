"""The doors to a cluster: the requests of the rooms above, and their implementations.

Settings open a door. If ``bootstrap.servers`` names real brokers, confluent-kafka answers; if it is
``memory:<name>``, the `InMemoryKafka` of that name in this process does. The rooms above do not know which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self

import pyarrow as pa

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    LogClaim,
    LogEnd,
    ScanBatch,
    TopicFacts,
)
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.group.ledger.records import Keep
from kafka_ordered_ops.core.group.ledger.repair import RestoredRecord
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, Prepare, check_ledger_name
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.membership import Commits, OnRevoke
from kafka_ordered_ops.core.membership import MembershipChange as MembershipChange
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.new_record import NewRecord, Report
from kafka_ordered_ops.core.reading import NO_IDS
from kafka_ordered_ops.core.reading import Turn as Turn
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.kafka import committed_offsets as _offsets
from kafka_ordered_ops.kafka import group_offsets as _group_offsets
from kafka_ordered_ops.kafka.internal_topics import InternalTopics
from kafka_ordered_ops.kafka.ledger.ledger import PLANNING, UPDATE_TIMEOUT_S, Ledger, Pace
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S, Lookup
from kafka_ordered_ops.kafka.membership import SESSION_TIMEOUT_S, GroupMember
from kafka_ordered_ops.kafka.membership import TIMEOUT_S as MEMBER_TIMEOUT_S
from kafka_ordered_ops.kafka.outside_commits import OutsideCommits
from kafka_ordered_ops.kafka.read.reader import BATCH_RECORDS, STALL_TIMEOUT_S, RangeReader
from kafka_ordered_ops.kafka.record_writer import TIMEOUT_S as WRITE_TIMEOUT_S
from kafka_ordered_ops.kafka.record_writer import RecordWriter
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.kafka.transactions import MemberTransactions


class _Door(Protocol):
    """A context manager that closes its connections."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    def close(self) -> None:
        """Close the connections; may be called twice."""


class LookupDoor(_Door, Protocol):
    """Requests to the cluster; see `kafka.lookup.Lookup` for the errors of each."""

    def topics(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe topics by name."""

    def existing(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Describe those of the topics that exist."""

    def matching(self, patterns: Iterable[str], exclude: Iterable[str] = ()) -> list[str]:
        """Return the topics that names and patterns select, less the excluded ones, sorted."""

    def selected(self, names: Sequence[str], exclude: Sequence[str] = ()) -> dict[str, TopicFacts]:
        """Describe the topics that names and patterns select."""

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset still in each log (for an empty log: its end)."""

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets under read_committed, else the high watermarks."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the high watermarks, with the epochs of the leaders that reported them."""

    def diverged(
        self, group_id: str, claims: Mapping[TopicPartition, LogClaim]
    ) -> dict[TopicPartition, int]:
        """Return the claims about logs that do not hold, each with the offset up to which the log is the same."""

    def first_at_or_after(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation: Isolation
    ) -> dict[TopicPartition, int | None]:
        """Return the index's answers for a time; None where there is no record at or after it below the end."""

    def first_at_or_after_each(
        self,
        partitions: Collection[TopicPartition],
        timestamps_ms: Iterable[int],
        isolation: Isolation,
    ) -> dict[int, dict[TopicPartition, int | None]]:
        """Return the index's answers for several times, by time."""

    def greatest_timestamps(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the greatest timestamp in each log, ms; None for an empty log, or if a broker does not support it."""

    def group_members(self, group_id: str) -> list[str]:
        """Return a group's live members, described for people."""

    def check_kind(self, group_id: str) -> None:
        """Raise `GroupInUseError` for a group that is not one of consumers, with members or without."""

    def check_no_members(self, group_id: str) -> None:
        """Raise `GroupInUseError` when a group has live members, or is not one of consumers."""


class ReaderDoor(_Door, Protocol):
    """Exact offsets, each read once, inside its `with` block; see `kafka.read.reader.RangeReader`."""

    schema: pa.Schema

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which everything wanted has been returned."""

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """Where the logs of partitions that are being read end, as far as it is known without a request."""

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset."""

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early."""

    def turn(self) -> list[Turn]:
        """Return what one round of reading brings: after a moment at most, and then it may be nothing."""

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError`, or what explains it, if no position moved for the stall time."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the wanted records, in batches of one partition each."""

    def timestamps(self) -> Iterator[ScanBatch]:
        """Return offsets and timestamps of the wanted records."""


class MembershipDoor(_Door, Protocol):
    """A member of a live group that reads nothing; see `kafka.membership.GroupMember` for the errors of each."""

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member has."""

    def poll(self) -> MembershipChange | None:
        """Take part in the group; return what changed since the last call, or None. Does not wait."""

    def subscribe(self, topics: Iterable[str]) -> None:
        """Take part in these topics instead of those before; what changes comes from `poll`."""

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; None where it has none."""

    def commit(self, offsets: Commits, *, timeout_s: float | None = None) -> None:
        """Store offsets of assigned partitions, with this member's generation; `timeout_s`: if not the member's own."""


class WriterDoor(_Door, Protocol):
    """Writes records; see `kafka.record_writer.RecordWriter`."""

    @property
    def waiting(self) -> int:
        """How many records are not reported yet."""

    def send(self, record: NewRecord, report: Report) -> bool:
        """Take a record to be written; False: there is no room, so poll first."""

    def poll(self, timeout_s: float) -> None:
        """Make the reports that are due, waiting for the first one for some time at most."""


class TransactionsDoor(_Door, Protocol):
    """Transactions of a member of a live group; see `kafka.transactions.MemberTransactions` for the errors of each."""

    def commit(
        self,
        records: Sequence[NewRecord],
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        timeout_s: float,
    ) -> None:
        """Write records and store offsets of assigned partitions, all or nothing."""

    def is_stored(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> bool:
        """Return whether the transaction of a `CommitUnknownError` was committed."""


class InternalTopicsDoor(_Door, Protocol):
    """Topics that this package keeps for itself; see `kafka.internal_topics.InternalTopics` for the errors of each."""

    def ensure(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; one that exists stays as it is."""

    def grow(self, name: str, partitions: int) -> None:
        """Bring a topic to a number of partitions; one that has more stays as it is."""

    def delete_before(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the records below offsets."""


class OutsideCommitsDoor(_Door, Protocol):
    """Commits for a group without members; see `kafka.outside_commits.OutsideCommits` for the errors."""

    def commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset], *, timeout_s: float
    ) -> None:
        """Store offsets, metadata exact to the byte."""


class LedgerDoor(_Door, Protocol):
    """A group's state, and its fenced changes; see `kafka.ledger.ledger.Ledger`."""

    def read(
        self,
        group_id: str,
        wanted: Collection[str] = (),
        *,
        everything: bool = False,
        keep: Keep | None = None,
        processed: Collection[str] = (),
        settle: bool = False,
    ) -> GroupView:
        """Return the group as of now, with its open windows, those wanted by id, and every one or those to keep.

        `processed` are windows whose processed offsets are wanted.
        """

    def summaries(
        self, group_id: str, *, limit: int | None = None, before: str | None = None
    ) -> Summaries:
        """Return windows of the group as a list shows them: all, or the last `limit`; those before a window, if given."""

    def update(
        self,
        group_id: str,
        prepare: Prepare,
        *,
        wanted: Collection[str] = (),
        everything: bool = False,
        processed: Collection[str] = (),
        partitions: Iterable[TopicPartition] = (),
        pace: Pace = PLANNING,
        turn: GroupTurn | None = None,
        takes_unknown: bool = False,
    ) -> GroupView | None:
        """Change the group's state by a decision made on its newest state; the view after it.

        `prepare` runs before the fence. Inside it only the ledger and the committed offsets are read: the state that
        the transaction writes. `turn` is the caller's, if it has taken one. With `takes_unknown` the decision handles commits that `check_not_lost` refuses.
        """

    def turn(self, group_id: str) -> GroupTurn:
        """Return a turn for changes of the group whose facts are read before: read in turn, they stay true."""

    def remove(self, group_id: str) -> None:
        """Remove all records of a group, in one transaction; committed offsets stay as they are."""

    def restore(self, group_id: str, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Restore one record of a group that cannot be read."""

    def committed_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; None where it has none."""

    def ledger_id(self) -> str | None:
        """Return what tells this ledger from any other one, as ``cluster id/topic id``; None while there is none."""

    def check_not_lost(self, view: GroupView, committed: CommittedOffsets) -> None:
        """Raise `LedgerLostError` when commits of this package know more than the ledger does."""

    def unknown_commits(
        self, view: GroupView, committed: CommittedOffsets
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose commits `check_not_lost` refuses."""


def outages_pass(settings: ClientSettings) -> bool:
    """Return whether to wait for a cluster that is away; a model is away until its own process changes that."""
    return settings.memory_name is None


def open_lookup(settings: ClientSettings, *, timeout_s: float = TIMEOUT_S) -> LookupDoor:
    """Return a look-up on the settings' cluster; `timeout_s` bounds each request."""
    check_timeout_s(timeout_s, what="timeout_s")
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.lookup import MemoryLookup

        return MemoryLookup(name)
    return Lookup(settings, timeout_s=timeout_s)


def open_ledger(
    settings: ClientSettings,
    lookup: LookupDoor,
    *,
    topic: str = LEDGER_TOPIC,
    timeout_s: float = UPDATE_TIMEOUT_S,
) -> LedgerDoor:
    """Return the ledger in a topic of the settings' cluster; it uses a look-up with the same settings.

    Raises `ConfigError` for a name that no topic can have.
    """
    check_ledger_name(topic)
    check_timeout_s(timeout_s, what="timeout_s")
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.ledger import MemoryLedger

        return MemoryLedger(name, topic=topic, timeout_s=timeout_s)
    if not isinstance(lookup, Lookup):
        raise AssertionError("a ledger on real brokers asks by a look-up on real brokers")
    return Ledger(settings, lookup, topic=topic, timeout_s=timeout_s)


def open_reader(
    settings: ClientSettings,
    group_id: str,
    isolation: Isolation,
    wanted: Mapping[TopicPartition, OffsetSet],
    *,
    columns: Collection[str] | None = None,
    batch_records: int = BATCH_RECORDS,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    topic_ids: Mapping[str, str] = NO_IDS,
) -> ReaderDoor:
    """Return a reader of exact offsets; see `kafka.read.reader.RangeReader` for the arguments."""
    check_timeout_s(stall_timeout_s, what="stall_timeout_s")
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.reader import MemoryReader

        return MemoryReader(
            name,
            isolation,
            wanted,
            columns=columns,
            batch_records=batch_records,
            stall_timeout_s=stall_timeout_s,
            topic_ids=topic_ids,
        )
    return RangeReader(
        settings,
        group_id,
        isolation,
        wanted,
        columns=columns,
        batch_records=batch_records,
        stall_timeout_s=stall_timeout_s,
        topic_ids=topic_ids,
    )


def open_member(
    settings: ClientSettings,
    group_id: str,
    topics: Iterable[str],
    *,
    on_revoke: OnRevoke | None = None,
    timeout_s: float = MEMBER_TIMEOUT_S,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    protocol: GroupProtocol = GroupProtocol.CLASSIC,
    keeps_maps: bool = False,
    instance_id: str | None = None,
) -> MembershipDoor:
    """Return a member of a live group; see `kafka.membership.GroupMember` for the arguments."""
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.membership import MemoryMember

        return MemoryMember(
            name,
            group_id,
            topics,
            on_revoke=on_revoke,
            timeout_s=timeout_s,
            keeps_maps=keeps_maps,
        )
    return GroupMember(
        settings,
        group_id,
        topics,
        on_revoke=on_revoke,
        timeout_s=timeout_s,
        session_timeout_s=session_timeout_s,
        protocol=protocol,
        keeps_maps=keeps_maps,
        instance_id=instance_id,
    )


def open_writer(
    settings: ClientSettings,
    *,
    doing: str,
    timeout_s: float = WRITE_TIMEOUT_S,
    batch_records: int = 1,
    linger_ms: float = 0,
) -> WriterDoor:
    """Return a writer of records; see `kafka.record_writer.RecordWriter` for the arguments."""
    check_timeout_s(timeout_s, what="timeout_s")
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.writing import MemoryWriter

        return MemoryWriter(name)
    return RecordWriter(
        settings,
        doing=doing,
        timeout_s=timeout_s,
        batch_records=batch_records,
        linger_ms=linger_ms,
    )


def open_internal_topics(
    settings: ClientSettings, *, timeout_s: float = TIMEOUT_S
) -> InternalTopicsDoor:
    """Return what creates and trims topics of this package; `timeout_s` bounds each request."""
    check_timeout_s(timeout_s, what="timeout_s")
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.internal_topics import MemoryInternalTopics

        return MemoryInternalTopics(name)
    return InternalTopics(settings, timeout_s=timeout_s)


def open_outside_commits(settings: ClientSettings, group_id: str) -> OutsideCommitsDoor:
    """Return what commits for a group without members."""
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.internal_topics import MemoryOutsideCommits

        return MemoryOutsideCommits(name, group_id)
    return OutsideCommits(settings, group_id)


def open_transactions(settings: ClientSettings, member: MembershipDoor) -> TransactionsDoor:
    """Return the transactions of a member with the same settings; see `kafka.transactions.MemberTransactions`."""
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing.membership import MemoryMember
        from kafka_ordered_ops.testing.writing import MemoryTransactions

        if not isinstance(member, MemoryMember):
            raise AssertionError("a model has transactions of the model's members only")
        return MemoryTransactions(name, member)
    if not isinstance(member, GroupMember):
        raise AssertionError("transactions on real brokers are those of members there")
    return MemberTransactions(settings, member)


def read_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    partitions: Sequence[TopicPartition],
    *,
    timeout_s: float = _offsets.TIMEOUT_S,
) -> dict[TopicPartition, CommittedOffset | None]:
    """Return a group's committed offsets; see `kafka.committed_offsets.read_committed_offsets`."""
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing import ledger

        return ledger.read_committed_offsets(name, group_id, partitions, timeout_s=timeout_s)
    return _offsets.read_committed_offsets(settings, group_id, partitions, timeout_s=timeout_s)


def set_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Set committed offsets of an empty group; see `kafka.group_offsets.set_committed_offsets`."""
    if (name := settings.memory_name) is not None:
        from kafka_ordered_ops.testing import ledger

        ledger.set_committed_offsets(name, group_id, offsets)
    else:
        _group_offsets.set_committed_offsets(settings, group_id, offsets, timeout_s=timeout_s)
