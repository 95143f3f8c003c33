"""Facts about a cluster, as values independent of any client library, and the rules for requests.

A real cluster and its in-memory model return the same values and raise the same errors.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.arguments import shown
from kafka_ordered_ops.core.errors import ConfigError, GroupInUseError, UnknownTopicError
from kafka_ordered_ops.core.offset_set import Int64Array
from kafka_ordered_ops.core.types import TopicPartition

#: The first character of a topic pattern, as in the Java client and librdkafka.
PATTERN_MARK: Final = "^"
#: Kafka's own topics, and this package's ledger: no pattern matches them.
INTERNAL_PREFIX: Final = "__"

#: How client settings name an `InMemoryKafka` of this process: ``bootstrap.servers = memory:<name>``.
MEMORY_SCHEME: Final = "memory:"
#: Not only digits: they would be the port of a broker on a host named "memory".
_MEMORY_NAME: Final = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]*")

#: ``host``, ``host:port`` or ``[IPv6]:port``, as librdkafka accepts them; a host name has at most 255 characters.
_BROKER: Final = re.compile(
    r"([A-Za-z_]+://)?([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.%a-z]+\])(:(?P<port>\d{1,5}))?"
)
_PORT_MAX: Final = 65_535

#: Similar names suggested for an unknown name.
CLOSE_MATCHES_MAX: Final = 3
#: Topics named in one error.
TOPICS_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the cluster describes it."""

    name: str
    #: Distinguishes a topic from a deleted topic of the same name (Kafka's base64 form).
    topic_id: str
    #: Partition numbers, in order.
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where a log ends."""

    #: The high watermark.
    offset: int
    #: Grows with every new leader; None if the broker does not report it. Under one leader, a log only grows.
    leader_epoch: int | None


@dataclass(frozen=True, slots=True)
class LogClaim:
    """A claim about a log: everything below an offset was there under a leader of this epoch."""

    leader_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """A group's committed offset of a partition: the next offset to read, and UTF-8 metadata."""

    offset: int
    metadata: bytes = b""


#: The group's committed offset of each requested partition; None if the group has not committed one.
CommittedOffsets = Mapping[TopicPartition, CommittedOffset | None]


@dataclass(frozen=True, slots=True, eq=False)
class ScanBatch:
    """Offsets and timestamps of some of the wanted records of one partition, in offset order.

    Empty if only the position moved: over control records, aborted records, or a gap.
    """

    tp: TopicPartition
    #: int64, ascending
    offsets: Int64Array
    #: int64, as long as `offsets`; in any order, negative ones are valid
    timestamps_ms: Int64Array
    #: All wanted records below this offset have been returned.
    position: int


def is_memory_name(name: str) -> bool:
    """Return whether an `InMemoryKafka` can have this name."""
    return _MEMORY_NAME.fullmatch(name) is not None


def memory_name(bootstrap_servers: str) -> str | None:
    """Return the name of the `InMemoryKafka` at this address; None for the address of real brokers."""
    name = bootstrap_servers.removeprefix(MEMORY_SCHEME)
    return name if name != bootstrap_servers and is_memory_name(name) else None


def check_brokers(text: str, *, what: str) -> str:
    """Return the text unchanged if it is ``host:port,...``; the port and a leading protocol are optional.

    Raises:
        ConfigError: an entry is not an address; the message has its number.
    """
    if memory_name(text) is None:
        # The client skips empty entries.
        parts = [part.strip() for part in text.split(",") if part.strip()]
        for number, part in enumerate(parts or [text], start=1):
            match = _BROKER.fullmatch(part)
            # The client takes the port modulo 65,536, where another program may listen.
            if match is None or not 1 <= int(match["port"] or 1) <= _PORT_MAX:
                raise ConfigError(
                    # The text may contain a password, so the message does not repeat it.
                    f"{what}: entry {number} of {max(len(parts), 1)} is not an address of a broker: use host:port, or "
                    "several separated by commas. User and password are sasl.username and sasl.password"
                )
    return text


def is_pattern(name: str) -> bool:
    """Return whether the text is a topic pattern, not a topic name."""
    return name.startswith(PATTERN_MARK)


def partitions_of(topics: Mapping[str, TopicFacts]) -> list[TopicPartition]:
    """Return all partitions of the topics, sorted."""
    return [
        TopicPartition(name, number)
        for name, facts in sorted(topics.items())
        for number in facts.partitions
    ]


def matching_topics(
    patterns: Iterable[str], exclude: Iterable[str], listed: Collection[str]
) -> list[str]:
    """Return the topics of a cluster that names and patterns select, without the excluded ones, sorted.

    Text that begins with ``^`` is a regular expression (Python's) for the whole name. Patterns never
    match internal topics, whose names begin with ``__``; a plain name may.

    Raises:
        UnknownTopicError: a topic given by name does not exist, or no topic is selected.
        ConfigError: a pattern is not a valid regular expression.
    """
    selection = list(patterns)
    unknown = [name for name in selection if not is_pattern(name) and name not in listed]
    if unknown:
        raise unknown_topics(unknown, listed)
    excluded = _selected(exclude, listed)
    matches = sorted(_selected(selection, listed) - excluded)
    if not matches:
        raise UnknownTopicError(
            f"no topic matches {', '.join(selection) or 'an empty selection'}"
            f"{f' once {len(excluded)} are excluded' if excluded else ''}: patterns must match the "
            f"whole name and never match internal topics ({INTERNAL_PREFIX}*); topics that this "
            "principal may not DESCRIBE are not visible",
            topics=tuple(selection),
        )
    return matches


def is_selected(topic: str, patterns: Iterable[str], exclude: Iterable[str]) -> bool:
    """Return whether names and patterns, without the excluded ones, select a topic."""
    return topic in _selected(patterns, [topic]) and topic not in _selected(exclude, [topic])


def unknown_topics(names: Sequence[str], listed: Iterable[str]) -> UnknownTopicError:
    """Return the error for topics that do not exist, with similar names that do."""
    known = sorted(listed)
    names_text = []
    for name in names[:TOPICS_NAMED_MAX]:
        close = difflib.get_close_matches(name, known, n=CLOSE_MATCHES_MAX)
        names_text.append(f"{name} (nearest: {', '.join(close)})" if close else name)
    more = len(names) - len(names_text)
    return UnknownTopicError(
        f"unknown topics: {', '.join(names_text)}{f' and {more} more' if more > 0 else ''}. The request did not "
        "create them. Check the names, and that this principal may DESCRIBE them",
        topics=tuple(names),
    )


def check_partitions_exist(
    partitions: Iterable[TopicPartition], topics: Mapping[str, TopicFacts]
) -> None:
    """Raise `UnknownTopicError` for partitions that do not exist; their topics do."""
    absent = [tp for tp in partitions if tp.partition not in topics[tp.topic].partitions]
    if absent:
        raise UnknownTopicError(
            f"unknown partitions: {', '.join(map(str, absent[:TOPICS_NAMED_MAX]))}; the topic has "
            f"{len(topics[absent[0].topic].partitions)} partitions, numbered from 0",
            topics=tuple(sorted({tp.topic for tp in absent})),
        )


def check_group_empty(group_id: str, members: Sequence[str]) -> None:
    """Raise `GroupInUseError` if a group has members: a window's commit would bypass them."""
    if members:
        raise GroupInUseError(
            f"group {group_id} has {len(members)} live members ({', '.join(members[:3])}): windows need "
            "a separate group. Stop the members, or use another group",
            group_id=group_id,
            members=members,
        )


def group_of_other_kind(group_id: str, kind: str) -> GroupInUseError:
    """Return the error for a group that is not a consumer group.

    Brokers do not report the members of such a group to consumer clients, and keep the group after the members have
    left. They also accept a commit for it, which the group's program takes for its own progress.

    Args:
        group_id: the group.
        kind: the kind that the brokers report; empty if they do not describe it.
    """
    reason = (
        f"its protocol is {shown(kind)}"
        if kind
        else "the brokers list it, and do not describe it as a group of consumers: a Kafka Streams application with the "
        "streams protocol, or consumers of a share group, use the name"
    )
    return GroupInUseError(
        f"group {group_id} belongs to a program of another kind: {reason}. A commit for it would skip that program's "
        "records. Use another group id",
        group_id=group_id,
        members=(),
        retriable=False,
    )


def _selected(names: Iterable[str], listed: Collection[str]) -> set[str]:
    selected: set[str] = set()
    for name in names:
        if not is_pattern(name):
            selected.add(name)
            continue
        try:
            whole = re.compile(name)
        except re.error as error:
            raise ConfigError(
                f"topic pattern {name!r} is not a regular expression: {error}"
            ) from error
        selected.update(
            topic
            for topic in listed
            if not topic.startswith(INTERNAL_PREFIX) and whole.fullmatch(topic)
        )
    return selected
