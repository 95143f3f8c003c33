"""Every error this package raises, in one tree.

::

    KafkaOrderedOpsError
      ConfigError (also ValueError)    arguments and settings; raised before anything is touched
        SettingNotAllowedError         a client setting outside the allow-list
        EnvironmentConflictError       libraries installed side by side that break each other
        ClosedError                    used after it was closed
        NotShareableError              used by a forked process, pickled, or used by several threads for too long
      BrokerError                      the cluster, or the way to it
        BrokerUnreachableError  AuthenticationError  TlsError  AuthorizationError
      PlanError                        no window can be planned from what was found
        UnknownTopicError  CommittedOffsetMissingError  CutoffInFutureError  TopicRecreatedError
        LogTruncatedError  PartitionSetChangedError  WindowMismatchError  PlanTooLargeError
        StartingOffsetsRequiredError  WindowCoveredError  UnknownWindowError  GroupMismatchError  OpenClaimError  WindowPrunedError
        WindowRewoundError
      RecordsLostError                 retention or deletion took records that were still to be delivered
      LedgerError
        LedgerUnavailableError  LedgerLostError  LedgerCorruptError  LedgerVersionError
        LedgerRecordError
      GroupInUseError                  the group has live members
      ForeignCommitError               somebody else moved the group
      CommitError
        WindowFencedError  WindowSupersededError  CommitUnknownError  PartsMissingError
      ReadError
        ReadTimeoutError  CorruptRecordError  RecordTooLargeError
      OrderingError
        HeldLimitError
      OffsetMapError
        OffsetMapDecodeError  OffsetMapTooLargeError
      SinkError                        the job or the sink failed; nothing was committed
        JobFailedError                 the job itself: it raised, was killed, or took too long

A message says what happened, where (``topic[partition]``, group, window), which numbers were wanted and
found, and what to do. The same facts are fields. Hosts look at `retriable` and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from kafka_ordered_ops.core.rights import MissingRight


def invariant(holds: bool, message: str) -> None:
    """Stops at a mistake of this package's own; unlike ``assert`` it also holds under ``python -O``."""
    if not holds:
        raise AssertionError(message)


class KafkaOrderedOpsError(Exception):
    """The root. `facts` are set as attributes; subclasses declare theirs with a type."""

    #: Whether the same call may succeed later with nothing changed by a person.
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark and multiprocessing carry errors between processes; the default loses keyword arguments.
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(
    kind: type[KafkaOrderedOpsError], message: str, facts: Mapping[str, Any]
) -> KafkaOrderedOpsError:
    return kind(message, **facts)


class ConfigError(KafkaOrderedOpsError, ValueError):
    """An argument or a setting is wrong; nothing has been touched."""


class SettingNotAllowedError(ConfigError):
    """A client setting is outside the allow-list (it could run code, or break a guarantee)."""

    key: str


class EnvironmentConflictError(ConfigError):
    """Installed libraries break each other, such as pyspark beside pyspark-client."""


class ClosedError(ConfigError):
    """Something was used after it had been closed."""


class NotShareableError(ConfigError):
    """Connections belong to one process: they were used in a forked one, or were to be copied or pickled.

    Also raised when a call waits in vain for another thread's call on the same object.
    """


class BrokerError(KafkaOrderedOpsError):
    """The cluster answered with an error, or could not be asked."""

    code: str


class BrokerUnreachableError(BrokerError):
    """No broker answered within the deadline."""

    retriable = True


class AuthenticationError(BrokerError):
    """The cluster refused the credentials."""


class TlsError(BrokerError):
    """The encrypted connection could not be made: unknown authority, wrong host name, plain text."""


class AuthorizationError(BrokerError):
    """The principal lacks rights: `missing` has all that the call needs, if the cluster could be asked for them."""

    missing: Sequence[MissingRight] = ()


class PlanError(KafkaOrderedOpsError):
    """No window can be planned from what was found."""


class UnknownTopicError(PlanError):
    """A topic does not exist, or a pattern matches none. Asking did not create it."""

    topics: Sequence[str]


class CommittedOffsetMissingError(PlanError):
    """The window starts at the committed offset, and there is none."""

    partitions: Sequence[str]


class CutoffInFutureError(PlanError):
    """The cutoff has not passed yet, so records before it may still be written."""

    retriable = True
    cutoff_ms: int
    now_ms: int


class TopicRecreatedError(PlanError):
    """The topic was deleted and recreated: offsets of the old one mean nothing in the new one."""

    topic: str
    expected_id: str
    found_id: str


class LogTruncatedError(PlanError):
    """A log lost its tail: offsets that the group has done or claimed are gone, or stand for other records now."""

    #: By partition: the offset up to which the group knows the log, and where that log ends.
    truncated: Mapping[str, tuple[int, int]]


class PartitionSetChangedError(PlanError):
    """The topic has fewer partitions than the group's state knows."""

    topic: str


class WindowMismatchError(PlanError):
    """A window of this id exists, and was asked for with other arguments."""

    window_id: str
    differences: Mapping[str, tuple[Any, Any]]


class PlanTooLargeError(PlanError):
    """The plan passes a limit: it names the topic, the number and how to narrow the window."""

    topic: str


class StartingOffsetsRequiredError(PlanError):
    """The group has no progress on a topic, and the window does not say where to start."""

    topics: Sequence[str]


class WindowCoveredError(PlanError):
    """Other windows have taken everything this one asks for (``on_covered="fail"``)."""

    window_id: str


class UnknownWindowError(PlanError):
    """The ledger has no window of this id in this group."""

    window_id: str


class GroupMismatchError(PlanError):
    """The window's mode, isolation, topics or owner are not those that its group was planned with so far."""

    #: Field -> (of the group, of the window)
    differences: Mapping[str, tuple[Any, Any]]


class OpenClaimError(PlanError):
    """Open windows may hold records that this one asks for, and it is not to step around them."""

    retriable = True
    window_id: str
    open_windows: Sequence[str]


class WindowPrunedError(PlanError):
    """The window was committed long ago, and its offsets were pruned from the ledger."""

    window_id: str


class WindowRewoundError(PlanError):
    """Progress was moved back behind a part of the committed window: it can be neither kept nor planned again."""

    window_id: str


class RecordsLostError(KafkaOrderedOpsError):
    """Retention or deletion took records that were still to be delivered."""

    #: ``topic[partition]`` -> half-open offset ranges
    lost: Mapping[str, Sequence[tuple[int, int]]]


class LedgerError(KafkaOrderedOpsError):
    """The ledger topic cannot be trusted or used."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be created, written, or read to its end in time."""

    retriable = True


class LedgerLostError(LedgerError):
    """Committed offsets show that a ledger existed; it no longer knows this group."""


class LedgerCorruptError(LedgerError):
    """A ledger record cannot be read: it is damaged, or something else writes to the topic."""


class LedgerRecordError(LedgerError):
    """A change was refused: one of its records could not be read again, or is too large. Nothing was written."""

    #: ``state``, ``window`` or ``times``, and which one.
    kind: str
    name: str


class LedgerVersionError(LedgerError):
    """A ledger record was written by a newer version of this package."""


class GroupInUseError(KafkaOrderedOpsError):
    """The consumer group has live members; a commit would pass over their heads."""

    retriable = True
    group_id: str
    members: Sequence[str]


class ForeignCommitError(KafkaOrderedOpsError):
    """Somebody else moved the group's committed offset."""

    #: ``topic[partition]`` -> (offset this package last knew, offset found)
    moved: Mapping[str, tuple[int | None, int | None]]


class CommitError(KafkaOrderedOpsError):
    """Progress was not stored."""


class WindowFencedError(CommitError):
    """Another process kept taking over the group's transactional id until the deadline, or it timed out."""

    retriable = True


class WindowSupersededError(CommitError):
    """A newer attempt, an abandonment or a new plan owns this window now: this attempt may not commit."""

    window_id: str


class CommitUnknownError(CommitError):
    """No answer to the commit, and its outcome could not be read back: it may have been stored."""

    retriable = True


class PartsMissingError(CommitError):
    """Not all parts of a split window have reported yet."""

    retriable = True
    window_id: str
    missing: Sequence[int]


class ReadError(KafkaOrderedOpsError):
    """Records could not be read."""


class ReadTimeoutError(ReadError):
    """No position moved for too long: positions reached and ends wanted, by ``topic[partition]``."""

    retriable = True
    positions: Mapping[str, tuple[int, int]]


class CorruptRecordError(ReadError):
    """A record fails its checksum, or cannot be decoded."""


class RecordTooLargeError(ReadError):
    """A record passes the client's size limit."""


class OrderingError(KafkaOrderedOpsError):
    """Records cannot be put in order within the limits."""


class HeldLimitError(OrderingError):
    """More records or bytes would have to be held than the limit allows."""

    limit: int


class OffsetMapError(KafkaOrderedOpsError):
    """The metadata of a committed offset is a problem."""


class OffsetMapDecodeError(OffsetMapError):
    """Commit metadata claims to be an offset map and is damaged."""


class OffsetMapTooLargeError(OffsetMapError):
    """An offset map does not fit the metadata of a commit."""


class SinkError(KafkaOrderedOpsError):
    """The job or the sink failed. Nothing was committed: the same window can be run again."""


class JobFailedError(SinkError):
    """The job raised, was killed, or took too long. Nothing was committed.

    Retriable, as schedulers take any failed task: a lost executor and a full disk are the usual causes, and a
    mistake in the job's code fails again.
    """

    retriable = True
