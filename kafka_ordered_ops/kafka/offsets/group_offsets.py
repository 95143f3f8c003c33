"""Set the committed offsets of an empty consumer group, as an administrator does.

The broker itself refuses this for a group with live members. The offsets carry no metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import confluent_kafka as ck

from kafka_ordered_ops.core.errors import GroupInUseError
from kafka_ordered_ops.core.types import TopicPartition
from kafka_ordered_ops.kafka.client.asking import Asker, Rules
from kafka_ordered_ops.kafka.client.calls import within
from kafka_ordered_ops.kafka.client.errors import FaultReasons
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.offsets.committed_offsets import (
    COMMIT_SLICE_S,
    CommittedOffset,
    batches,
)
from kafka_ordered_ops.kafka.settings import ClientSettings

#: The brokers' errors for a group with live members.
_IN_USE = Rules(
    frozenset(
        {
            ck.KafkaError.UNKNOWN_MEMBER_ID,
            ck.KafkaError.NON_EMPTY_GROUP,
            ck.KafkaError.REBALANCE_IN_PROGRESS,
        }
    )
)


def set_committed_offsets(
    settings: ClientSettings,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Set committed offsets of a group without metadata. Repeating it changes nothing.

    Raises:
        GroupInUseError: the group has live members. Nothing was changed.
        BrokerError: the cluster refuses, or does not answer within `timeout_s`; then some offsets may be set.
    """
    deadline = within(timeout_s)
    reasons = FaultReasons(settings.secret_values())
    with closing(Asker(settings, reasons)) as asker:
        for batch in batches({tp: CommittedOffset(at) for tp, at in offsets.items()}):
            _set(asker, group_id, batch, max(deadline.left_s, COMMIT_SLICE_S))


def _set(
    asker: Asker,
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    timeout_s: float,
) -> None:
    partitions = [
        ck.TopicPartition(tp.topic, tp.partition, committed.offset)
        for tp, committed in offsets.items()
    ]
    request = ck.ConsumerGroupTopicPartitions(group_id, partitions)

    def ask(keys: list[str], slice_s: float) -> dict[str, Future[Any]]:
        futures: dict[str, Future[Any]] = asker.admin.alter_consumer_group_offsets(
            [request], request_timeout=slice_s
        )
        return futures

    _, refused = asker.ask(
        "setting committed offsets of group", [group_id], ask, _check, _IN_USE, timeout_s
    )
    if refused:
        raise GroupInUseError(
            f"group {group_id} has live members ({refused[group_id].args[0].str()}): its offsets cannot be set. Stop the "
            "members first",
            group_id=group_id,
            members=(),
        )


def _check(answer: Any) -> None:
    """Raise the error of the first refused partition."""
    for partition in answer.topic_partitions:
        if partition.error is not None:
            raise ck.KafkaException(partition.error)
