"""Where the log of an older leader's epoch ends today: asked only when a partition has another leader than before.

The client has no call for it. But a consumer that is given an offset together with a leader's epoch has the
broker compare the two before it fetches, and says what it found: the log is cut, and where. So each partition is
assigned, and its first sign of life awaited: a record, the end of the partition, or that error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import BrokerUnreachableError
from kafka_ordered_ops.core.facts import LogClaim
from kafka_ordered_ops.core.types import Isolation, TopicPartition
from kafka_ordered_ops.kafka.calls import Deadline, within
from kafka_ordered_ops.kafka.faults import FaultReasons, open_client, translate
from kafka_ordered_ops.kafka.settings import ClientSettings

#: One wait for a sign of life.
_POLL_S: Final = 0.2
#: What the client says when the log was cut; where it says so in other words, nothing of the log is believed.
_CUT: Final = re.compile(r"truncation detected .*broker end offset is (\d+)")
_NONE_LEFT: Final = "No epoch found less or equal to"
#: What passes by itself while leaders change.
_PASSING: Final = frozenset(
    {
        ck.KafkaError._TRANSPORT,
        ck.KafkaError._ALL_BROKERS_DOWN,
        ck.KafkaError._TIMED_OUT,
        ck.KafkaError.LEADER_NOT_AVAILABLE,
        ck.KafkaError.NOT_LEADER_FOR_PARTITION,
        ck.KafkaError.FENCED_LEADER_EPOCH,
        ck.KafkaError.UNKNOWN_LEADER_EPOCH,
        ck.KafkaError.OFFSET_NOT_AVAILABLE,
        ck.KafkaError.REPLICA_NOT_AVAILABLE,
    }
)


def diverged(
    settings: ClientSettings,
    group: str,
    claims: Mapping[TopicPartition, LogClaim],
    *,
    timeout_s: float,
) -> dict[TopicPartition, int]:
    """Of logs that are not what is believed of them, the offsets up to which they are.

    Args:
        settings: of the cluster.
        group: any reader's rights do; the group's own are there.
        claims: that everything below an offset was there under a leader of an epoch.
        timeout_s: for all of them together.

    Raises:
        BrokerUnreachableError: no answer in time.
        BrokerError: the broker refuses.
    """
    if not claims:
        return {}
    reasons = FaultReasons(settings.secret_values())
    config = settings.consumer(
        group=group,
        isolation=Isolation.READ_UNCOMMITTED,
        enable_partition_eof=True,
        # Any sign of life will do.
        max_partition_fetch_bytes=1,
        queued_min_messages=1,
        fetch_wait_max_ms=10,
    )
    consumer = open_client(ck.Consumer, config, reasons)
    try:
        consumer.assign(
            [
                ck.TopicPartition(tp.topic, tp.partition, one.end, leader_epoch=one.leader_epoch)
                for tp, one in claims.items()
            ]
        )
        return _await_all(consumer, claims, reasons, within(timeout_s))
    finally:
        consumer.close()


def _await_all(
    consumer: ck.Consumer,
    claims: Mapping[TopicPartition, LogClaim],
    reasons: FaultReasons,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    doing = "comparing logs with their leaders' epochs"
    found: dict[TopicPartition, int] = {}
    waiting = set(claims)
    while waiting:
        message = consumer.poll(_POLL_S)
        reasons.raise_if_hopeless(doing=doing, where=str(min(waiting)))
        if deadline.is_over:
            raise BrokerUnreachableError(
                f"{doing}: no answer about {min(waiting)} ({len(waiting)} partitions in all) in time; a leader may "
                "be missing. Try again",
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
            if (cut := _cut_of(error.str())) is not None:
                found[tp] = min(cut, claims[tp].end)
        else:
            raise translate(error, doing=doing, where=str(tp), reasons=reasons)
    return found


def _cut_of(text: str) -> int | None:
    """Where a log was cut; None: it was not, and the offset lies below the log start or beyond the end."""
    if (match := _CUT.search(text)) is not None:
        return int(match[1])
    return 0 if _NONE_LEFT in text or "truncation" in text else None
