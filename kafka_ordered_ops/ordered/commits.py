"""What a member of a live group commits: how far its records were returned and done with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kafka_ordered_ops.core.errors import CommitError, CommitRefusedError, KafkaOrderedOpsError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.ports import MembershipDoor

#: Not longer: during a rebalance a commit waits, and records would too.
COMMIT_TIMEOUT_S: Final = 5.0
#: Until a commit that a rebalance refused is tried again, at the end.
_REFUSED_PAUSE_S: Final = 0.05

_log = logging.getLogger(__name__)


class Commits:
    """The commits of one member.

    Args:
        member: whose partitions they are.
        interval_s: the least time between two commits.
        done: returns for each partition the first offset that was not returned and done with.
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

    def forget(self, tp: TopicPartition) -> None:
        """Forget a partition that is read no more: others may commit for it from now on."""
        self._committed.pop(tp, None)

    def now(self) -> None:
        """Commit; raise the `CommitError` family."""
        self._commit(self._done())

    def if_due(self) -> None:
        """Commit if the time has come; a refusal or a missing answer waits for the next time."""
        began = time.monotonic()
        if began < self._due_at:
            return
        try:
            self.now()
        except CommitError as error:
            if not error.retriable:
                raise
            _log.info("the commit is tried again: %s", error)
        # While the group rebalances, at most half of the time is spent on waiting for answers.
        now = time.monotonic()
        self._due_at = now + max(self._interval_s, now - began)

    def before_revocation(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit for partitions that are given up, so that their next owner goes on there."""
        done = self._done()
        try:
            self._commit({tp: done[tp] for tp in partitions if tp in done})
        except KafkaOrderedOpsError as error:
            # Their next owner reads them again from the last commit; what lasts is raised by this member's next one.
            _log.warning(
                "what was read of partitions that are given up is not committed: %s", error
            )

    def begin_anew(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the first offset of partitions of a topic that was made anew.

        The last commit may have been made for the new topic already: a reader that began there would skip its first
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
        """Commit for the last time; `quietly`: raise nothing, for another error is on its way."""
        mine = set(self._member.assignment)
        try:
            commit_after_rebalance(
                self._member,
                lambda: self._commit({tp: end for tp, end in self._done().items() if tp in mine}),
                # One that comes back may have been another member's meanwhile.
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
    """Commit for the last time. While the group rebalances and refuses, wait for it: the next owners would begin again.

    Args:
        member: whose partitions they are.
        commit: makes the commit; raises the `CommitError` family.
        on_lost: gets the partitions that are given up meanwhile.
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
