"""Values that group the options of an ordered read: its order, its limits, its membership of a group."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from kafka_ordered_ops.core.arguments import (
    DefaultTimeout,
    as_span,
    check_choice,
    check_count,
    check_function,
    check_text,
    check_timeout_s,
    path_text,
    shown,
)
from kafka_ordered_ops.core.cluster.names import check_group
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.release.ordered_release import (
    HELD_BYTES_MAX,
    HELD_RECORDS_MAX,
    SPILLED_BYTES_MAX,
    Limits,
    Order,
)
from kafka_ordered_ops.core.release.sorting import BATCH_BYTES
from kafka_ordered_ops.core.types import INT64_MAX, TopicPartition
from kafka_ordered_ops.kafka.members.membership import MAX_POLL_INTERVAL_S, SESSION_TIMEOUT_S
from kafka_ordered_ops.kafka.read.reader import STALL_TIMEOUT_S

#: Called with partitions of a live group and their positions.
OnPartitions = Callable[[Mapping[TopicPartition, int]], object]

#: The default for how late records may reach their partition: producers batch for milliseconds, and clocks of a cluster
#: differ by less.
GRACE: Final = timedelta(seconds=5)
#: The interval between two commits of returned records.
COMMIT_INTERVAL_S: Final = 1.0
#: The limit of each request to the cluster.
TIMEOUT_S: Final = DefaultTimeout(30.0)
#: Kafka's own limit for the name of an instance.
_INSTANCE_ID_LENGTH_MAX: Final = 249

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order of the records, and how long a record waits for earlier ones.

    Args:
        by: ``timestamp``: by (timestamp, topic, partition, offset). ``partition``: the same, but a record never precedes
            an earlier record of its own partition.
        max_out_of_orderness: how far a timestamp may be below an earlier one of its partition, for the order
            ``timestamp``: records wait for that span. `None` means 0 with `follow`, otherwise any distance.
        grace: with `follow`, the longest time from a record's timestamp until it reaches its partition.

    Raises:
        ConfigError: an invalid argument.
    """

    by: Order | str = Order.TIMESTAMP
    max_out_of_orderness: timedelta | str | None = None
    grace: timedelta | str = GRACE

    def __post_init__(self) -> None:
        slack = self.max_out_of_orderness
        _set(self, "by", check_choice(self.by, Order, what="order"))
        if slack is not None:
            _set(self, "max_out_of_orderness", as_span(slack, what="max_out_of_orderness"))
        _set(self, "grace", as_span(self.grace, what="grace"))

    @classmethod
    def of(cls, value: object) -> Ordering:
        """Return the value for an order, or for its text; raise `ConfigError` for anything else."""
        return (
            value if isinstance(value, Ordering) else cls(check_choice(value, Order, what="order"))
        )

    @property
    def slack(self) -> timedelta | None:
        """How far timestamps may go back; `None` if it is not set."""
        slack: Any = self.max_out_of_orderness
        return None if slack is None else timedelta(0) + slack

    def slack_ms(self, *, follow: bool) -> int | None:
        """Return how far timestamps may go back, ms; `None` means any distance."""
        if self.slack is None:
            return 0 if follow else None
        return int(self.slack // _MS)

    @property
    def grace_ms(self) -> int:
        """The grace, ms."""
        grace: Any = self.grace
        return int(grace // _MS)


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How much an ordered read holds and returns at once, and how long it waits.

    Args:
        batch_bytes_max: the Arrow data of a batch, bytes, before it is decoded. A larger record gets its own batch.
        held_records_max: records held in memory.
        held_bytes_max: their Arrow data, bytes. Some of it exists twice while it is sorted or written.
        spilled_bytes_max: records held on disk, bytes.
        temporary_folder: where they are held; removed at the end, and after ``kill -9`` by the next reader with the same
            folder. `None` means the system's folder for temporary files.
        stall_timeout_s: without `follow`, how long to wait while no partition moves.
        timeout_s: the limit of each request to the cluster. Without it, brokers that have never answered and that all
            refuse are given up after 7 s.

    Raises:
        ConfigError: an invalid argument.
    """

    batch_bytes_max: int = BATCH_BYTES
    held_records_max: int = HELD_RECORDS_MAX
    held_bytes_max: int = HELD_BYTES_MAX
    spilled_bytes_max: int = SPILLED_BYTES_MAX
    temporary_folder: str | os.PathLike[str] | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        for name, least in (
            ("batch_bytes_max", 1),
            ("held_records_max", 1),
            ("held_bytes_max", 1),
            ("spilled_bytes_max", 0),
        ):
            check_count(getattr(self, name), what=name, least=least, greatest=INT64_MAX)
        for name in ("stall_timeout_s", "timeout_s"):
            _set(self, name, check_timeout_s(getattr(self, name), what=name))
        if self.temporary_folder is not None:
            folder = path_text(self.temporary_folder)
            if not folder:
                raise ConfigError(
                    f"temporary_folder is {shown(self.temporary_folder)}: give a path"
                )
            _check_folder(folder)
            _set(self, "temporary_folder", folder)

    @property
    def held(self) -> Limits:
        """The limits of records that are held."""
        return Limits(self.held_records_max, self.held_bytes_max, self.spilled_bytes_max)

    @property
    def folder(self) -> str | None:
        """The temporary folder as text."""
        return path_text(self.temporary_folder)


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a live consumer group.

    The callbacks run inside a poll of the reader, with the position of each partition: the first offset that was not
    returned. They may call `OrderedReader.commit` and `OrderedReader.state`. An exception in one ends the read with a
    `CallbackError`. Closing the reader calls none of them, and commits what you are done with.

    Args:
        group_id: the group.
        instance_id: a name that outlives the process, the ``group.instance.id`` of static membership. A member that
            restarts within the session time gets its partitions back, and no partition of others moves.
        commit_interval_s: the least time between two commits.
        session_timeout_s: how long the group waits for a member that was killed before others get its partitions.
        max_poll_interval_s: the longest time between two polls, ``max.poll.interval.ms``. A slower member leaves the
            group; the next poll logs it, calls `on_lost`, and joins again.
        on_assigned: called with partitions that the group assigns to this member, before it reads them.
        on_revoked: called with partitions that move to another member, while they can still be committed.
        on_lost: called with partitions that other members may already have: they cannot be committed.

    Raises:
        ConfigError: an invalid argument.
    """

    group_id: str
    instance_id: str | None = None
    commit_interval_s: float = COMMIT_INTERVAL_S
    session_timeout_s: float = SESSION_TIMEOUT_S
    max_poll_interval_s: float = MAX_POLL_INTERVAL_S
    on_assigned: OnPartitions | None = field(default=None, repr=False)
    on_revoked: OnPartitions | None = field(default=None, repr=False)
    on_lost: OnPartitions | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_group(self.group_id)
        if self.instance_id is not None:
            check_text(self.instance_id, what="instance_id", length_max=_INSTANCE_ID_LENGTH_MAX)
        for name in ("commit_interval_s", "session_timeout_s", "max_poll_interval_s"):
            _set(self, name, check_timeout_s(getattr(self, name), what=name))
        if self.max_poll_interval_s < self.session_timeout_s:
            raise ConfigError(
                f"max_poll_interval_s is {self.max_poll_interval_s:g}, and session_timeout_s is {self.session_timeout_s:g}: "
                "raise max_poll_interval_s to at least the session timeout, or lower session_timeout_s"
            )
        for name in ("on_assigned", "on_revoked", "on_lost"):
            if (function := getattr(self, name)) is not None:
                check_function(function, what=name, takes=1)

    @classmethod
    def of(cls, value: object) -> Member | None:
        """Return the member for the name of a group; raise `ConfigError` for anything else."""
        if value is None or isinstance(value, Member):
            return value
        if not isinstance(value, str):
            raise ConfigError(f"group_id is {shown(value)}: give the name of a group, or a Member")
        return cls(value)


def check_limits(value: object) -> ReadLimits:
    """Return the limits themselves, or the default ones; raise `ConfigError` for anything else."""
    if value is None:
        return ReadLimits()
    if not isinstance(value, ReadLimits):
        raise ConfigError(f"limits is {shown(value)}: give a ReadLimits")
    return value


def _set(value: object, name: str, checked: object) -> None:
    object.__setattr__(value, name, checked)


def _check_folder(folder: str) -> None:
    """Raise `ConfigError` unless the folder can hold records; it is created when it is needed."""
    try:
        nearest = os.path.abspath(folder)
        while not _is_there(nearest):
            nearest = os.path.dirname(nearest)
    except (OSError, ValueError) as error:
        raise ConfigError(f"temporary_folder is {shown(folder)}: {error}") from None
    if not os.path.isdir(nearest) or not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(
            f"temporary_folder is {shown(folder)}, and {shown(nearest)} is not a folder that this process may write to"
        )


def _is_there(path: str) -> bool:
    """Return whether a path exists; raise `ValueError` or `OSError` for an invalid path."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
