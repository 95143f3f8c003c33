"""The ids of the topics that a client reads: without a check, it continues in a recreated topic at the old offset.

The client fetches by the id, but does not expose it. It logs each id that it learns from metadata before it fetches
from that topic, and the log line arrives in the same queue as the records.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final

from kafka_ordered_ops.core.cluster.reading import recreated_while_read
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.client.lines import ClientLines

#: The debug context of the client that logs the ids.
_DEBUG: Final = "metadata"
_NEW_ID: Final = re.compile(r"Topic (?P<topic>\S+) changed id from \S+ to (?P<id>\S+)$")


class TopicIds(ClientLines):
    """The log of one reading client. Errors are raised by `check`, because the client ignores exceptions of a logger.

    `expected` are ids by topic. A topic without an id there, as in plans that were made by hand, must keep the id that it
    has when it is first read.
    """

    def __init__(self, reasons: FaultReasons, expected: Mapping[str, str]) -> None:
        super().__init__(reasons)
        self._expected = expected
        self._first: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._shows_debug = False

    def configured(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a client that logs the ids."""
        debug = config.get("debug")
        self._shows_debug = debug is not None
        return {**config, "debug": _DEBUG if debug is None else f"{debug},{_DEBUG}"}

    def log(self, level: int, message: str, *args: object) -> None:
        """Record a topic's id; log the lines that the user's own settings request."""
        if level > logging.DEBUG:
            super().log(level, message, *args)
            return
        if (line := _NEW_ID.search(message % args if args else message)) is not None:
            # In the form of Kafka's own tools: the client uses the other base64 alphabet.
            topic_id = line["id"].replace("+", "-").replace("/", "_")
            self._first.setdefault(line["topic"], topic_id)
            self._found[line["topic"]] = topic_id
        if self._shows_debug:
            super().log(level, message, *args)

    def begin(self, topic: str) -> None:
        """Expect the current id of a topic, unless another id is expected."""
        if (topic_id := self._found.get(topic)) is not None:
            self._first[topic] = topic_id

    def check(self, read: Iterable[tuple[str, int]]) -> None:
        """Raise `TopicRecreatedError` if the last records may come from a recreated topic."""
        for topic, topic_id in self._found.items():
            expected = self._expected.get(topic) or self._first[topic]
            if topic_id != expected and any(topic == name for name, _ in read):
                raise recreated_while_read(topic, expected=expected, current=topic_id)
