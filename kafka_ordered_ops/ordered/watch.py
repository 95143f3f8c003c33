"""Look at the logs that are followed: their ends, open transactions, new and deleted topics.

In a thread of its own, so that reading never waits for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.cluster_facts import TopicFacts, is_pattern
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, UnknownTopicError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: Between two looks. A shorter grace is looked after twice as often as it is long.
EVERY_S: Final = 1.0
EVERY_S_MIN: Final = 0.1
#: A thread that waits for a broker ends by itself.
_JOIN_S: Final = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seen:
    """The logs at one moment."""

    #: Before the first question.
    at_ms: int
    topics: Mapping[str, TopicFacts]
    #: Where reading ends.
    ends: Mapping[TopicPartition, int]
    #: Partitions without an open transaction.
    settled: frozenset[TopicPartition]


class Watch:
    """Looks again and again; a context manager."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str],
        isolation: Isolation,
        *,
        every_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._isolation = isolation
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._stop = threading.Event()
        self._seen: Seen | None = None
        self._error: KafkaOrderedOpsError | None = None
        self._thread = threading.Thread(target=self._run, name="ordered-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def take(self) -> Seen | None:
        """Return what was seen since the last call; None: nothing new.

        Raises:
            UnknownTopicError: a topic that was asked for by name is gone.
            KafkaOrderedOpsError: the cluster refuses, for good.
        """
        if self._error is not None:
            raise self._error
        seen, self._seen = self._seen, None
        return seen

    def _run(self) -> None:
        try:
            with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
                while not self._stop.wait(self._every_s):
                    at_ms = int(self._clock() * 1_000)
                    try:
                        try:
                            topics = lookup.selected(self._topics)
                        except UnknownTopicError:
                            if any(not is_pattern(name) for name in self._topics):
                                raise
                            topics = {}
                        partitions = [
                            TopicPartition(name, number)
                            for name, facts in topics.items()
                            for number in facts.partitions
                        ]
                        high = lookup.log_ends(partitions) if partitions else {}
                        ends = lookup.end_offsets(partitions, self._isolation) if partitions else {}
                    except KafkaOrderedOpsError as error:
                        if not error.retriable:
                            raise
                        _log.debug("the logs cannot be looked at now: %s", error)
                        continue
                    settled = frozenset(tp for tp in partitions if ends[tp] >= high[tp].offset)
                    self._seen = Seen(at_ms, topics, ends, settled)
        except KafkaOrderedOpsError as error:
            self._error = error
