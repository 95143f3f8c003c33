"""A condition under which Dagster itself asks for an asset's missing partitions."""

from __future__ import annotations

from typing import Any

from dagster import AutomationCondition

from kafka_ordered_ops.hosting.arguments import with_known_names


@with_known_names
def catch_up_condition() -> AutomationCondition[Any]:
    """Asks for every partition that is missing, not being materialised, and did not fail last time.

    With the asset's own backfill policy, one run over all that is missing. It looks at Dagster's records alone: a
    partition is asked for as soon as it has ended by the clock, whether or not the topics have come to its end;
    `build_partitions_live_sensor` waits for that. Unlike ``on_cron``, which asks for the newest partition, and
    ``on_missing``, which leaves alone what was missing when it was first evaluated, it takes all.

    For assets with partitions: one without is missing only once.
    """
    return (
        AutomationCondition.missing()
        & ~AutomationCondition.in_progress()
        & ~AutomationCondition.execution_failed()
    ).with_label("catch_up")
