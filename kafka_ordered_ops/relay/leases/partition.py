"""One partition in a server: the state of its log, and whether this server hands out its records."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Final

from kafka_ordered_ops.core.errors import KafkaOrderedOpsError, TopicRecreatedError
from kafka_ordered_ops.core.relay.log_records import Owned
from kafka_ordered_ops.core.relay.state import PartitionState
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.relay.leases.handout import Handout

#: A claim that is not in the log after this time is repeated.
CLAIM_AGAIN_S: Final = 15.0
#: If another server claims a partition that is assigned to this one, one of the two learns of a change late. If nothing
#: changes for this time, the other claim is an old one that was stored late.
RECLAIM_S: Final = 3.0


class Claim(StrEnum):
    """The state of this server's claim of a partition."""

    NONE = "none"
    #: Written, but not read back.
    MADE = "made"
    #: Read back, without a newer claim before it.
    HELD = "held"
    #: A newer claim of another server was read.
    LOST = "lost"


class Partition:
    """One partition. For one thread."""

    def __init__(self, tp: TopicPartition, server_id: str, topic_id: str) -> None:
        self.tp = tp
        self.state = PartitionState()
        self.topic_id = topic_id
        self._server_id = server_id
        #: The start and end offsets of the log when its reading began; None if not known yet.
        self.replay_from: int | None = None
        self.replay_to = 0
        #: The next offset of the log.
        self.position = 0
        #: The end offset of the topic's own partition at the last look; None if not known yet.
        self.topic_end: int | None = None
        #: The number of the current reading of the log.
        self.number = 0
        #: Whether the group has assigned the partition to this server.
        self.is_assigned = False
        self.claim = Claim.NONE
        self._epoch = 0
        self._again_at = 0.0
        self.problem: KafkaOrderedOpsError | None = None
        #: By client group.
        self.handouts: dict[str, Handout] = {}
        #: Groups whose start is being looked up or written.
        self.opening: set[str] = set()
        #: The position of the newest snapshot.
        self.snapshot_at = 0
        self.is_trimming = False

    @property
    def is_replayed(self) -> bool:
        """Whether the log was read to the end offset that it had at the start."""
        return self.replay_from is not None and self.position >= self.replay_to

    @property
    def replayed(self) -> int:
        """How many records up to that end have been read."""
        return max(min(self.position, self.replay_to) - (self.replay_from or 0), 0)

    @property
    def replayed_of(self) -> int | None:
        """How many records there were up to that end; None if not known yet."""
        return None if self.replay_from is None else max(self.replay_to - self.replay_from, 0)

    @property
    def is_known(self) -> bool:
        """Whether its log need not be waited for: it was read, or cannot be read."""
        return self.is_replayed or self.problem is not None

    @property
    def is_followed(self) -> bool:
        """Whether this server may own the partition, and so must see each record of its log."""
        return self.is_assigned and self.is_replayed

    @property
    def is_mine(self) -> bool:
        """Whether this server hands out its records."""
        return self.is_assigned and self.claim is Claim.HELD and self.problem is None

    @property
    def is_claim_due(self) -> bool:
        """Whether this server should own the partition, and does not."""
        if not self.is_assigned or not self.is_replayed or self.claim is Claim.HELD:
            return False
        return self.claim is Claim.NONE or time.monotonic() >= self._again_at

    def make_claim(self) -> Owned | None:
        """Return a claim to write now; None if the topic was recreated."""
        now, owner = time.monotonic(), self.state.owner()
        if owner is not None and owner.topic_id != self.topic_id:
            self.problem = _recreated(self.tp, expected=owner.topic_id, actual=self.topic_id)
            self._again_at, self.claim = now + CLAIM_AGAIN_S, Claim.LOST
            return None
        self._epoch = 1 if owner is None else owner.epoch + 1
        self.claim, self._again_at = Claim.MADE, now + CLAIM_AGAIN_S
        return Owned(self._epoch, self._server_id, self.topic_id)

    @property
    def epoch(self) -> int:
        """The epoch of this server's claim."""
        return self._epoch

    def claim_failed(self) -> None:
        """Repeat the claim, which may not be stored."""
        if self.claim is Claim.MADE:
            self._again_at = time.monotonic()

    def saw_claim(self, claim: Owned) -> bool:
        """Process any server's claim from the log; return whether this server has just lost the partition."""
        if self.claim is Claim.MADE and claim.server_id == self._server_id:
            if claim.epoch == self._epoch:
                self.claim = Claim.HELD if self._is_newest() else Claim.NONE
            return False
        return self.check_claim()

    def check_claim(self) -> bool:
        """Return whether this server has just lost the partition to a newer claim."""
        if self.claim is Claim.HELD and not self._is_newest():
            self.claim, self._again_at = Claim.LOST, time.monotonic() + RECLAIM_S
            return True
        return False

    def _is_newest(self) -> bool:
        owner = self.state.owner()
        return (
            owner is not None
            and owner.server_id == self._server_id
            and owner.epoch == self._epoch
            and self.is_assigned
        )

    def recreated(self, topic_id: str) -> None:
        """Set the topic's new id: the next claim detects that the log is about another topic."""
        self.topic_id, self.claim = topic_id, Claim.NONE

    def gain(self) -> None:
        """Record that the group has assigned the partition to this server."""
        self.is_assigned, self.claim = True, Claim.NONE

    def lose(self) -> None:
        """Record that the group has revoked the partition, and stop handing out records."""
        self.is_assigned, self.claim = False, Claim.NONE
        self.drop()

    def drop(self) -> None:
        """Drop the records that were read for handing out."""
        for handout in self.handouts.values():
            handout.close()
        self.handouts.clear()
        self.opening.clear()


def _recreated(tp: TopicPartition, *, expected: str, actual: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"{tp}: the relay's log is about the topic with the id {expected}, and the topic has the id {actual}: it was "
        "deleted and recreated. Delete the topic of the log as well, and start the servers again",
        topic=tp.topic,
        expected_id=expected,
        found_id=actual,
    )
