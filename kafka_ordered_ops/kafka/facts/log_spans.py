"""Where logs begin and end, as facts that agree with each other.

Start and ends are two questions, and a leader may change in between. An end below the start is no empty log: it
is two answers about different states, and both are asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from kafka_ordered_ops.core.cluster_facts import LogEnd
from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.answers import no_answer
from kafka_ordered_ops.kafka.client.calls import waits_for, within
from kafka_ordered_ops.kafka.ports import LookupDoor

#: Answers that contradict each other are asked again this long: a leader's election takes less.
AGREE_TIMEOUT_S: Final = 10.0
_PAUSE_S: Final = 0.2

_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Where one log begins and ends, asked in this order."""

    start: int
    #: Last stable offset under read_committed, high watermark otherwise.
    end: int
    #: The high watermark, and the epoch of the leader that answered.
    log_end: LogEnd

    @property
    def contradiction(self) -> str | None:
        """The contradiction in these answers, if they cannot come from one state of the log."""
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
    """Return where the logs begin and end.

    The high watermark is asked last: records of open transactions lie between it and the end. `epochs` are
    those of leaders that were seen before: an older leader that answers has not noticed its successor.

    Raises `BrokerUnreachableError` if the answers keep contradicting each other.
    """
    seen = epochs or {}

    def contradictions(found: Mapping[TopicPartition, LogSpan]) -> dict[TopicPartition, str]:
        return {
            tp: told
            for tp, one in found.items()
            if (told := one.contradiction or outdated(one.log_end, seen.get(tp))) is not None
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
    """Return where the logs end, from no older leaders than those that were seen before.

    Raises `BrokerUnreachableError` if older leaders keep answering.
    """
    return agreed(
        "looking up where logs end",
        lambda: lookup.log_ends(partitions),
        lambda found: {
            tp: told
            for tp, end in found.items()
            if (told := outdated(end, epochs.get(tp))) is not None
        },
    )


def outdated(end: LogEnd, seen_epoch: int | None) -> str | None:
    """Return the fault of an answer from an older leader than one seen before.

    A node that was suspended acts as a leader for a moment, without its successor's records.
    """
    if end.leader_epoch is None or seen_epoch is None or end.leader_epoch >= seen_epoch:
        return None
    return f"a leader of epoch {end.leader_epoch} answers, and epoch {seen_epoch} was seen before"


def agreed(
    doing: str,
    gather: Callable[[], _Facts],
    contradictions: Callable[[_Facts], Mapping[TopicPartition, str]],
) -> _Facts:
    """Gather facts again until they have no contradictions.

    Raises `BrokerUnreachableError` when that takes too long.
    """
    deadline, where, told = within(AGREE_TIMEOUT_S), "", ""
    while True:
        try:
            facts = gather()
        except BrokerUnreachableError as error:
            if told:
                raise no_answer(doing, where, told) from error
            raise
        wrong = contradictions(facts)
        if not wrong:
            return facts
        tp, how = next(iter(sorted(wrong.items())))
        where, told = str(tp), f"the answers contradict each other: {how}"
        waits_for(f"{doing} ({where}: {told})")
        if deadline.is_over:
            raise no_answer(doing, where, told)
        time.sleep(min(_PAUSE_S, deadline.left_s))
