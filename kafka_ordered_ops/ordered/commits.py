"""Commits of a member of a live group: the first unprocessed offset of each partition."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kafka_ordered_ops.core.errors import CommitError, CommitRefusedError, KafkaOrderedOpsError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import MembershipDoor

#: No longer than this: during a rebalance a commit waits, and reading with it.
COMMIT_TIMEOUT_S: Final = 5.0
#: The pause before the last commit is retried, if a rebalance refused it.
_REFUSED_PAUSE_S: Final = 0.05

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one member.

    Args:
        member: the member that owns the partitions.
        interval_s: the minimum time between two commits.
        done: returns the first unprocessed offset of each partition.
    """

    def __init__(
        self,
        member: MembershipDoor,
        interval_s: float,
        done: Callable[[], Mapping[TopicPartition, int]],
    ) -> None:
        self._member = member
        self._interval_s = interval_s
        self._done = done
        self._committed: dict[TopicPartition, int] = {}
        self._due_at = time.monotonic()

    def stored(self, tp: TopicPartition) -> int | None:
        """Return this member's last commit for a partition; `None` if there is none."""
        return self._committed.get(tp)

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that is no longer read: other members may commit for it from now on."""
        self._committed.pop(tp, None)

    def now(self) -> None:
        """Commit; raise the `CommitError` family."""
        self._commit(self._done())

    def if_due(self) -> None:
        """Commit if a commit is due; a refused or unanswered commit is retried at the next interval."""
        began = time.monotonic()
        if began < self._due_at:
            return
        try:
            self.now()
        except CommitError as error:
            if not error.retriable:
                raise
            _log.info("the commit is retried: %s", error)
        # While the group rebalances, spend at most half of the time waiting for answers.
        now = time.monotonic()
        self._due_at = now + max(self._interval_s, now - began)

    def before_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the revoked partitions, so that their next owner continues there."""
        done = self._done()
        try:
            self._commit({tp: done[tp] for tp in partitions if tp in done})
        except KafkaOrderedOpsError as error:
            # The next owner reads from the last commit. A permanent error is raised by this member's next commit.
            _log.warning("the progress of revoked partitions is not committed: %s", error)

    def commit_starts(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the first offset of a recreated topic's partitions.

        The last commit may already have been stored for the new topic: a reader that starts there would skip its first
        records.
        """
        mine = self._member.assignment
        starts = {tp: 0 for tp in partitions if tp in mine and tp in self._committed}
        try:
            if starts:
                self._member.commit(starts, timeout_s=COMMIT_TIMEOUT_S)
        except KafkaOrderedOpsError as error:
            _log.warning(
                "offsets of the old topic may be committed for the new one, in %s: %s",
                ", ".join(map(str, starts)),
                error,
            )

    def at_end(self, *, quietly: bool) -> None:
        """Make the last commit; `quietly` raises nothing, because another error is being raised."""
        mine = set(self._member.assignment)
        try:
            commit_after_rebalance(
                self._member,
                lambda: self._commit({tp: end for tp, end in self._done().items() if tp in mine}),
                # A partition that comes back may have belonged to another member meanwhile.
                mine.difference_update,
                timeout_s=0.0 if quietly else COMMIT_TIMEOUT_S,
            )
        except KafkaOrderedOpsError as error:
            if not (quietly or error.retriable):
                raise
            _log.warning("the last commit failed, and its records will be read again: %s", error)

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        mine = self._member.assignment
        moved = {
            tp: offset
            for tp, offset in offsets.items()
            if tp in mine and self._committed.get(tp) != offset
        }
        if moved:
            self._member.commit(moved, timeout_s=COMMIT_TIMEOUT_S)
            self._committed.update(moved)


def commit_after_rebalance(
    member: MembershipDoor,
    commit: Callable[[], None],
    on_lost: Callable[[frozenset[TopicPartition]], None],
    *,
    timeout_s: float,
) -> None:
    """Make the last commit; retry it while the group rebalances, so that the next owners do not read the records again.

    Args:
        member: the member that owns the partitions.
        commit: makes the commit; raises the `CommitError` family.
        on_lost: called with the partitions that are lost meanwhile.
        timeout_s: how long to wait.
    """
    ends_at = time.monotonic() + timeout_s
    while True:
        try:
            return commit()
        except CommitRefusedError:
            if time.monotonic() >= ends_at:
                raise
        if (change := member.poll()) is not None:
            on_lost(change.lost)
        time.sleep(_REFUSED_PAUSE_S)
