"""Names that go to Kafka: the brokers' rules, and what its client does not survive.

The client takes a name as bytes that end with a NUL. A name that is not UTF-8 ends the process, as does an empty group id;
blanks at the beginning of a group id are dropped, so that it becomes the id of another group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kafka_ordered_ops.core.arguments import check_text, shown
from kafka_ordered_ops.core.cluster_facts import is_pattern
from kafka_ordered_ops.core.errors import ConfigError

#: Kafka's own rule for topic names (org.apache.kafka.common.internals.Topic).
TOPIC_LENGTH_MAX: Final = 249
_TOPIC_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{TOPIC_LENGTH_MAX}}}")
#: Longest topic pattern: it is stored with every window, and a topic name has at most 249 characters.
PATTERN_LENGTH_MAX: Final = 4_096
#: Longest group name: as long as a window id. Kafka's own limit (32,767 bytes) is far beyond what its tools show.
GROUP_LENGTH_MAX: Final = 512
#: A NUL, and halves of surrogate pairs, which Python makes of bytes that are not UTF-8.
_CUT: Final = re.compile("[\0\ud800-\udfff]")


#: What follows a name that no topic can have.
NO_TOPIC_NAME: Final = (
    f"is not a topic name (letters, digits, '.', '_', '-', at most {TOPIC_LENGTH_MAX})"
)


def is_topic_name(name: object) -> bool:
    """Return whether Kafka allows this topic name."""
    return isinstance(name, str) and bool(_TOPIC_NAME.fullmatch(name)) and name not in (".", "..")


def check_topic_names(names: Iterable[str], *, what: str = "topic") -> None:
    """Raise `ConfigError` for a name that no topic can have."""
    for name in names:
        if not is_topic_name(name):
            raise ConfigError(f"{what}: {shown(name)} {NO_TOPIC_NAME}")


def check_topic(name: str, *, what: str) -> None:
    """Raise `ConfigError` for what is neither a topic name nor a pattern."""
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


def check_group(value: object, *, what: str = "group", length_max: int = GROUP_LENGTH_MAX) -> str:
    """Return a valid name of a consumer group; raise `ConfigError` for others."""
    name = check_text(value, what=what, length_max=length_max)
    if name != name.strip():
        raise ConfigError(
            f"{what} {shown(name)} has a blank at its beginning or end: the Kafka client would drop it, and use another group"
        )
    return name


def is_whole(text: object) -> bool:
    """Return whether other programs take a text whole, such as the name of a header: UTF-8 without a NUL."""
    return isinstance(text, str) and _CUT.search(text) is None


def check_whole(text: str, *, what: str) -> None:
    """Raise `ConfigError` for text that the client does not take whole, or does not survive."""
    if not text or _CUT.search(text):
        raise ConfigError(f"{what} {shown(text)}: give UTF-8 text that is not empty and has no NUL")
