"""A condition under which Dagster itself requests an asset's missing partitions."""

from __future__ import annotations

from typing import Any

from dagster import AutomationCondition

from kafka_ordered_ops.delivery.arguments import with_known_names


@with_known_names
def catch_up_condition() -> AutomationCondition[Any]:
    """Request every partition that is missing, not in progress, and did not fail last time.

    With the asset's own backfill policy, this is one run over all missing partitions. The condition uses Dagster's
    records only: it requests a partition as soon as it has ended by the clock, whether or not the topics have reached
    its end. `build_partitions_live_sensor` waits for that. ``on_cron`` requests only the newest partition, and
    ``on_missing`` ignores partitions that were missing at its first evaluation; this condition requests all.

    Use it for assets with partitions: an asset without partitions is missing only once.
    """
    return (
        AutomationCondition.missing()
        & ~AutomationCondition.in_progress()
        & ~AutomationCondition.execution_failed()
    ).with_label("catch_up")
