"""Define every error of this package, in one tree.

::

    KafkaOrderedOpsError
      ConfigError (also ValueError)    arguments and settings; raised before anything is touched
        SettingNotAllowedError         a client setting outside the allow-list
        EnvironmentConflictError       installed libraries break each other
        ClosedError                    used after it was closed
        NotShareableError              used in a forked process, pickled, or busy in another thread for too long
        WindowGroupError               a live reader was to join a group of windows
      BrokerError                      the cluster, or the way to it
        BrokerUnreachableError  AuthenticationError  TlsError  AuthorizationError
      PlanError                        the window cannot be planned
        UnknownTopicError  CommittedOffsetMissingError  CutoffInFutureError  TopicRecreatedError  LogTruncatedError
        PartitionSetChangedError  WindowMismatchError  PlanTooLargeError  StartingOffsetsRequiredError  WindowCoveredError
        UnknownWindowError  GroupMismatchError  OpenClaimError  WindowPrunedError  WindowRewoundError
        WindowUnpublishedError  FewerRecordsError  GroupHandedOverError
      RecordsLostError                 retention or deletion removed records before delivery
      LedgerError: LedgerUnavailableError  LedgerLostError  LedgerCorruptError  LedgerVersionError  LedgerRecordError
      GroupInUseError                  the group has live members
      WindowsHeldError                 a check found windows that hold records, and no attempt works on them
      ForeignCommitError               another program moved the group's offset
      CommitError
        WindowFencedError  WindowSupersededError  CommitUnknownError  CommitRefusedError  PartsMissingError
      ReadError: ReadTimeoutError  CorruptRecordError  RecordTooLargeError
      OrderingError: HeldLimitError  SpillError
      CallbackError                    a callback of a live member raised
      OffsetMapError: OffsetMapDecodeError  OffsetMapTooLargeError
      SinkError                        the job or the sink failed; nothing was committed
        JobFailedError                 the job itself raised, was killed, or took too long
        OutputVersionError             a newer version of this package wrote the output, or the files next to it
        OutputOwnedError               the output's place belongs to another ledger, group, window or claim
      ProcessingError                  a function could not process its records
        RecordFailedError  FunctionTimeoutError  WorkerDiedError  HungFunctionsError  ProcessingStoppedError
      DecodeError                      values or keys cannot be decoded
      RegistryError                    the schema registry cannot be reached, or fails
      RelayError                       the relay could not do what a client asked for
        LeaseError  NotReadyError  RelayUnavailableError  RelayLimitError  AccessDeniedError
        RelayLogCorruptError  RelayLogVersionError  RelayLogRecordError

A message states what happened, where (``topic[partition]``, group, window), which numbers were expected and
found, and what to do. The same facts are fields. Hosts only use `retriable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from kafka_ordered_ops.core.errors.base import KafkaOrderedOpsError as KafkaOrderedOpsError
from kafka_ordered_ops.core.errors.base import invariant as invariant
from kafka_ordered_ops.core.errors.base import name_places as name_places
from kafka_ordered_ops.core.errors.decoding import DecodeError as DecodeError
from kafka_ordered_ops.core.errors.decoding import RegistryError as RegistryError
from kafka_ordered_ops.core.errors.processing import FunctionTimeoutError as FunctionTimeoutError
from kafka_ordered_ops.core.errors.processing import HungFunctionsError as HungFunctionsError
from kafka_ordered_ops.core.errors.processing import ProcessingError as ProcessingError
from kafka_ordered_ops.core.errors.processing import (
    ProcessingStoppedError as ProcessingStoppedError,
)
from kafka_ordered_ops.core.errors.processing import RecordFailedError as RecordFailedError
from kafka_ordered_ops.core.errors.processing import WorkerDiedError as WorkerDiedError
from kafka_ordered_ops.core.errors.relay import AccessDeniedError as AccessDeniedError
from kafka_ordered_ops.core.errors.relay import LeaseError as LeaseError
from kafka_ordered_ops.core.errors.relay import NotReadyError as NotReadyError
from kafka_ordered_ops.core.errors.relay import RelayError as RelayError
from kafka_ordered_ops.core.errors.relay import RelayLimitError as RelayLimitError
from kafka_ordered_ops.core.errors.relay import RelayLogCorruptError as RelayLogCorruptError
from kafka_ordered_ops.core.errors.relay import RelayLogRecordError as RelayLogRecordError
from kafka_ordered_ops.core.errors.relay import RelayLogVersionError as RelayLogVersionError
from kafka_ordered_ops.core.errors.relay import RelayUnavailableError as RelayUnavailableError
from kafka_ordered_ops.core.errors.rights import MissingRight


class ConfigError(KafkaOrderedOpsError, ValueError):
    """An argument or a setting is invalid. Nothing was touched."""


class SettingNotAllowedError(ConfigError):
    """A client setting is not on the allow-list: it could run code or break a guarantee."""

    key: str


class EnvironmentConflictError(ConfigError):
    """Installed libraries break each other, for example pyspark and pyspark-client."""


class ClosedError(ConfigError):
    """An object was used after it was closed."""


class NotShareableError(ConfigError):
    """An object with connections was used in a forked process, copied, pickled, or busy in another thread for too long."""


class WindowGroupError(ConfigError):
    """A live reader was to join a consumer group whose progress belongs to windows."""

    group_id: str
    #: ``topic[partition]`` with commits of windows.
    partitions: Sequence[str]


class BrokerError(KafkaOrderedOpsError):
    """The cluster answered with an error, or could not be reached."""

    code: str


class BrokerUnreachableError(BrokerError):
    """No broker answered within the deadline."""

    retriable = True


class AuthenticationError(BrokerError):
    """The cluster refused the credentials."""


class TlsError(BrokerError):
    """The TLS connection failed: unknown authority, wrong host name, or a plain-text listener."""


class AuthorizationError(BrokerError):
    """A right is missing. `missing` has all missing rights for the call, if the cluster reports them."""

    missing: Sequence[MissingRight] = ()


class PlanError(KafkaOrderedOpsError):
    """The window cannot be planned."""


class UnknownTopicError(PlanError):
    """A topic does not exist, or a pattern matches none. The request did not create the topic."""

    topics: Sequence[str]


class CommittedOffsetMissingError(PlanError):
    """The window starts at the committed offset, but there is none."""

    partitions: Sequence[str]


class CutoffInFutureError(PlanError):
    """The cutoff has not passed yet, so records before it may still be written."""

    retriable = True
    cutoff_ms: int
    now_ms: int


class TopicRecreatedError(PlanError):
    """The topic was deleted and recreated: offsets of the old topic are meaningless in the new one."""

    topic: str
    expected_id: str
    found_id: str


class LogTruncatedError(PlanError):
    """A log was truncated: offsets that the group has done or claimed are gone or hold other records now."""

    #: By partition: the offset up to which the group knows the log, and the end of the remaining log.
    truncated: Mapping[str, tuple[int, int]]


class PartitionSetChangedError(PlanError):
    """The topic has fewer partitions than the group's state."""

    topic: str


class WindowMismatchError(PlanError):
    """A window with this id was planned with other arguments."""

    window_id: str
    differences: Mapping[str, tuple[Any, Any]]


class PlanTooLargeError(PlanError):
    """The plan exceeds a limit. The message has the topic, the number, and how to narrow the window."""

    topic: str


class StartingOffsetsRequiredError(PlanError):
    """The group has no progress on a topic, and the window has no starting offsets."""

    topics: Sequence[str]


class WindowCoveredError(PlanError):
    """Other windows have taken all records that this window asks for (``on_covered="fail"``)."""

    window_id: str


class UnknownWindowError(PlanError):
    """The ledger has no window with this id in this group."""

    window_id: str


class GroupMismatchError(PlanError):
    """The window's mode, isolation, topics or owner differ from those of its group."""

    #: By field: (the group's, the window's).
    differences: Mapping[str, tuple[Any, Any]]


class OpenClaimError(PlanError):
    """Open windows may hold records that this window asks for, and the policy does not step around them."""

    retriable = True
    window_id: str
    open_windows: Sequence[str]


class WindowPrunedError(PlanError):
    """The window is done, and its offsets were pruned from the ledger."""

    window_id: str


class WindowRewoundError(PlanError):
    """Progress was moved back before some of the window's offsets: it can be neither kept nor planned again."""

    window_id: str


class WindowUnpublishedError(PlanError):
    """Windows are committed, and readers do not see their output yet: their offsets cannot be released."""

    windows: Sequence[str]


class FewerRecordsError(PlanError):
    """A window would replace an output by one with fewer records: retention removed some, or other windows have them."""

    window_id: str


class GroupHandedOverError(PlanError):
    """The group was handed over to Parallel Consumer: windows are planned again after it is taken back."""

    group_id: str


#: Partitions listed in the command of a message.
_NAMED_MAX: Final = 5


class RecordsLostError(KafkaOrderedOpsError):
    """Retention or deletion removed records before they were delivered."""

    #: By ``topic[partition]``: half-open offset ranges.
    lost: Mapping[str, Sequence[tuple[int, int]]]


def say_how_to_go_on(error: RecordsLostError, group_id: str) -> None:
    """Add to the error of a live group how to continue after the lost records."""
    ends = {tp: max(end for _, end in ranges) for tp, ranges in error.lost.items() if ranges}
    places = [
        f"--to {tp[:-1].replace('[', ':')}={end}" for tp, end in list(ends.items())[:_NAMED_MAX]
    ]
    error.message = (
        f"{error.message}. To continue without them, stop the group's members, and set its offsets after the lost records: "
        f"kafka-ordered-ops offsets reset -g {group_id} {' '.join(places) or '--to TOPIC:PARTITION=OFFSET'}"
    )
    error.args = (error.message,)


class LedgerError(KafkaOrderedOpsError):
    """The ledger topic cannot be used."""


class LedgerUnavailableError(LedgerError):
    """The ledger cannot be created, written, or read to its end in time."""

    retriable = True


class LedgerLostError(LedgerError):
    """Committed offsets show that the ledger existed, but it no longer knows this group."""


class LedgerCorruptError(LedgerError):
    """A ledger record is unreadable: it is damaged, or another program writes to the topic."""


class LedgerRecordError(LedgerError):
    """A change was refused because one of its records would be unreadable or too large. Nothing was written."""

    #: ``state``, ``window``, ``processed`` or ``times``, and its name.
    kind: str
    name: str


class LedgerVersionError(LedgerError):
    """A ledger record has a version that this package does not read: a newer version of this package wrote it."""


class GroupInUseError(KafkaOrderedOpsError):
    """The consumer group has live members; committing would bypass them."""

    retriable = True
    group_id: str
    members: Sequence[str]


class WindowsHeldError(KafkaOrderedOpsError):
    """Windows of a group hold records that readers do not have, and no attempt works on them."""

    # Another attempt may deliver them.
    retriable = True
    group_id: str


class ForeignCommitError(KafkaOrderedOpsError):
    """Another program moved the group's committed offset."""

    #: By ``topic[partition]``: (the offset that this package last knew, the offset found).
    moved: Mapping[str, tuple[int | None, int | None]]
    #: Whether Parallel Consumer, with which the group shares its progress, may have moved it: only forward.
    by_parallel_consumer: bool = False


class CommitError(KafkaOrderedOpsError):
    """Progress was not stored."""


class WindowFencedError(CommitError):
    """Other processes kept taking over the group's transactional id until the deadline."""

    retriable = True


class WindowSupersededError(CommitError):
    """The window was abandoned, planned again, or resumed by a newer attempt: this attempt may not commit it."""

    window_id: str


class CommitUnknownError(CommitError):
    """The commit got no answer, and its outcome could not be read back: it may have been stored."""

    retriable = True


class CommitRefusedError(CommitError):
    """A live member's commit was refused: it lost the partitions, or the group is rebalancing. Nothing was stored."""

    retriable = True
    group_id: str


class PartsMissingError(CommitError):
    """Some parts of a split window have not reported yet."""

    retriable = True
    window_id: str
    missing: Sequence[int]


class ReadError(KafkaOrderedOpsError):
    """Records could not be read."""


class ReadTimeoutError(ReadError):
    """No position moved for too long. `positions` has (position, end of the read) by ``topic[partition]``."""

    retriable = True
    positions: Mapping[str, tuple[int, int]]


class CorruptRecordError(ReadError):
    """Records fail their checksum or cannot be decoded."""

    #: By ``topic[partition]``: half-open offset ranges that cannot be read.
    unreadable: Mapping[str, Sequence[tuple[int, int]]]


class RecordTooLargeError(ReadError):
    """A record exceeds a size limit, or a batch of records does after decompression."""

    #: For reads, by ``topic[partition]``: half-open offset ranges that cannot be read.
    unreadable: Mapping[str, Sequence[tuple[int, int]]]


class OrderingError(KafkaOrderedOpsError):
    """Records cannot be sorted within the limits."""


class HeldLimitError(OrderingError):
    """Sorting would hold more records or bytes than the limits allow."""

    limit: int


class SpillError(OrderingError):
    """Temporary files for records that do not fit in memory cannot be written or read, for example on a full disk."""


class CallbackError(KafkaOrderedOpsError):
    """A callback of a live member or of a processor raised; reading or processing has ended."""

    #: The name of the callback.
    callback: str
    partitions: Sequence[str]


class OffsetMapError(KafkaOrderedOpsError):
    """The metadata of a committed offset cannot be used."""


class OffsetMapFault(StrEnum):
    """Why commit metadata is not used as an offset map."""

    NOT_BASE64 = "not base64"
    UNKNOWN_FORMAT = "unknown format"
    CUT_SHORT = "cut short"
    CHECKSUM = "checksum"
    NOT_ZSTD = "not zstd"
    NEGATIVE = "negative number"
    #: It claims more bytes, ranges or offsets than any map has.
    TOO_LARGE = "too large"
    OTHER_BASE = "about another offset"
    OTHER_TOPIC = "about another topic"
    PAST_END = "past the end of the log"


class OffsetMapDecodeError(OffsetMapError):
    """Commit metadata is not a usable offset map: it is damaged, or its format is unknown."""

    reason: OffsetMapFault


class OffsetMapTooLargeError(OffsetMapError):
    """An offset map does not fit into the metadata of a commit, or an encoding cannot express it."""

    size: int
    limit: int


class SinkError(KafkaOrderedOpsError):
    """The job or the sink failed. Nothing was committed, and the same window can run again."""


class JobFailedError(SinkError):
    """The job raised, was killed, or took too long. Nothing was committed.

    It is retriable, as failed tasks are for schedulers: usual causes are a lost executor or a full disk. A bug in the
    job's code fails again.
    """

    retriable = True


class OutputOwnedError(SinkError):
    """The output in a window's place belongs to another ledger, group, window or claim. Nothing was changed."""

    #: The owner; the group is None if a whole root belongs to another ledger, or if the owner is unknown.
    ledger_id: str
    group_id: str | None


class OutputVersionError(SinkError):
    """A newer version of this package stored a window's output, or the files next to it. Nothing was changed."""

    version: int
    #: The version that this package reads.
    readable: int
