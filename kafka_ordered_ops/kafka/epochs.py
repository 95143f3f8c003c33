"""Find where the log of an older leader's epoch ends; only needed if a partition has a new leader.

The client has no call for this. But if a consumer is assigned an offset with a leader's epoch, the broker compares the two
before a fetch, and the client reports whether and where the log was truncated. So each partition is assigned, and its first
event awaited: a record, the end of the partition, or that error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.cluster.cluster_facts import LogClaim
from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.client.asking import LEADERSHIP_UNSETTLED, RETRY_PAUSE_S
from kafka_ordered_ops.kafka.client.calls import Deadline, within
from kafka_ordered_ops.kafka.client.errors import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.client.interrupts import interruptible
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The wait for one event.
_POLL_S: Final = 0.2
#: The client's message about a truncated log; after any other wording, the whole log counts as changed.
_CUT: Final = re.compile(r"truncation detected .*broker end offset is (\d+)")
#: The client's message if the broker does not know the requested epoch. Every leader knows its own epoch, so this is an older
#: leader that has not noticed its successor. The request is repeated.
_NO_EPOCH: Final = "No epoch found less or equal to"
#: Temporary errors while leaders change.
_PASSING: Final = LEADERSHIP_UNSETTLED | {
    ck.KafkaError._TRANSPORT,
    ck.KafkaError._ALL_BROKERS_DOWN,
    ck.KafkaError._TIMED_OUT,
}


def diverged(
    settings: ClientSettings,
    group_id: str,
    claims: Mapping[TopicPartition, LogClaim],
    *,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Return the claims about logs that are wrong, each with the offset up to which the log is unchanged.

    Args:
        settings: the settings of the cluster.
        group_id: the group to read as: any group with the right to read would do.
        claims: each claims that everything below an offset was in the log of a leader's epoch.
        timeout_s: the time limit for all of them together.

    Raises:
        BrokerUnreachableError: there was no answer in time.
        BrokerError: the broker refuses the request.
    """
    deadline, all_cuts, waiting = within(timeout_s), dict[TopicPartition, int](), dict(claims)
    while waiting:
        cuts, waiting = _look(settings, group_id, waiting, deadline)
        all_cuts |= cuts
        if waiting:
            # Retried over a new connection, with new metadata: the new leader may answer.
            time.sleep(min(RETRY_PAUSE_S, deadline.left_s))
    return all_cuts


def _look(
    settings: ClientSettings,
    group_id: str,
    claims: Mapping[TopicPartition, LogClaim],
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, LogClaim]]:
    """Return the cuts, and the claims that could not be decided yet."""
    reasons = FaultReasons(settings.secret_values())
    config = settings.consumer(
        group_id=group_id,
        isolation=Isolation.READ_UNCOMMITTED,
        enable_partition_eof=True,
        # Any event is enough.
        max_partition_fetch_bytes=1,
        queued_min_messages=1,
        fetch_wait_max_ms=10,
    )
    consumer = open_client(ck.Consumer, config, reasons)
    try:
        consumer.assign(
            [
                ck.TopicPartition(
                    tp.topic, tp.partition, claim.end, leader_epoch=claim.leader_epoch
                )
                for tp, claim in claims.items()
            ]
        )
        return _await_all(consumer, claims, reasons, deadline)
    finally:
        consumer.close()


def _await_all(
    consumer: ck.Consumer,
    claims: Mapping[TopicPartition, LogClaim],
    reasons: FaultReasons,
    deadline: Deadline,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, LogClaim]]:
    doing = "comparing logs with their leaders' epochs"
    cuts: dict[TopicPartition, int] = {}
    unjudged: dict[TopicPartition, LogClaim] = {}
    waiting = set(claims)
    while waiting:
        with interruptible():
            message = consumer.poll(_POLL_S)
        reasons.raise_if_hopeless(doing=doing, where=str(min(waiting)))
        if deadline.is_over:
            raise BrokerUnreachableError(
                f"{doing}: no answer about {min(waiting)} ({len(waiting)} partitions in all) in time; a leader may "
                "be missing. Retry",
                code="_TIMED_OUT",
            )
        if message is None:
            continue
        error, topic, partition = message.error(), message.topic(), message.partition()
        if error is not None and error.code() in _PASSING:
            continue
        if topic is None or partition is None:
            if error is not None:
                raise translate(error, doing=doing, where=str(min(waiting)), reasons=reasons)
            continue
        tp = TopicPartition(topic, partition)
        if error is None or error.code() == ck.KafkaError._PARTITION_EOF:
            waiting.discard(tp)
        elif error.code() in (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError._LOG_TRUNCATION):
            waiting.discard(tp)
            if _NO_EPOCH in error.str():
                unjudged[tp] = claims[tp]
            elif (cut := _cut_of(error.str())) is not None:
                cuts[tp] = min(cut, claims[tp].end)
        else:
            raise translate(error, doing=doing, where=str(tp), reasons=reasons)
    return cuts, unjudged


def _cut_of(text: str) -> int | None:
    """Return where a log was cut; None if it was not, and the offset is outside the log."""
    if (match := _CUT.search(text)) is not None:
        return int(match[1])
    return 0 if "truncation" in text else None
