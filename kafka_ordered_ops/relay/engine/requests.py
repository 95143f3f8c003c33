"""Slow requests to the cluster: made by threads, answered in the owner's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kafka_ordered_ops.core.cluster.cluster_facts import CommittedOffset, TopicFacts
from kafka_ordered_ops.core.cluster.membership import check_not_of_windows
from kafka_ordered_ops.core.errors import KafkaOrderedOpsError
from kafka_ordered_ops.core.offset_map.reading import DecodePolicy, read_committed_progress
from kafka_ordered_ops.core.offset_set import EMPTY_SET, OffsetSet
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.kafka.ports import (
    open_internal_topics,
    open_lookup,
    open_outside_commits,
    read_committed_offsets,
)
from kafka_ordered_ops.kafka.settings import ClientSettings
from kafka_ordered_ops.ordered.partitions.starts import Starts
from kafka_ordered_ops.relay.log import PREFIX, prepare_topics

#: The timeout of each request.
TIMEOUT_S: Final = 10.0
_THREADS: Final = 2
_PAUSE_S: Final = 0.2

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class Start(NamedTuple):
    """The start of a group in a partition."""

    offset: int
    #: Offsets above the start that are done already.
    done: OffsetSet


class Topics(NamedTuple):
    """The served topics, and those of the log."""

    data: Mapping[str, TopicFacts]
    log: Mapping[str, TopicFacts]


class Requests:
    """Make requests in threads.

    Args:
        settings: how to reach the cluster.
        post: runs a function in the owner's thread.
    """

    def __init__(
        self, settings: ClientSettings, post: Callable[[Callable[[], None]], None]
    ) -> None:
        self._settings, self._post = settings, post
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="relay-requests")

    def close(self) -> None:
        """Start no more requests."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(
        self,
        ask: Callable[[], _Answer],
        answered: Callable[[_Answer], None],
        failed: Callable[[KafkaOrderedOpsError], None],
    ) -> None:
        """Make a request; in the owner's thread, call `answered` with the result or `failed` with the error."""

        def run() -> None:
            try:
                answer = ask()
            except KafkaOrderedOpsError as error:
                if error.retriable:
                    # The caller retries at once.
                    time.sleep(_PAUSE_S)
                self._post(partial(failed, error))
            except Exception:
                # A bug: nobody retrieves what functions raise in the pool.
                _log.exception("a request of the relay failed")
                raise
            else:
                self._post(lambda: answered(answer))

        self._pool.submit(run)

    # --- run in threads ------------------------------------------------------------------------------

    def topics(self, names: frozenset[str]) -> Topics:
        """Describe the topics, and create or grow those of their log; raise `UnknownTopicError` and `BrokerError`."""
        with open_lookup(self._settings, timeout_s=TIMEOUT_S) as lookup:
            data = lookup.topics(names)
            prepare_topics(self._settings, lookup, data, TIMEOUT_S)
            return Topics(data, lookup.existing([PREFIX + name for name in names]))

    def members(self, group: str) -> list[str]:
        """Return a group's members, described for people; raise `BrokerError`."""
        with open_lookup(self._settings, timeout_s=TIMEOUT_S) as lookup:
            return lookup.group_members(group)

    def log_starts(self, partitions: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start and end offsets of logs."""
        with open_lookup(self._settings, timeout_s=TIMEOUT_S) as lookup:
            starts = lookup.log_starts(partitions)
            ends = lookup.end_offsets(partitions, Isolation.READ_UNCOMMITTED)
        return {tp: (starts[tp], ends[tp]) for tp in partitions}

    def ends(
        self, partitions: list[TopicPartition], isolation: Isolation
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions; raise `UnknownTopicError` and `BrokerError`."""
        with open_lookup(self._settings, timeout_s=TIMEOUT_S) as lookup:
            return lookup.end_offsets(partitions, isolation)

    def start_of(
        self, group: str, tp: TopicPartition, bound: Bound, isolation: Isolation, *, is_new: bool
    ) -> Start:
        """Return the start of a group: its committed offset, or the one that the bound determines.

        Args:
            group: the client group.
            tp: the partition.
            bound: starting offsets.
            isolation: which records are visible.
            is_new: whether the partition was added while this server ran, and is read from its start.

        Raises:
            WindowGroupError: the group's commits are those of windows.
            CommittedOffsetMissingError, OffsetMapDecodeError: the group's commits cannot be used.
            BrokerError: the cluster refuses the request, or cannot be reached.
        """
        committed = read_committed_offsets(self._settings, group, [tp], timeout_s=TIMEOUT_S)
        check_not_of_windows(group, committed, keeps_maps=True)
        with open_lookup(self._settings, timeout_s=TIMEOUT_S) as lookup:
            lookup.check_kind(group)
            starts = Starts(lambda _: bound, isolation).of_new(
                lookup,
                [tp],
                () if is_new else (tp,),
                now_ms=int(time.time() * 1_000),
                committed=committed,
            )
            own, done = committed[tp], EMPTY_SET
            if own is not None and own.metadata:
                end = lookup.end_offsets([tp], Isolation.READ_UNCOMMITTED)[tp]
                progress = read_committed_progress(
                    own.offset,
                    own.metadata,
                    end=end,
                    policy=DecodePolicy.FAIL,
                    where=f"group {group}, {tp}",
                )
                done = progress.done or EMPTY_SET
        return Start(starts[tp][0], done)

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Commit a group's progress for monitoring its lag; raise `GroupInUseError` and `BrokerError`."""
        with open_outside_commits(self._settings, group) as commits:
            commits.commit(offsets, timeout_s=TIMEOUT_S)

    def trim(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Delete the log's records below offsets; raise `BrokerError`."""
        with open_internal_topics(self._settings, timeout_s=TIMEOUT_S) as internal:
            internal.delete_before(offsets)
