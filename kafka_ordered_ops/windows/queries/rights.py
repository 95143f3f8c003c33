"""May this principal plan and commit windows of a group? Asked before the first one is."""

from __future__ import annotations

from kafka_ordered_ops.core.group.ledger_rules import LEDGER_TOPIC
from kafka_ordered_ops.core.rights import MissingRight
from kafka_ordered_ops.kafka.client import calls
from kafka_ordered_ops.kafka.rights import RightsCheck
from kafka_ordered_ops.kafka.settings import ClientSettings


def missing_rights(
    settings: ClientSettings,
    group_id: str | None,
    *,
    ledger_topic: str = LEDGER_TOPIC,
    timeout_s: float,
) -> list[MissingRight]:
    """Return the rights that are missing to plan and commit windows of a group; none if all are there.

    The right to read a topic shows when a window is planned. Nothing is changed, and the group's running
    windows are not disturbed. Without a group only the cluster, the ledger and transactions are asked about.

    Raises:
        BrokerError: and its kinds; the cluster cannot be reached within `timeout_s`, or refuses the
            credentials.
        ConfigError: the client refuses the settings.
    """
    if settings.memory_name is not None:
        return []
    with calls.call("asking for rights", timeout_s):
        check = RightsCheck(settings, timeout_s=timeout_s)
        check.cluster_id()
        return [
            *([] if group_id is None else check.missing_on_group(group_id)),
            *check.missing_on_ledger(ledger_topic),
            *check.missing_on_transactions(),
        ]
