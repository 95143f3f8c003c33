"""Names that are sent to Kafka: the rules of the brokers, and names that crash or mislead the client.

The client takes a name as bytes that end with a NUL. A name that is not UTF-8 crashes the process, as does an empty
group id. The client drops blanks at the beginning of a group id, which then is the id of another group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kafka_ordered_ops.core.arguments import as_names, check_count, check_text, shown
from kafka_ordered_ops.core.cluster.cluster_facts import is_pattern
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import INT32_MAX, TopicPartition

#: Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic).
TOPIC_LENGTH_MAX: Final = 249
_TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}")
#: Longest topic pattern: it is stored with every window, and a topic name has at most 249 characters.
PATTERN_LENGTH_MAX: Final = 4_096
#: Longest group name: as long as a window id. Kafka's own limit (32,767 bytes) is far beyond what its tools show.
GROUP_LENGTH_MAX: Final = 512
#: A NUL, and halves of surrogate pairs, to which Python decodes bytes that are not UTF-8.
_CUT: Final = re.compile("[\0\ud800-\udfff]")


#: Follows an invalid topic name in a message.
NO_TOPIC_NAME: Final = (
    f"is not a topic name (letters, digits, '.', '_', '-', at most {TOPIC_LENGTH_MAX})"
)


def is_topic_name(name: object) -> bool:
    """Return whether Kafka allows this topic name."""
    return isinstance(name, str) and bool(_TOPIC_NAME.fullmatch(name)) and name not in (".", "..")


def check_topic_names(names: Iterable[str], *, what: str = "topic") -> None:
    """Raise `ConfigError` for an invalid topic name."""
    for name in names:
        if not is_topic_name(name):
            raise ConfigError(f"{what}: {shown(name)} {NO_TOPIC_NAME}")


def check_topic(name: str, *, what: str) -> None:
    """Raise `ConfigError` for a value that is neither a topic name nor a pattern."""
    if is_pattern(name):
        check_text(name, what=f"{what}: the pattern", length_max=PATTERN_LENGTH_MAX)
        try:
            re.compile(name)
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"{what}: the pattern {shown(name)} is not a regular expression: {error}"
            ) from error
    elif not is_topic_name(name):
        raise ConfigError(f"{what}: {shown(name)} {NO_TOPIC_NAME}; a pattern begins with '^'")


def as_topics(value: object, *, what: str) -> tuple[str, ...]:
    """Return topic names and patterns, sorted, each once; raise `ConfigError` for others."""
    names = as_names(value, what=what)
    for name in names:
        check_topic(name, what=what)
    return tuple(sorted(set(names)))


def check_group(value: object, *, what: str = "group", length_max: int = GROUP_LENGTH_MAX) -> str:
    """Return a valid name of a consumer group; raise `ConfigError` for others."""
    name = check_text(value, what=what, length_max=length_max)
    if name != name.strip():
        raise ConfigError(
            f"{what} {shown(name)} has a blank at its beginning or end: the Kafka client would drop it, and use another group"
        )
    return name


def is_whole(text: object) -> bool:
    """Return whether other programs read the whole text, such as the name of a header: it is UTF-8 without a NUL."""
    return isinstance(text, str) and _CUT.search(text) is None


def check_whole(text: str, *, what: str) -> None:
    """Raise `ConfigError` for text that the client cuts short, or that crashes it."""
    if not text or _CUT.search(text):
        raise ConfigError(f"{what} {shown(text)}: give UTF-8 text that is not empty and has no NUL")


def as_partition(value: object, *, what: str) -> TopicPartition:
    """Return a partition, passed as ``(topic, number)`` or as a `TopicPartition`; raise `ConfigError` for others."""
    if isinstance(value, TopicPartition):
        return value
    if isinstance(value, tuple) and len(value) == 2 and is_topic_name(value[0]):
        number = check_count(value[1], what=f"{what}: the partition", least=0, greatest=INT32_MAX)
        return TopicPartition(value[0], number)
    raise ConfigError(f"{what} has {shown(value)}: give a partition as (topic, number)")
