"""The request: records of some topics that are stamped before a cutoff, or in an interval."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import (
    as_moment,
    as_names,
    as_span,
    check_choice,
    check_flag,
    check_text,
    shown,
)
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.names import check_topic
from kafka_ordered_ops.core.strict_json import Fields
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import (
    duration_text,
    time_ms,
    time_text,
)
from kafka_ordered_ops.core.types import INT64_MIN, Isolation, Mode, OnDataLoss
from kafka_ordered_ops.core.window.bounds import Bound, as_bound

#: Longest window id: shown in tables and hashed into paths, never used in paths unchanged.
WINDOW_ID_LENGTH_MAX: Final = 512

#: What `folder_name` makes, and `safe_name` of an id alone.
_FOLDER_NAME: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,100}-)?([0-9a-f]{12})")

#: Ledger names that differ from the argument's name: the ledger keeps the names of its first version.
_ARGUMENTS: Final = {"start": "starting_offsets", "allowed_lateness": "max_out_of_orderness"}


# A constructor instead of generated fields, because arguments may be one topic name and text.
@dataclass(frozen=True, slots=True, init=False)
class Window:
    """A request to a group: every record stamped before `cutoff` that the group has not been given yet.

    With `since`, a window takes records stamped from `since` up to the cutoff, and *late* records: stamped earlier, in
    an interval that the group has planned and that does not hold them. Each record is in one window. Records that no
    interval covers, and records without a timestamp, stay until a sweep takes them.

    Args:
        topics: names, or regular expressions that begin with ``^`` and must match a whole name.
        cutoff: exclusive end in time, with a zone.
        since: inclusive start in time; None: no start.
        starting_offsets: where to begin on topics that the group has never planned; required then, ignored later.
        max_out_of_orderness: None reads every timestamp up to the end offset, so no record stamped before the
            cutoff is left. A duration ends the scan at the first record stamped at or after cutoff + duration;
            records after that one go to a later window.
        isolation: whether records of aborted and open transactions count.
        exclude: names or patterns to leave out of the matches of `topics`.
        on_data_loss: fail if records of the window are gone or cannot be read, or record their offsets as lost.
        allow_future_cutoff: plan although records before the cutoff may still be written.
        sweep: in a group of intervals, take everything before the cutoff that no interval covered.

    Raises:
        ConfigError: a value of the wrong type, a time without a zone or outside the years 1 to 9999 in UTC, no
            topic, an invalid topic name or pattern, an empty interval, a sweep with `since`, or a negative
            `max_out_of_orderness` or one that is not in whole milliseconds.
    """

    topics: tuple[str, ...]
    cutoff: datetime
    starting_offsets: Bound | None
    max_out_of_orderness: timedelta | None
    isolation: Isolation
    exclude: tuple[str, ...]
    on_data_loss: OnDataLoss
    allow_future_cutoff: bool
    since: datetime | None
    sweep: bool

    def __init__(
        self,
        topics: str | Sequence[str],
        cutoff: datetime | str,
        starting_offsets: Bound | datetime | str | None = None,
        max_out_of_orderness: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
        allow_future_cutoff: bool = False,
        since: datetime | str | None = None,
        sweep: bool = False,
    ) -> None:
        checked = {
            "topics": _topics(topics, what="topics"),
            # Stored in UTC and whole milliseconds, so that it compares equal to the value read back.
            "cutoff": as_moment(cutoff, what="cutoff"),
            "starting_offsets": as_bound(starting_offsets),
            "max_out_of_orderness": _out_of_orderness(max_out_of_orderness),
            "isolation": check_choice(isolation, Isolation, what="isolation"),
            "exclude": _topics(exclude, what="exclude"),
            "on_data_loss": check_choice(on_data_loss, OnDataLoss, what="on_data_loss"),
            "allow_future_cutoff": check_flag(allow_future_cutoff, what="allow_future_cutoff"),
            "since": None if since is None else as_moment(since, what="since"),
            "sweep": check_flag(sweep, what="sweep"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.topics:
            raise ConfigError(
                f"topics is {shown(topics)}: give a name or pattern, or a list of at least one of them"
            )
        if self.since is not None:
            self._check_interval(self.since)

    def _check_interval(self, since: datetime) -> None:
        if self.sweep:
            raise ConfigError("a sweep takes every record that no interval covers: leave out since")
        if time_ms(since, what="since") >= time_ms(self.cutoff, what="cutoff"):
            raise ConfigError(
                f"since {since.isoformat()} is not before the cutoff {self.cutoff.isoformat()}: the interval "
                "is empty"
            )

    @property
    def cutoff_ms(self) -> int:
        """The cutoff in milliseconds since the epoch."""
        return time_ms(self.cutoff, what="cutoff")

    @property
    def since_ms(self) -> int | None:
        """The start of the interval in milliseconds since the epoch."""
        return None if self.since is None else time_ms(self.since, what="since")

    @property
    def times(self) -> TimeRange:
        """The times that the window asks for; without `since` they have no start."""
        since_ms = self.since_ms
        return TimeRange(INT64_MIN if since_ms is None else since_ms, self.cutoff_ms)

    @property
    def mode(self) -> Mode | None:
        """The mode of the groups it belongs to; None for a sweep, which fits any group."""
        if self.sweep:
            return None
        return Mode.CATCH_UP if self.since is None else Mode.INTERVAL

    @property
    def out_of_orderness_ms(self) -> int | None:
        """The maximum out-of-orderness in milliseconds."""
        return (
            None
            if self.max_out_of_orderness is None
            else self.max_out_of_orderness // timedelta(milliseconds=1)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that is stored with the plan."""
        out_of_orderness_ms = self.out_of_orderness_ms
        return {
            "topics": list(self.topics),
            "exclude": list(self.exclude),
            "since": None if (since_ms := self.since_ms) is None else time_text(since_ms),
            "cutoff": time_text(self.cutoff_ms),
            "sweep": self.sweep,
            "start": None if self.starting_offsets is None else str(self.starting_offsets),
            "allowed_lateness": None
            if out_of_orderness_ms is None
            else duration_text(out_of_orderness_ms),
            "isolation": self.isolation.value,
            "on_data_loss": self.on_data_loss.value,
            "allow_future_cutoff": self.allow_future_cutoff,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Window:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid or `ConfigError`."""
        window = cls(
            topics=fields.texts("topics"),
            exclude=fields.texts("exclude"),
            since=fields.text_or_none("since"),
            cutoff=fields.text("cutoff"),
            sweep=fields.boolean("sweep"),
            starting_offsets=fields.text_or_none("start"),
            max_out_of_orderness=fields.text_or_none("allowed_lateness"),
            isolation=fields.choice("isolation", Isolation),
            on_data_loss=fields.choice("on_data_loss", OnDataLoss),
            allow_future_cutoff=fields.boolean("allow_future_cutoff"),
        )
        fields.done()
        return window

    def differences(self, other: Window) -> dict[str, tuple[Any, Any]]:
        """Return the fields by which two windows ask for different records: (this window's, the other's)."""
        mine, theirs = self._identity(), other._identity()
        return {
            _ARGUMENTS.get(name, name): (mine[name], theirs[name])
            for name in mine
            if mine[name] != theirs[name]
        }

    @property
    def question_digest(self) -> str:
        """A digest of what the window asks for; starting offsets only matter at a group's first plan, and are left out."""
        question = self._identity()
        del question["start"]
        return hashlib.sha256(strict_json.dumps(question).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        # Attempts may differ in how they handle loss and whether they allow a future cutoff.
        neutral = replace(self, on_data_loss=OnDataLoss.FAIL, allow_future_cutoff=False)
        return neutral.to_json()


def default_window_id(group_id: str, window: Window) -> str:
    """Return the default id: the same request of the same group gets the same id.

    Starting offsets are left out: they only matter at the group's first plan, and a later call without them asks for
    the same window.
    """
    question = {
        "group": group_id,
        "topics": list(window.topics),
        "exclude": list(window.exclude),
        "since_ms": window.since_ms,
        "cutoff_ms": window.cutoff_ms,
        "sweep": window.sweep,
    }
    digest = hashlib.sha256(strict_json.dumps(question).encode()).hexdigest()
    return f"{time_text(window.cutoff_ms)}-{digest[:12]}"


def check_window_id(window_id: str) -> str:
    """Return the id itself; raise `ConfigError` if it is empty, too long or has control characters."""
    return check_text(window_id, what="window id", length_max=WINDOW_ID_LENGTH_MAX)


def safe_name(text: str) -> str:
    """Return a file name for any id: a readable beginning, and a digest that keeps different ids apart."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:40]
    digest = id_digest(text)
    return f"{readable}-{digest}" if readable else digest


def folder_name(window_id: str, window: Window) -> str:
    """Return the name of a window's folder: the times that it asks for, and a digest of its id.

    Windows of one kind sort by time: ``2026-11-20T11-00-00Z_2026-11-20T12-00-00Z-<digest>`` with `since`, else
    ``2026-11-20T12-00-00Z-<digest>``. A colon is not allowed in HDFS and on Windows, and Hive and Spark escape it.
    """
    bounds = [window.cutoff_ms] if window.since_ms is None else [window.since_ms, window.cutoff_ms]
    # Milliseconds follow an underscore, which sorts after the Z of a whole second.
    times = "_".join(time_text(bound).replace(":", "-").replace(".", "_") for bound in bounds)
    return f"{times}-{id_digest(window_id)}"


def digest_in(folder: str) -> str | None:
    """Return the digest of the window's id in a folder's name, whatever its times; None for no name of a window."""
    found = _FOLDER_NAME.fullmatch(folder)
    return None if found is None else found[1]


def id_digest(window_id: str) -> str:
    """Return the digest that ends the name of a window's folder."""
    return hashlib.sha256(window_id.encode()).hexdigest()[:12]


def check_window(value: object) -> Window:
    """Return the window itself; raise `ConfigError` for anything else."""
    if not isinstance(value, Window):
        raise ConfigError(f"window is {shown(value)}: give a Window")
    return value


def _out_of_orderness(value: object) -> timedelta | None:
    if value is None:
        return None
    span = as_span(value, what="max_out_of_orderness")
    if span % timedelta(milliseconds=1):
        raise ConfigError(
            f"max_out_of_orderness {span} is not in whole milliseconds, as Kafka's timestamps are: round it"
        )
    return span


def _topics(value: object, *, what: str) -> tuple[str, ...]:
    names = as_names(value, what=what)
    for name in names:
        check_topic(name, what=what)
    return tuple(sorted(set(names)))
