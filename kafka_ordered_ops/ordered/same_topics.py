"""Check that the topics of an ordered read are still those that it started with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts
from kafka_ordered_ops.core.cluster.reading import recreated_while_read
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.kafka.ports import LookupDoor

#: The interval between two checks of a read with an end.
EVERY_S: Final = 1.0

_log = logging.getLogger(__name__)


class SameTopics:
    """The ids of topics, by name.

    Args:
        forget: called with a recreated topic, before the error is raised.
    """

    def __init__(self, forget: Callable[[str], None]) -> None:
        self._forget = forget
        self.ids: dict[str, str] = {}
        self._asked_at = time.monotonic()

    def check(self, topics: Mapping[str, TopicFacts]) -> None:
        """Raise `TopicRecreatedError` for a topic that was deleted and created again; add new topics."""
        for name, facts in topics.items():
            expected_id = self.ids.setdefault(name, facts.topic_id)
            if expected_id != facts.topic_id:
                self._forget(name)
                raise recreated_while_read(name, expected=expected_id, current=facts.topic_id)

    def ask(self, lookup: LookupDoor, *, at_end: bool) -> None:
        """Look up the topics from time to time, and at the end, because the client would continue in a recreated topic.

        Nothing more is returned after the error. A deleted topic may be read to its end.
        """
        if not (at_end or time.monotonic() - self._asked_at > EVERY_S):
            return
        try:
            self.check(lookup.existing(self.ids))
        except KafkaOrderedOpsError as error:
            if at_end or not error.retriable:
                raise
            _log.debug("the check of the topics is repeated later: %s", error)
        self._asked_at = time.monotonic()
