"""The request: records of some topics that are stamped before a cutoff, or in an interval."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from kafka_ordered_ops.core import strict_json
from kafka_ordered_ops.core.arguments import (
    as_moment,
    as_span,
    check_choice,
    check_flag,
    shown,
)
from kafka_ordered_ops.core.cluster.names import as_topics
from kafka_ordered_ops.core.errors import ConfigError, CutoffInFutureError
from kafka_ordered_ops.core.masked import shown_fields
from kafka_ordered_ops.core.strict_json import JsonError, Stored, Text, Texts
from kafka_ordered_ops.core.templates import check_rendered, if_literal, is_literal
from kafka_ordered_ops.core.time_ranges import TimeRange
from kafka_ordered_ops.core.times import (
    duration_text,
    time_ms,
    time_text,
)
from kafka_ordered_ops.core.types import INT64_MIN, Isolation, Mode, OnDataLoss
from kafka_ordered_ops.core.window.bounds import (
    Bound,
    ByTopic,
    StartingOffsets,
    as_starting_offsets,
)
from kafka_ordered_ops.core.window.dead_letters import DeadLetter, as_on_bad
from kafka_ordered_ops.core.window.formats import Format, OnBad, is_open
from kafka_ordered_ops.core.window.stored_formats import (
    GivenFormat,
    StoredFormat,
    as_format,
    format_to_json,
    kept,
)


# A constructor instead of generated fields, because arguments may be one topic name and text.
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Window:
    """A request of a group: every record stamped before `cutoff` that no earlier window of the group has taken.

    With `since`, a window takes records stamped from `since` up to the cutoff, and *late* records: stamped earlier, in
    an interval that the group has planned and that does not hold them. Each record is in one window. Records that no
    interval covers, and records without a timestamp, stay until a sweep takes them.

    Args:
        topics: names, or regular expressions that begin with ``^`` and must match a whole name.
        cutoff: exclusive end in time, with a zone. Airflow and Dagster set the times of a window without one.
        since: inclusive start in time; None means no start.
        starting_offsets: where to begin on topics that the group has never planned; required then, ignored later. One
            bound, or a mapping of bounds by topic: ``{"orders": "earliest", "rates": "-PT1H"}``.
        max_out_of_orderness: None reads every timestamp up to the end offset, so no record stamped before the
            cutoff is left. A duration ends the scan at the first record stamped at or after cutoff + duration;
            records after that one go to a later window.
        isolation: whether records of aborted and open transactions count.
        exclude: names or patterns to leave out of the matches of `topics`.
        on_data_loss: fail if records of the window are gone or cannot be read, or record their offsets as lost.
        allow_future_cutoff: plan although records before the cutoff may still be written.
        sweep: in a group of intervals, take everything before the cutoff that no interval covered.
        values: how values are encoded, `Avro`, `Json`, `Protobuf` or `Debezium`: the column ``value`` becomes a struct, or
            whatever type the schema has. None leaves bytes. Also as text: ``avro``, ``avro:SUBJECT``, ``json:id int64``.
        keys: the same for the column ``key``.
        on_bad: ``fail`` reads no window with a value that cannot be decoded. ``keep`` has null there, and two more columns,
            ``value_raw`` with the bytes and ``value_error`` with the reason. `DeadLetter` leaves such records out, and writes
            them to a topic in the transaction of the commit, or beside the output; as text, ``dead_letter:TOPIC`` or
            ``dead_letter``.
        flatten: put the fields of a struct in its place.

    Raises:
        ConfigError: a value of the wrong type, a time without a zone or outside the years 1 to 9999 in UTC, no
            topic, an invalid topic name or pattern, an empty interval, a sweep with `since`, or a negative
            `max_out_of_orderness` or one that is not in whole milliseconds.
    """

    topics: tuple[str, ...]
    cutoff: datetime | None
    starting_offsets: StartingOffsets | None
    max_out_of_orderness: timedelta | None
    isolation: Isolation
    exclude: tuple[str, ...]
    on_data_loss: OnDataLoss
    allow_future_cutoff: bool
    since: datetime | None
    sweep: bool
    values: Format | None
    keys: Format | None
    on_bad: OnBad | DeadLetter
    flatten: bool

    def __init__(
        self,
        topics: str | Sequence[str],
        cutoff: datetime | str | None = None,
        starting_offsets: StartingOffsets
        | datetime
        | str
        | Mapping[str, Bound | datetime | str]
        | None = None,
        max_out_of_orderness: timedelta | str | None = None,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        exclude: str | Sequence[str] = (),
        on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
        allow_future_cutoff: bool = False,
        since: datetime | str | None = None,
        sweep: bool = False,
        values: GivenFormat | None = None,
        keys: GivenFormat | None = None,
        on_bad: OnBad | DeadLetter | str = OnBad.FAIL,
        flatten: bool = False,
    ) -> None:
        checked = {
            "topics": if_literal(topics, partial(as_topics, what="topics")),
            # Stored in UTC and whole milliseconds, so that it compares equal to the value read back.
            "cutoff": None if cutoff is None else as_moment(cutoff, what="cutoff"),
            "starting_offsets": starting_offsets,
            "max_out_of_orderness": if_literal(max_out_of_orderness, _out_of_orderness),
            "isolation": if_literal(
                isolation, partial(check_choice, kind=Isolation, what="isolation")
            ),
            "exclude": if_literal(exclude, partial(as_topics, what="exclude")),
            "on_data_loss": if_literal(
                on_data_loss, partial(check_choice, kind=OnDataLoss, what="on_data_loss")
            ),
            "allow_future_cutoff": check_flag(allow_future_cutoff, what="allow_future_cutoff"),
            "since": None if since is None else as_moment(since, what="since"),
            "sweep": check_flag(sweep, what="sweep"),
            "values": if_literal(values, partial(as_format, what="values")),
            "keys": if_literal(keys, partial(as_format, what="keys")),
            "on_bad": if_literal(on_bad, as_on_bad),
            "flatten": check_flag(flatten, what="flatten"),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if not self.topics:
            raise ConfigError(
                f"topics is {shown(topics)}: give a name or pattern, or a list of at least one of them"
            )
        if is_literal((self.topics, starting_offsets)):
            bounds = as_starting_offsets(starting_offsets, self.topics)
            object.__setattr__(self, "starting_offsets", bounds)
        if self.since is not None:
            self._check_interval(self.since)
        if not self.is_decoded and (self.flatten or self.on_bad is not OnBad.FAIL):
            raise ConfigError(
                "on_bad and flatten are about decoded values: also say how they are encoded, with values= or keys="
            )

    def _check_interval(self, since: datetime) -> None:
        if self.sweep:
            raise ConfigError("a sweep takes every record that no interval covers: leave out since")
        if self.cutoff is None:
            raise ConfigError(f"since is {since.isoformat()}, and there is no cutoff: give both")
        if time_ms(since, what="since") >= self.cutoff_ms:
            raise ConfigError(
                f"since {since.isoformat()} is not before the cutoff {self.cutoff.isoformat()}: the interval "
                "is empty"
            )

    def read_like(self, asked: Window) -> Window:
        """Return the planned window with formats as they are asked for now; see `formats.kept`."""
        return replace(
            self,
            values=kept(asked.values, self.values),
            keys=kept(asked.keys, self.keys),
            on_bad=asked.on_bad,
            flatten=asked.flatten,
        )

    @property
    def undecoded(self) -> Window:
        """The same window with values and keys as bytes."""
        return replace(self, values=None, keys=None, on_bad=OnBad.FAIL, flatten=False)

    @property
    def is_decoded(self) -> bool:
        """Whether values or keys become columns of their own."""
        return self.values is not None or self.keys is not None

    @property
    def is_open(self) -> bool:
        """Whether columns are still to be inferred."""
        return is_open(self.values) or is_open(self.keys)

    def check_bytes(self, reader: str) -> None:
        """Raise `ConfigError` if values or keys are decoded, for a reader that returns bytes."""
        if self.is_decoded:
            raise ConfigError(
                f"the window says how values are encoded, and {reader} returns bytes: leave values and keys out of the Window, and "
                "decode them there"
            )

    def check_for_function(self) -> None:
        """Raise `ConfigError` for arguments that have no meaning for a function of single records."""
        if self.on_bad is not OnBad.FAIL or self.flatten:
            raise ConfigError(
                "on_bad and flatten are for columns. A Processor treats a record that cannot be decoded as one whose function failed "
                "in its last attempt: leave out both, and choose with when_exhausted or dead_letter_topic"
            )

    @property
    def dead_letter(self) -> DeadLetter | None:
        """Where records go that cannot be decoded; None if they stay, or stop the window."""
        return self.on_bad if self.is_decoded and isinstance(self.on_bad, DeadLetter) else None

    @property
    def has_bad_output(self) -> bool:
        """Whether such records go to a place beside the output."""
        return self.dead_letter is not None and self.dead_letter.topic is None

    def check_no_dead_letters(self, reader: str) -> None:
        """Raise `ConfigError` if bad records become dead letters, for a reader that does not report their places."""
        if self.dead_letter is not None:
            raise ConfigError(
                f"on_bad is {self.on_bad}, and {reader} cannot report which records it leaves out: use run or open, with a "
                "folder or a table; or on_bad='keep'"
            )

    @property
    def decoding(self) -> str:
        """How values and keys are decoded, as text: equal for windows that can be read together."""
        return strict_json.dumps(self._decoding)

    @property
    def _decoding(self) -> dict[str, Any]:
        return {
            "values": format_to_json(self.values),
            "keys": format_to_json(self.keys),
            "on_bad": str(self.on_bad),
            "flatten": self.flatten,
        }

    def decoding_differences(self, asked: Window) -> list[str]:
        """Return texts about the arguments in which another window decodes otherwise: ``flatten=False, not True``."""
        pairs = ((name, getattr(self, name), getattr(asked, name)) for name in self._decoding)
        return [
            f"{name}={own if own is not None else 'bytes'!s}, not {other if other is not None else 'bytes'!s}"
            for name, own, other in pairs
            if own != other
        ]

    def at(self, cutoff: datetime, since: datetime | None = None) -> Window:
        """Return the window with these times; raise `ConfigError` for an empty interval."""
        return replace(self, cutoff=cutoff, since=since)

    def __repr__(self) -> str:
        # Text as long as it is a template.
        topics: Any = self.topics
        return shown_fields(
            self,
            topics=topics if isinstance(topics, str) else [*topics],
            cutoff=None if self.cutoff is None else self.cutoff.isoformat(),
            since=None if self.since is None else self.since.isoformat(),
            starting_offsets=None if self.starting_offsets is None else str(self.starting_offsets),
            max_out_of_orderness=None
            if self.max_out_of_orderness is None
            else str(self.max_out_of_orderness),
            isolation=None if self.isolation is Isolation.READ_COMMITTED else str(self.isolation),
            exclude=self.exclude,
            on_data_loss=None if self.on_data_loss is OnDataLoss.FAIL else str(self.on_data_loss),
            allow_future_cutoff=self.allow_future_cutoff or None,
            sweep=self.sweep or None,
            values=self.values,
            keys=self.keys,
            on_bad=None if self.on_bad is OnBad.FAIL else str(self.on_bad),
            flatten=self.flatten or None,
        )

    @property
    def cutoff_ms(self) -> int:
        """The cutoff in milliseconds since the epoch; raises `ConfigError` without one."""
        if self.cutoff is None:
            raise ConfigError(
                f"the window of {', '.join(self.topics[:5])} has no cutoff: give Window(..., cutoff=...)"
            )
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
        """The mode of groups that plan such windows; None for a sweep, which fits any group."""
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
            "starting_offsets": _offsets_json(self.starting_offsets),
            "max_out_of_orderness": None
            if out_of_orderness_ms is None
            else duration_text(out_of_orderness_ms),
            "isolation": self.isolation.value,
            "on_data_loss": self.on_data_loss.value,
            "allow_future_cutoff": self.allow_future_cutoff,
            **self._decoding,
        }

    @classmethod
    def from_json(cls, value: Any) -> Window:
        """Parse the JSON of `to_json`; raise `JsonError` if it is invalid."""
        return StoredWindow.parse(value, "window").window

    def differences(self, other: Window) -> dict[str, tuple[Any, Any]]:
        """Return the fields in which two windows ask for different records: (this window's, the other's)."""
        own, theirs = self._identity(), other._identity()
        return {name: (own[name], theirs[name]) for name in own if own[name] != theirs[name]}

    @property
    def question_digest(self) -> str:
        """A digest of the request, without starting offsets, which only matter at a group's first plan."""
        question = self._identity()
        del question["starting_offsets"]
        return hashlib.sha256(strict_json.dumps(question).encode()).hexdigest()[:16]

    def _identity(self) -> dict[str, Any]:
        # Attempts may differ in how they handle loss, whether they allow a future cutoff, and what they make of the bytes.
        neutral = replace(self, on_data_loss=OnDataLoss.FAIL, allow_future_cutoff=False)
        decoding = self._decoding
        return {name: value for name, value in neutral.to_json().items() if name not in decoding}


class StoredWindow(Stored, frozen=True):
    """The JSON of a `Window`."""

    topics: Texts
    exclude: Texts
    since: Text | None
    cutoff: Text
    sweep: bool
    starting_offsets: Text | dict[str, Text] | None
    max_out_of_orderness: Text | None
    isolation: Isolation
    on_data_loss: OnDataLoss
    allow_future_cutoff: bool
    values: StoredFormat | None
    keys: StoredFormat | None
    on_bad: Text
    flatten: bool

    @property
    def window(self) -> Window:
        """The window; raises `JsonError` for an invalid one."""
        try:
            values = None if self.values is None else self.values.value
            keys = None if self.keys is None else self.keys.value
            window = Window(**self.fields(values=values, keys=keys))
            # Templates are rendered before anything is stored.
            check_rendered(window, "the window")
            return window
        except ConfigError as error:
            raise JsonError(f"window: {error}") from error


def check_window(value: object) -> Window:
    """Return the window unchanged; raise `ConfigError` for anything else, or a window without a cutoff."""
    if not isinstance(value, Window):
        raise ConfigError(f"window is {shown(value)}: give a Window")
    check_rendered(value, "the window")
    _ = value.cutoff_ms
    return value


def check_cutoff(window: Window, now_ms: int) -> None:
    """Raise `CutoffInFutureError` if the cutoff has not passed, unless the window allows it."""
    if window.cutoff_ms > now_ms and not window.allow_future_cutoff:
        raise CutoffInFutureError(
            f"the cutoff {time_text(window.cutoff_ms)} has not passed yet (now {time_text(now_ms)}): records "
            "before it may still be written. Retry when it has passed",
            cutoff_ms=window.cutoff_ms,
            now_ms=now_ms,
        )


def _offsets_json(offsets: StartingOffsets | None) -> str | dict[str, str] | None:
    if isinstance(offsets, ByTopic):
        return {name: str(bound) for name, bound in offsets.bounds}
    return None if offsets is None else str(offsets)


def _out_of_orderness(value: object) -> timedelta | None:
    if value is None:
        return None
    span = as_span(value, what="max_out_of_orderness")
    if span % timedelta(milliseconds=1):
        raise ConfigError(
            f"max_out_of_orderness {span} is not in whole milliseconds, as Kafka's timestamps are: round it"
        )
    return span
