"""Which topics, by their ids, a client reads: it goes on in a topic that was created again, at the old offset.

The client fetches by the id, and never hands it out. But it logs each id that it learns from metadata before it fetches
from that topic, and the line comes out of the same queue as the records.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final

from kafka_ordered_ops.core.reading import recreated_while_read
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.client.lines import ClientLines

#: The part of the client's log that has the ids.
_DEBUG: Final = "metadata"
_NEW_ID: Final = re.compile(r"Topic (?P<topic>\S+) changed id from \S+ to (?P<id>\S+)$")


class TopicIds(ClientLines):
    """The log of one reading client. It raises from `check`, since the client ignores what a log raises.

    `expected` are ids by topic; a topic that it does not have, or has without an id, as plans that were made by hand do, is
    expected to stay as it is first read.
    """

    def __init__(self, reasons: FaultReasons, expected: Mapping[str, str]) -> None:
        super().__init__(reasons)
        self._expected = expected
        self._first: dict[str, str] = {}
        self._found: dict[str, str] = {}
        self._shows_debug = False

    def configured(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configuration of a client that logs the ids."""
        given = config.get("debug")
        self._shows_debug = given is not None
        return {**config, "debug": _DEBUG if given is None else f"{given},{_DEBUG}"}

    def log(self, level: int, message: str, *args: object) -> None:
        """Take note of a topic's id; log what else would be logged without it."""
        if level > logging.DEBUG:
            super().log(level, message, *args)
            return
        if (line := _NEW_ID.search(message % args if args else message)) is not None:
            # As Kafka's own tools print it: the client uses the other base64 alphabet.
            found = line["id"].replace("+", "-").replace("/", "_")
            self._first.setdefault(line["topic"], found)
            self._found[line["topic"]] = found
        if self._shows_debug:
            super().log(level, message, *args)

    def begin(self, topic: str) -> None:
        """Take the topic that there is by now for the one to read, unless another one is expected."""
        if (found := self._found.get(topic)) is not None:
            self._first[topic] = found

    def check(self, read: Iterable[tuple[str, int]]) -> None:
        """Raise `TopicRecreatedError` if what was taken from the client may be of a topic that was created again."""
        for topic, found in self._found.items():
            expected = self._expected.get(topic) or self._first[topic]
            if found != expected and any(topic == one for one, _ in read):
                raise recreated_while_read(topic, expected=expected, found=found)
