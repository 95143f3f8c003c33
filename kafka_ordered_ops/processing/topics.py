"""The topics of a group's member: fixed names, or the current matches of patterns."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts, is_pattern
from kafka_ordered_ops.core.cluster.names import is_topic_name
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, UnknownTopicError
from kafka_ordered_ops.kafka.ports import LookupDoor

#: The interval between two searches for topics that match the patterns.
LOOK_EVERY_S: Final = 5.0
#: How long brokers may disagree about whether a topic exists.
_IN_DOUBT_S: Final = 10.0

_log = logging.getLogger(__name__)


class SelectedTopics:
    """Tracks the topics that names and patterns select; for one thread.

    Args:
        topics: names, or patterns that begin with ``^``.
        exclude: names or patterns to leave out of the matches.
    """

    def __init__(self, topics: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._topics, self._exclude = topics, exclude
        self.has_patterns = any(map(is_pattern, topics))
        #: The topics that the last search selected.
        self.names: frozenset[str] = frozenset()
        self._look_at = 0.0
        #: When a broker first reported an existing topic as unknown.
        self._in_doubt_since: float | None = None

    def first(self, lookup: LookupDoor) -> dict[str, TopicFacts]:
        """Return the topics at the start; raise `UnknownTopicError` if there are none, or if a name is unknown."""
        topics = lookup.selected(self._topics, self._exclude)
        self.names = frozenset(topics)
        self._look_at = time.monotonic() + LOOK_EVERY_S
        return topics

    def changed(self, lookup: LookupDoor) -> Mapping[str, TopicFacts] | None:
        """Return the current matches of the patterns if they changed; `None` if not, or if the cluster is unavailable."""
        if not self.has_patterns or time.monotonic() < self._look_at:
            return None
        self._look_at = time.monotonic() + LOOK_EVERY_S
        try:
            topics = lookup.selected(self._topics, self._exclude)
        except KafkaOrderedOpsError as error:
            if not error.retriable and not isinstance(error, UnknownTopicError):
                raise
            _log.debug("the search for new topics is repeated later: %s", error)
            return None
        if topics.keys() == self.names:
            return None
        self.names = frozenset(topics)
        return topics

    def deleted(self, lookup: LookupDoor, error: UnknownTopicError) -> frozenset[str]:
        """Return the deleted topics that matched patterns; raise the error if it has another cause.

        The result may be empty for a while: brokers learn of a deletion one after another.
        """
        if not self.has_patterns:
            raise error
        names = self.names | {name for name in error.topics if is_topic_name(name)}
        gone = frozenset(names - lookup.existing(names).keys())
        if not gone.isdisjoint(self._topics):
            raise error
        now = time.monotonic()
        if gone:
            self._in_doubt_since = None
        elif self._in_doubt_since is None:
            self._in_doubt_since = now
        elif now - self._in_doubt_since > _IN_DOUBT_S:
            raise error
        self.names -= gone
        return gone
