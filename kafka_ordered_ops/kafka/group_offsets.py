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
from kafka_ordered_ops.kafka.committed_offsets import COMMIT_SLICE_S, CommittedOffset, batches
from kafka_ordered_ops.kafka.lookup import TIMEOUT_S
from kafka_ordered_ops.kafka.settings import ClientSettings

#: How brokers say that the group has members.
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
    """Set committed offsets of a group, without metadata. Repeating it changes nothing.

    Raises:
        GroupInUseError: the group has live members. Nothing was changed.
        BrokerError: and its kinds; after `timeout_s`, s, without an answer some offsets may be set.
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
    wanted = [ck.TopicPartition(tp.topic, tp.partition, one.offset) for tp, one in offsets.items()]
    asked = ck.ConsumerGroupTopicPartitions(group_id, wanted)

    def ask(keys: list[str], slice_s: float) -> dict[str, Future[Any]]:
        found: dict[str, Future[Any]] = asker.admin.alter_consumer_group_offsets(
            [asked], request_timeout=slice_s
        )
        return found

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
    """Raise the error of the first partition that was refused."""
    for one in answer.topic_partitions:
        if one.error is not None:
            raise ck.KafkaException(one.error)
