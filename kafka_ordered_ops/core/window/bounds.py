"""Starting offsets: where a group starts on a topic that it has never read. Each choice is a type of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from kafka_ordered_ops.core.arguments import check_count, shown
from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern, is_selected
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import (
    SPAN_MS_MAX,
    duration_text,
    parse_duration_ms,
    parse_time_ms,
    time_ms,
    time_text,
)
from kafka_ordered_ops.core.types import INT64_MAX, INT64_MIN


@dataclass(frozen=True, slots=True)
class Earliest:
    """The first record still in the log."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The end of the log when the first window is planned: only later records are read."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Committed:
    """The offset that the group has committed, whichever program committed it."""

    def __str__(self) -> str:
        return "committed"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record stamped at or after a time (ms since the epoch, UTC)."""

    timestamp_ms: int

    def __post_init__(self) -> None:
        _set_count(self, "timestamp_ms", least=INT64_MIN, greatest=INT64_MAX)

    @classmethod
    def of(cls, moment: datetime) -> AtTime:
        """Return the bound for an aware datetime; raise `ConfigError` for a naive one."""
        return cls(time_ms(moment, what="starting_offsets"))

    def __str__(self) -> str:
        return time_text(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Relative:
    """The first record stamped at or after the *cutoff* minus a duration (ms); never relative to now."""

    before_cutoff_ms: int

    def __post_init__(self) -> None:
        _set_count(self, "before_cutoff_ms", least=0, greatest=SPAN_MS_MAX)

    def __str__(self) -> str:
        return f"-{duration_text(self.before_cutoff_ms)}"


@dataclass(frozen=True, slots=True)
class AtOffset:
    """One offset for every partition of every topic; a partition with a shorter log starts at its end."""

    offset: int

    def __post_init__(self) -> None:
        _set_count(self, "offset", least=0, greatest=INT64_MAX)

    def __str__(self) -> str:
        return f"offset:{self.offset}"


Bound = Earliest | Latest | Committed | AtTime | Relative | AtOffset


@dataclass(frozen=True, slots=True)
class ByTopic:
    """A bound for each topic, by its name or by a pattern that it matches; names take precedence."""

    bounds: tuple[tuple[str, Bound], ...]
    #: Speeds up `of`, which is called for each partition.
    _named: Mapping[str, Bound] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_named", dict(self.bounds))

    def of(self, topic: str) -> Bound | None:
        """Return where a topic starts; None if neither its name nor a matching pattern has a bound."""
        if topic in self._named:
            return self._named[topic]
        for name, bound in self.bounds:
            if is_pattern(name) and is_selected(topic, [name], ()):
                return bound
        return None

    def __str__(self) -> str:
        return ", ".join(f"{name}={bound}" for name, bound in self.bounds)


#: Where a group starts: one bound for all topics, or one for each.
StartingOffsets = Bound | ByTopic

_NAMED: Mapping[str, Bound] = {"earliest": Earliest(), "latest": Latest(), "committed": Committed()}
_CHOICES = (
    "'earliest', 'latest', 'committed', a time with a zone such as '2026-11-20T12:00:00Z', a duration before the cutoff "
    "such as '-PT1H', 'offset:N', or a typed bound such as Earliest()"
)
_AT_OFFSET = re.compile(r"offset:(\d{1,19})", re.ASCII)


def as_bound(value: object) -> Bound | None:
    """Convert starting offsets, passed as a bound, as text or as an aware datetime. None stays None.

    Raises:
        ConfigError: any other value, such as the class of a bound.
    """
    if value is None or isinstance(value, Bound):
        return value
    if isinstance(value, str):
        return parse_bound(value)
    if isinstance(value, datetime):
        return AtTime.of(value)
    raise ConfigError(f"starting_offsets is {shown(value)}: give {_CHOICES}")


def as_starting_offsets(value: object, topics: Iterable[str]) -> StartingOffsets | None:
    """Convert starting offsets, as in `as_bound`, or a mapping from the window's topics to them.

    Raises:
        ConfigError: as in `as_bound`, or a name that is not one of the topics, or None as a bound.
    """
    if isinstance(value, ByTopic):
        value = dict(value.bounds)
    if not isinstance(value, Mapping):
        return as_bound(value)
    known = set(topics)
    if not value or (unknown := sorted(set(map(str, value)) - known)):
        names = ", ".join(unknown[:5]) if value else "nothing"
        raise ConfigError(
            f"starting_offsets has {names}, and the topics are {', '.join(sorted(known)[:5])}: name some of them"
        )
    bounds = {str(name): as_bound(bound) for name, bound in value.items()}
    if missing := [name for name, bound in bounds.items() if bound is None]:
        raise ConfigError(f"starting_offsets of {missing[0]} is None: give {_CHOICES}")
    return ByTopic(tuple(sorted((name, bound) for name, bound in bounds.items() if bound)))


def bound_of(offsets: StartingOffsets | None, topic: str) -> Bound | None:
    """Return where a topic starts; None if it has no bound."""
    return offsets.of(topic) if isinstance(offsets, ByTopic) else offsets


def bounds_of(offsets: StartingOffsets | None) -> list[Bound]:
    """Return all bounds of starting offsets."""
    if isinstance(offsets, ByTopic):
        return [bound for _, bound in offsets.bounds]
    return [] if offsets is None else [offsets]


def parse_bound(text: str) -> Bound:
    """Parse ``earliest``, ``latest``, ``committed``, an ISO time with a zone, ``-PT1H`` or ``offset:N``.

    Raises:
        ConfigError: any other text, or a time without a zone.
    """
    if not isinstance(text, str):
        raise ConfigError(f"starting_offsets is {shown(text)}: give the text of starting offsets")
    if text in _NAMED:
        return _NAMED[text]
    if match := _AT_OFFSET.fullmatch(text):
        return AtOffset(int(match[1]))
    try:
        if text.startswith("-P"):
            return Relative(parse_duration_ms(text[1:], what="the span"))
        return AtTime(parse_time_ms(text, what="the time"))
    except ConfigError as error:
        raise ConfigError(
            f"starting_offsets is {shown(text)}: give {_CHOICES} ({error})"
        ) from error


def _set_count(bound: Bound, name: str, *, least: int, greatest: int) -> None:
    what = f"{type(bound).__name__}.{name}"
    value = check_count(getattr(bound, name), what=what, least=least, greatest=greatest)
    object.__setattr__(bound, name, value)
