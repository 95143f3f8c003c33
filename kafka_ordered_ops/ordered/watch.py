"""Watch the logs that are followed: their ends, open transactions, new and deleted topics.

The watch has its own thread, so that reading never waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kafka_ordered_ops.core.cluster.cluster_facts import TopicFacts, is_pattern, partitions_of
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, UnknownTopicError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.ports import LookupDoor, open_lookup
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The interval between two snapshots, and its minimum. For a shorter grace, the interval is half of the grace.
EVERY_S: Final = 1.0
EVERY_S_MIN: Final = 0.1
#: How long to wait for the thread at the end. A thread that waits for a broker ends by itself.
_JOIN_S: Final = 0.5
#: Without an answer for this long after a snapshot was due, the cluster counts as unavailable.
_BLIND_S: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the logs."""

    #: The time before the first request.
    at_ms: int
    topics: Mapping[str, TopicFacts]
    #: The offsets that readers can read up to.
    ends: Mapping[TopicPartition, int]
    #: Partitions without an open transaction.
    settled: frozenset[TopicPartition]


class Watch:
    """Takes a snapshot at once, and then at intervals; a context manager."""

    def __init__(
        self,
        settings: ClientSettings,
        topics: Sequence[str],
        exclude: Sequence[str],
        isolation: Isolation,
        *,
        every_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._exclude = exclude
        self._isolation = isolation
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._stop = threading.Event()
        #: Only the newest snapshot, until it is taken.
        self._snapshots: deque[Snapshot] = deque(maxlen=1)
        self._known: frozenset[str] = frozenset()
        self._error: BaseException | None = None
        self._looked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="ordered-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        # Do not wait for a thread that waits for an unavailable cluster.
        self._thread.join(0 if self.is_blind else _JOIN_S)

    @property
    def is_blind(self) -> bool:
        """Whether the cluster has not answered for some time, so that a request would probably time out."""
        return time.monotonic() - self._looked_at > self._every_s + _BLIND_S

    def take(self) -> Snapshot | None:
        """Return the newest snapshot since the last call; `None` if there is no new one.

        Raises:
            UnknownTopicError: a topic that was requested by name is gone.
            KafkaOrderedOpsError: the cluster refuses a request, and a retry cannot help.
        """
        if self._error is not None:
            raise self._error
        return self._snapshots.pop() if self._snapshots else None

    def _run(self) -> None:
        try:
            with open_lookup(self._settings, timeout_s=self._timeout_s) as lookup:
                while True:
                    self._look(lookup)
                    if self._stop.wait(self._every_s):
                        return
        except BaseException as error:  # noqa: BLE001 - raised in the thread that reads
            self._error = error

    def _look(self, lookup: LookupDoor) -> None:
        at_ms = int(self._clock() * 1_000)
        try:
            topics = self._existing(lookup)
            partitions = partitions_of(topics)
            try:
                high = lookup.log_ends(partitions) if partitions else {}
                ends = lookup.end_offsets(partitions, self._isolation) if partitions else {}
            except UnknownTopicError as error:
                # Deleted just now. The next snapshot fails if the topic was requested by name.
                _log.debug("a topic was deleted: %s", error)
                return
        except KafkaOrderedOpsError as error:
            if not error.retriable:
                raise
            _log.debug("the state of the logs is unavailable: %s", error)
            return
        settled = frozenset(tp for tp in partitions if ends[tp] >= high[tp].offset)
        self._known, self._looked_at = frozenset(topics), time.monotonic()
        self._snapshots.append(Snapshot(at_ms, topics, ends, settled))

    def _existing(self, lookup: LookupDoor) -> dict[str, TopicFacts]:
        """Describe the topics; one that no longer matches in the listing is gone only if it is also unknown by name."""
        try:
            topics = dict(lookup.selected(self._topics, self._exclude))
        except UnknownTopicError as error:
            # A topic that matched a pattern may be deleted between listing and describing.
            if any(not is_pattern(name) and name in self._topics for name in error.topics):
                raise
            topics = {}
        absent = self._known - topics.keys()
        return {**topics, **(lookup.existing(absent) if absent else {})}
