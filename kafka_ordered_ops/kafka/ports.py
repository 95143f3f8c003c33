"""The doors to a cluster: the requests of the rooms above, and their implementations.

The settings select the implementation. For real brokers in ``bootstrap.servers``, it is confluent-kafka. For
``memory:<name>``, it is the `InMemoryKafka` of that name in this process. The rooms above do not know which.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

import pyarrow as pa

from kafka_ordered_ops.core.arguments import check_timeout_s
from kafka_ordered_ops.core.cluster.cluster_facts import (
    CommittedOffset,
    CommittedOffsets,
    LogClaim,
    LogEnd,
    ScanBatch,
    TopicFacts,
)
from kafka_ordered_ops.core.cluster.membership import Commits, OnRevoke
from kafka_ordered_ops.core.cluster.membership import MembershipChange as MembershipChange
from kafka_ordered_ops.core.cluster.reading import NO_IDS
from kafka_ordered_ops.core.cluster.reading import Turn as Turn
from kafka_ordered_ops.core.group.group_state import GroupView
from kafka_ordered_ops.core.group.ledger.records import Keep
from kafka_ordered_ops.core.group.ledger.repair import RestoredRecord
from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC, Prepare, check_ledger_name
from kafka_ordered_ops.core.group.summaries import Summaries
from kafka_ordered_ops.core.group.turn import GroupTurn
from kafka_ordered_ops.core.offset_set import OffsetSet
from kafka_ordered_ops.core.processing.new_record import NewRecord, OnStored, Report
from kafka_ordered_ops.core.processing.record import RecordMetadata
from kafka_ordered_ops.core.types import GroupProtocol, Isolation, TopicPartition
from kafka_ordered_ops.kafka.internal_topics import InternalTopics
from kafka_ordered_ops.kafka.ledger.ledger import PLANNING, UPDATE_TIMEOUT_S, Ledger, Pace
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S, Lookup
from kafka_ordered_ops.kafka.members.membership import (
    MAX_POLL_INTERVAL_S,
    SESSION_TIMEOUT_S,
    GroupMember,
)
from kafka_ordered_ops.kafka.members.membership import TIMEOUT_S as MEMBER_TIMEOUT_S
from kafka_ordered_ops.kafka.members.transactions import MemberTransactions
from kafka_ordered_ops.kafka.offsets import committed_offsets as _offsets
from kafka_ordered_ops.kafka.offsets import group_offsets as _group_offsets
from kafka_ordered_ops.kafka.offsets.outside_commits import OutsideCommits
from kafka_ordered_ops.kafka.read.native import NativeReader
from kafka_ordered_ops.kafka.read.native_options import native_options
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S, RangeReader
from kafka_ordered_ops.kafka.record_writer import TIMEOUT_S as WRITE_TIMEOUT_S
from kafka_ordered_ops.kafka.record_writer import RecordWriter
from kafka_ordered_ops.kafka.settings import ClientSettings

_P = ParamSpec("_P")
_Opened = TypeVar("_Opened")

#: The names of arguments that limit requests. They are checked for the model as well.
_TIMEOUTS: Final = frozenset({"stall_timeout_s", "timeout_s"})


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
        """Return the first offset in each log; for an empty log, its end."""

    def end_offsets(
        self, partitions: Collection[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets under read_committed, otherwise the high watermarks."""

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        """Return the high watermarks, with the epochs of the leaders that reported them."""

    def diverged(
        self, group_id: str, claims: Mapping[TopicPartition, LogClaim]
    ) -> dict[TopicPartition, int]:
        """Return the logs that differ from the claims, each with the offset up to which the log is unchanged."""

    def first_at_or_after(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation: Isolation
    ) -> dict[TopicPartition, int | None]:
        """Return the index's answers for a time; None if no record at or after it is below the end."""

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
        """Return the greatest timestamp in each log, in ms; None for an empty log, or if a broker does not support it."""

    def group_members(self, group_id: str) -> list[str]:
        """Return readable descriptions of a group's live members."""

    def check_kind(self, group_id: str) -> None:
        """Raise `GroupInUseError` for a group that is not a consumer group, with or without members."""

    def check_no_members(self, group_id: str) -> None:
        """Raise `GroupInUseError` if a group has live members, or is not a consumer group."""


class ReaderDoor(_Door, Protocol):
    """A reader of exact offsets, each read once, inside its `with` block; see `kafka.read.reader.RangeReader`."""

    schema: pa.Schema

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset of each partition below which all wanted records have been returned."""

    @property
    def log_ends(self) -> dict[TopicPartition, int]:
        """The log ends of partitions that are being read, as far as they are known without a request."""

    def add(self, tp: TopicPartition, wanted: OffsetSet) -> None:
        """Start reading one more partition, or one that was finished or stopped, at its first wanted offset."""

    def stop(self, tp: TopicPartition) -> None:
        """End one partition early."""

    def turn(self) -> list[Turn]:
        """Return the results of one round of reading, within a moment; the list may be empty."""

    def check_not_stalled(self) -> None:
        """Raise `ReadTimeoutError`, or the error that explains it, if no position moved for the stall time."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Return the wanted records, in batches of one partition each."""

    def timestamps(self) -> Iterator[ScanBatch]:
        """Return offsets and timestamps of the wanted records."""


class MembershipDoor(_Door, Protocol):
    """A member of a live group that reads nothing; see `kafka.membership.GroupMember` for the errors of each."""

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned to this member."""

    def poll(self) -> MembershipChange | None:
        """Poll the group; return the changes since the last call, or None. Does not wait."""

    def subscribe(self, topics: Iterable[str]) -> None:
        """Replace the subscription; `poll` returns the changes."""

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; None for partitions without one."""

    def commit(self, offsets: Commits, *, timeout_s: float | None = None) -> None:
        """Store offsets of assigned partitions, with this member's generation; `timeout_s` replaces the member's own."""


class WriterDoor(_Door, Protocol):
    """Writes records; see `kafka.record_writer.RecordWriter`."""

    @property
    def waiting(self) -> int:
        """The number of records without a report."""

    def send(self, record: NewRecord, report: Report, on_stored: OnStored | None = None) -> bool:
        """Accept a record to write; return False if there is no room, so that you must poll first."""

    def poll(self, timeout_s: float) -> None:
        """Make the reports that are due, after waiting at most `timeout_s` for the first one."""


class TransactionsDoor(_Door, Protocol):
    """Transactions of a member of a live group; see `kafka.transactions.MemberTransactions` for the errors of each."""

    #: The positions of the last transaction's records, in their order, if it is stored.
    written: Sequence[RecordMetadata]

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
    """Internal topics of this package; see `kafka.internal_topics.InternalTopics` for the errors of each."""

    def ensure(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Create a topic; an existing topic stays unchanged."""

    def grow(self, name: str, partitions: int) -> None:
        """Grow a topic to a number of partitions; a topic with more stays unchanged."""

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
        """Return the group's current state with its open windows, the windows `wanted` by id, and all others or those of `keep`.

        `processed` are windows whose processed offsets are wanted.
        """

    def summaries(
        self, group_id: str, *, limit: int | None = None, before: str | None = None
    ) -> Summaries:
        """Return the summaries of the group's windows: all, or the last `limit`; with `before`, only those before a window."""

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
        """Change the group's state by a decision on its newest state; return the view after the change.

        `prepare` runs before the fence. Inside the fence, only the state that the transaction writes is read: the ledger
        and the committed offsets. `turn` is the caller's turn, if it has one. With `takes_unknown`, the decision handles
        commits that `check_not_lost` refuses.
        """

    def turn(self, group_id: str) -> GroupTurn:
        """Return a turn for changes of the group. Facts that are read during the turn stay valid for the change."""

    def remove(self, group_id: str) -> None:
        """Remove all records of a group, in one transaction; committed offsets stay unchanged."""

    def restore(self, group_id: str, offset: int, *, dry_run: bool = False) -> RestoredRecord:
        """Restore one record of a group that cannot be read."""

    def committed_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition], *, timeout_s: float
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Return the group's committed offsets; None for partitions without one."""

    def ledger_id(self) -> str | None:
        """Return the unique id of this ledger, as ``cluster id/topic id``; None while the ledger does not exist."""

    def check_not_lost(self, view: GroupView, committed: CommittedOffsets) -> None:
        """Raise `LedgerLostError` if commits of this package are newer than the ledger."""

    def unknown_commits(
        self, view: GroupView, committed: CommittedOffsets
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose commits `check_not_lost` refuses."""


def _or_model(
    open_door: Callable[Concatenate[ClientSettings, _P], _Opened],
) -> Callable[Concatenate[ClientSettings, _P], _Opened]:
    """Return the function itself for real brokers, or the model's function of the same name."""
    signature = inspect.signature(open_door)

    @functools.wraps(open_door)
    def opened(settings: ClientSettings, /, *args: _P.args, **kwargs: _P.kwargs) -> _Opened:
        arguments = signature.bind(settings, *args, **kwargs)
        arguments.apply_defaults()
        for name in _TIMEOUTS & arguments.arguments.keys():
            check_timeout_s(arguments.arguments[name], what=name)
        if settings.memory_name is None:
            return open_door(settings, *args, **kwargs)
        from kafka_ordered_ops.testing.doors import DOORS

        door: _Opened = DOORS[open_door.__name__](
            settings.memory_name, *arguments.args[1:], **arguments.kwargs
        )
        return door

    return opened


def outages_pass(settings: ClientSettings) -> bool:
    """Return whether to wait for an unavailable cluster. A model stays unavailable until its own process changes that."""
    return settings.memory_name is None


@_or_model
def open_lookup(settings: ClientSettings, *, timeout_s: float = TIMEOUT_S) -> LookupDoor:
    """Return a look-up on the settings' cluster; `timeout_s` bounds each request."""
    return Lookup(settings, timeout_s=timeout_s)


@_or_model
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
    if not isinstance(lookup, Lookup):
        raise AssertionError("a ledger on real brokers needs a look-up on real brokers")
    return Ledger(settings, lookup, topic=topic, timeout_s=timeout_s)


@_or_model
def open_reader(
    settings: ClientSettings,
    group_id: str,
    isolation: Isolation,
    wanted: Mapping[TopicPartition, OffsetSet],
    *,
    columns: Collection[str] | None = None,
    batch_records: int | None = None,
    stall_timeout_s: float = STALL_TIMEOUT_S,
    topic_ids: Mapping[str, str] = NO_IDS,
) -> ReaderDoor:
    """Return a reader of exact offsets; see `kafka.read.reader.RangeReader` for the arguments."""
    options = native_options(settings, group_id, isolation, wanted)
    if options is not None:
        return NativeReader(
            settings,
            group_id,
            isolation,
            wanted,
            options,
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


@_or_model
def open_member(
    settings: ClientSettings,
    group_id: str,
    topics: Iterable[str],
    *,
    on_revoke: OnRevoke | None = None,
    timeout_s: float = MEMBER_TIMEOUT_S,
    session_timeout_s: float = SESSION_TIMEOUT_S,
    max_poll_interval_s: float = MAX_POLL_INTERVAL_S,
    protocol: GroupProtocol = GroupProtocol.CLASSIC,
    keeps_maps: bool = False,
    instance_id: str | None = None,
) -> MembershipDoor:
    """Return a member of a live group; see `kafka.membership.GroupMember` for the arguments."""
    return GroupMember(
        settings,
        group_id,
        topics,
        on_revoke=on_revoke,
        timeout_s=timeout_s,
        session_timeout_s=session_timeout_s,
        max_poll_interval_s=max_poll_interval_s,
        protocol=protocol,
        keeps_maps=keeps_maps,
        instance_id=instance_id,
    )


@_or_model
def open_writer(
    settings: ClientSettings,
    *,
    doing: str,
    timeout_s: float = WRITE_TIMEOUT_S,
    batch_records: int = 1,
    linger_ms: float = 0,
) -> WriterDoor:
    """Return a writer of records; see `kafka.record_writer.RecordWriter` for the arguments."""
    return RecordWriter(
        settings,
        doing=doing,
        timeout_s=timeout_s,
        batch_records=batch_records,
        linger_ms=linger_ms,
    )


@_or_model
def open_internal_topics(
    settings: ClientSettings, *, timeout_s: float = TIMEOUT_S
) -> InternalTopicsDoor:
    """Return the client that creates and trims internal topics; `timeout_s` bounds each request."""
    return InternalTopics(settings, timeout_s=timeout_s)


@_or_model
def open_outside_commits(settings: ClientSettings, group_id: str) -> OutsideCommitsDoor:
    """Return the client that commits for a group without members."""
    return OutsideCommits(settings, group_id)


@_or_model
def open_transactions(settings: ClientSettings, member: MembershipDoor) -> TransactionsDoor:
    """Return the transactions of a member with the same settings; see `kafka.transactions.MemberTransactions`."""
    if not isinstance(member, GroupMember):
        raise AssertionError("transactions on real brokers need a member on real brokers")
    return MemberTransactions(settings, member)


@_or_model
def read_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    partitions: Sequence[TopicPartition],
    *,
    timeout_s: float = _offsets.TIMEOUT_S,
) -> dict[TopicPartition, CommittedOffset | None]:
    """Return a group's committed offsets; see `kafka.committed_offsets.read_committed_offsets`."""
    return _offsets.read_committed_offsets(settings, group_id, partitions, timeout_s=timeout_s)


@_or_model
def set_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Set committed offsets of an empty group; see `kafka.group_offsets.set_committed_offsets`."""
    _group_offsets.set_committed_offsets(settings, group_id, offsets, timeout_s=timeout_s)
