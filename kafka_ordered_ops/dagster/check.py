"""Separate asset checks: have the topics' partitions reached the end of an asset's window, and do windows of its group hold records?"""

# Without postponed annotations: Dagster reads the type of a step's context.

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetsDefinition,
    TimeWindowPartitionsDefinition,
    asset_check,
)

from kafka_ordered_ops.core.arguments import as_span
from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.times import time_ms, time_text
from kafka_ordered_ops.dagster.assets.registry import WindowAsset, window_asset
from kafka_ordered_ops.dagster.metadata.tables import partitions_table
from kafka_ordered_ops.dagster.step.delivery import errors_for_dagster
from kafka_ordered_ops.dagster.step.times import in_ms, times_of
from kafka_ordered_ops.delivery.arguments import with_known_names
from kafka_ordered_ops.spec.asked import span_of

if TYPE_CHECKING:
    from kafka_ordered_ops.core.liveness.liveness import Liveness
    from kafka_ordered_ops.dagster.resource import KafkaResource

#: The check in an asset's own step covers the delivered window and has another name.
CHECK_NAME: Final = "topics_live"

HELD_CHECK_NAME: Final = "no_windows_held"


@with_known_names
def partitions_live_check(
    asset: AssetsDefinition,
    *,
    name: str = CHECK_NAME,
    lag: timedelta | None = None,
    blocking: bool = True,
) -> AssetChecksDefinition:
    """Return a check that all Kafka partitions of an asset's topics have reached a cutoff.

    In a run with partitions, the cutoff is the end of the last partition. In other runs it is the end of the newest
    partition that has ended, or, for an asset without partitions, the current time. `lag` sets the current time back.

    The check fails as an error and blocks downstream assets of the same run. With ``blocking=False`` it only warns.

    The check reads the logs as they are now. For an old partition, retention may have deleted the record that proved
    it live.

    Args:
        asset: the result of `ordered_window_asset` or `build_ordered_window_asset`.
        name: the name of the check. The check in the asset's own step is called ``partitions_live``.
        lag: how far the records may be behind the clock; required for assets without partitions.
        blocking: whether a failure is an error that blocks downstream assets, or a warning.

    Raises:
        ConfigError: an asset not built by this package, a negative lag, or no lag for an asset without partitions.
    """
    definition = window_asset(asset)
    if definition.partitions_def is None and lag is None:
        raise ConfigError(
            f"{definition.key.to_user_string()} has no partitions: give lag=, since no record is stamped at or after "
            "the current time"
        )
    if lag is not None and lag < timedelta(0):
        raise ConfigError(f"lag {lag} is negative")

    @asset_check(
        asset=definition.key,
        name=name,
        description="Every Kafka partition has a record stamped at or after the end of the window, or is idle. "
        + (
            "A failure blocks downstream assets."
            if blocking
            else "A failure only warns: downstream assets run."
        ),
        blocking=blocking,
        required_resource_keys={definition.kafka_resource},
    )
    def check(context: AssetCheckExecutionContext) -> AssetCheckResult:
        kafka: KafkaResource = getattr(context.resources, definition.kafka_resource)
        now = datetime.now(UTC) - (lag or timedelta(0))
        with errors_for_dagster():
            key, cutoff = _cutoff(definition, context.run.tags, now)
        if cutoff is None:
            return AssetCheckResult(passed=True, description="no partition has ended yet")
        with errors_for_dagster(definition.settings.group_id):
            liveness = _liveness(definition, kafka, cutoff)
        return AssetCheckResult(
            passed=liveness.is_live,
            severity=AssetCheckSeverity.ERROR if blocking else AssetCheckSeverity.WARN,
            description=f"{key or 'the window'}: {liveness}",
            metadata={
                "cutoff": time_text(time_ms(cutoff, what="cutoff")),
                "partitions": partitions_table(liveness),
            },
        )

    checks: AssetChecksDefinition = check
    return checks


@with_known_names
def windows_held_check(
    asset: AssetsDefinition, *, name: str = HELD_CHECK_NAME, age: timedelta | None = None
) -> AssetChecksDefinition:
    """Return a check that fails while windows of an asset's group hold records, and no attempt works on them.

    These are windows of runs that failed or were ended, and committed windows whose output is not published. Other
    partitions succeed beside them. The check only reads the ledger: schedule it in a separate job. It blocks nothing.

    Args:
        asset: the result of `ordered_window_asset` or `build_ordered_window_asset`.
        name: the name of the check.
        age: how long an open window may stay untouched: more than a step takes. By default the `claim_age` of the asset's
            policy.

    Raises:
        ConfigError: an asset not built by this package, or an invalid age.
    """
    definition = window_asset(asset)
    expected = as_span(definition.settings.policy.claim_age if age is None else age, what="age")

    @asset_check(
        asset=definition.key,
        name=name,
        description="No window of the consumer group holds records that readers do not have, while no attempt works on it.",
        required_resource_keys={definition.kafka_resource},
    )
    def check(context: AssetCheckExecutionContext) -> AssetCheckResult:
        kafka: KafkaResource = getattr(context.resources, definition.kafka_resource)
        with (
            errors_for_dagster(definition.settings.group_id),
            kafka.open_windows(definition.settings.group_id) as windows,
        ):
            notes = windows.left_notes(expected)
        return AssetCheckResult(passed=not notes, description=". ".join(notes) or None)

    checks: AssetChecksDefinition = check
    return checks


def _liveness(definition: WindowAsset, kafka: "KafkaResource", cutoff: datetime) -> "Liveness":
    from kafka_ordered_ops.windows.queries.group_watch import GroupWatch

    settings = definition.settings
    with GroupWatch(
        kafka.client_settings(), settings.group_id, ledger_topic=kafka.ledger_topic
    ) as watch:
        return watch.live(
            settings.untimed_window.at(cutoff), grace=span_of(settings.grace, "grace")
        )


def _cutoff(
    definition: WindowAsset, tags: Mapping[str, str], now: datetime
) -> tuple[str | None, datetime | None]:
    """Return the partition to check and its end; both are None if no partition has ended."""
    partitions_def = definition.partitions_def
    if not isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return None, in_ms(now)
    # In some versions of Dagster a check has no partitions, but its run may have them.
    key = tags.get("dagster/partition") or tags.get("dagster/asset_partition_range_end")
    if key is None:
        newest_first = reversed(partitions_def.get_partition_keys(now))
        windows = ((name, times_of(partitions_def, name)) for name in newest_first)
        key = next((name for name, times in windows if times.end <= now), None)
        if key is None:
            return None, None
    return key, times_of(partitions_def, key).end
