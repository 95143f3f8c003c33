"""Look up consistent start and end offsets of logs.

Start and end offsets are two requests, and a leader may change in between. An end below the start does not mean an empty
log: the two answers are about different states, and both requests are repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from kafka_ordered_ops.core.cluster.cluster_facts import LogEnd
from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import no_answer
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.ports import LookupDoor

#: How long requests with contradicting answers are repeated: a leader election takes less.
AGREE_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.2

_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The start and the ends of one log, requested in this order."""

    start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end: int
    #: The high watermark, and the epoch of the leader that answered.
    log_end: LogEnd

    @property
    def contradiction(self) -> str | None:
        """A text on the contradiction, if these answers cannot come from one state of the log."""
        if self.start <= self.end <= self.log_end.offset:
            return None
        return (
            f"the log starts at {self.start}, its readable end is {self.end}, and it ends at "
            f"{self.log_end.offset}"
        )


def log_spans(
    lookup: LookupDoor,
    partitions: Collection[TopicPartition],
    isolation: Isolation,
    epochs: Mapping[TopicPartition, int] | None = None,
) -> dict[TopicPartition, LogSpan]:
    """Return the start and end offsets of logs.

    The high watermark is requested last: records of open transactions are between the end and the high watermark.
    `epochs` are the leaders' epochs seen before: an older leader that answers has not noticed its successor.

    Raises `BrokerUnreachableError` if the answers keep contradicting each other.
    """
    seen = epochs or {}

    def contradictions(spans: Mapping[TopicPartition, LogSpan]) -> dict[TopicPartition, str]:
        return {
            tp: fault
            for tp, span in spans.items()
            if (fault := span.contradiction or outdated(span.log_end, seen.get(tp))) is not None
        }

    def gather() -> dict[TopicPartition, LogSpan]:
        starts = lookup.log_starts(partitions)
        ends = lookup.end_offsets(partitions, isolation)
        log_ends = lookup.log_ends(partitions)
        return {tp: LogSpan(starts[tp], ends[tp], log_ends[tp]) for tp in partitions}

    return agreed(
        "looking up where logs begin and end",
        gather,
        contradictions,
    )


def log_ends(
    lookup: LookupDoor,
    partitions: Collection[TopicPartition],
    epochs: Mapping[TopicPartition, int],
) -> dict[TopicPartition, LogEnd]:
    """Return the ends of logs, from leaders that are not older than those seen before.

    Raises `BrokerUnreachableError` if older leaders keep answering.
    """
    return agreed(
        "looking up where logs end",
        lambda: lookup.log_ends(partitions),
        lambda ends: {
            tp: fault
            for tp, end in ends.items()
            if (fault := outdated(end, epochs.get(tp))) is not None
        },
    )


def outdated(end: LogEnd, seen_epoch: int | None) -> str | None:
    """Return a text on the fault if an answer is from an older leader than one seen before.

    A resumed node may act as the leader for a moment, without its successor's records.
    """
    if end.leader_epoch is None or seen_epoch is None or end.leader_epoch >= seen_epoch:
        return None
    return f"a leader of epoch {end.leader_epoch} answers, and epoch {seen_epoch} was seen before"


def agreed(
    doing: str,
    gather: Callable[[], _Facts],
    contradictions: Callable[[_Facts], Mapping[TopicPartition, str]],
) -> _Facts:
    """Gather facts, and repeat until they have no contradictions.

    Raises `BrokerUnreachableError` if that takes too long.
    """
    deadline, where, reason = within(AGREE_TIMEOUT_S), "", ""
    while True:
        try:
            facts = gather()
        except BrokerUnreachableError as error:
            if reason:
                raise no_answer(doing, where, reason) from error
            raise
        wrong = contradictions(facts)
        if not wrong:
            return facts
        tp, how = next(iter(sorted(wrong.items())))
        where, reason = str(tp), f"the answers contradict each other: {how}"
        waits_for(f"{doing} ({where}: {reason})")
        if deadline.is_over:
            raise no_answer(doing, where, reason)
        time.sleep(min(_PAUSE_S, deadline.left_s))
