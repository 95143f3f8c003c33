"""Assets of windows: a decorator, and a builder that needs no function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetDep,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    MaterializeResult,
    PartitionsDefinition,
    RetryPolicy,
    SourceAsset,
    TimeWindowPartitionMapping,
    TimeWindowPartitionsDefinition,
    multi_asset,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.dagster.names import alone_name, op_safe, planned_alone
from kafka_ordered_ops.dagster.registry import WindowAsset, remember
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.checks import check_results, check_specs, partition_results
from kafka_ordered_ops.dagster.step.delivery import Delivered, Step
from kafka_ordered_ops.dagster.step.step_functions import (
    KAFKA,
    Function,
    check_has_place,
    job_without_function,
    step_function,
)
from kafka_ordered_ops.dagster.step.times import check_partitions
from kafka_ordered_ops.dagster.storage import StorageOptions
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator
from kafka_ordered_ops.hosting.arguments import arguments, with_known_names

if TYPE_CHECKING:
    from kafka_ordered_ops.spark import SparkSubmit

#: The dependencies of an asset, in the types of Dagster's own assets.
Dep = AssetKey | str | Sequence[str] | AssetSpec | AssetsDefinition | SourceAsset | AssetDep


@with_known_names
def ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    topics: str | Sequence[str],
    group_id: str,
    starting_offsets: Bound | datetime | str | None = None,
    max_out_of_orderness: timedelta | str | None = None,
    isolation: Isolation | str = Isolation.READ_COMMITTED,
    exclude: str | Sequence[str] = (),
    on_covered: OnCovered | str = OnCovered.AUTO,
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    output: str | None = None,
    storage_options: StorageOptions | None = None,
    partition_by: str | None = None,
    table: str | None = None,
    table_mode: str | None = None,
    table_keys: str | Sequence[str] = (),
    delete_tombstones: bool = False,
    table_conf: Mapping[str, str] | None = None,
    ordered: bool = True,
    engine: str = "python",
    redefine: bool = False,
    partitions_def: PartitionsDefinition[str] | None = None,
    backfill_policy: BackfillPolicy | None = None,
    automation_condition: AutomationCondition[Any] | None = None,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
    serial: bool = False,
    deps: Sequence[Dep] = (),
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    retry_policy: RetryPolicy | None = None,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> Callable[[Function], AssetsDefinition]:
    """Make an asset from a function that delivers windows: ``f(context, windows, ...)``, and resources after them.

    The step checks whether the partitions are live, and plans the windows of its partitions. It calls the function
    once with all windows that are not delivered yet, commits them in one transaction, and then reports to Dagster. A
    step that fails, is killed or is overtaken commits nothing, and the next one takes the same records.

    With partitions by time, a window is a partition's interval and late records: stamped earlier, in an interval that
    was planned before they were written. Without partitions, it is everything before the run began that the group has
    not taken yet.

    Args:
        key: the asset's.
        topics: see `WindowSettings`, also for the arguments that are not named here.
        group_id: the consumer group whose progress the windows are; one asset for each group. Two assets of one group
            in one code location do not load; elsewhere the second one's first plan is refused.
        partitions_def: intervals of time, or None. Without a ``timezone``, Dagster's partitions are in UTC.
        backfill_policy: how a backfill is divided into runs; None: one run, all windows in one pass; for a serial
            asset one run each.
        automation_condition: when Dagster starts runs by itself, for example `catch_up_condition`.
        translator: makes the asset's spec.
        kafka_resource: the name of the `KafkaResource`.
        serial: make each partition depend on the one before it, so that Dagster materializes them one after the other,
            in separate runs. The package does not need this; a function that builds on its output for the partition
            before does.
        deps: assets that it depends on besides its topics; `dagster.asset` has the same.
        description: shown by Dagster.
        group_name: Dagster's group of assets, not a consumer group.
        owners: people by e-mail address, or teams as ``team:data``.
        tags: of the asset.
        retry_policy: attempts of a failed step; errors that no retry can fix are not retried.
        pool: limits steps that run at once; None: no limit, as attempts of a group fence each other.
        options: more arguments of `dagster.multi_asset`.
        cluster: a name for the cluster, if several resources connect to it; None: the resource's name.

    Raises:
        ConfigError: partitions that are not time intervals, or invalid settings.
    """
    made = WindowSettings.among(locals())
    asset_key = AssetKey.from_coercible(key)
    alone = alone_name(made.group_id, cluster or kafka_resource)
    check_partitions(partitions_def, made)
    spec = (translator or KafkaWindowTranslator()).asset_spec(asset_key, made)
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        # Dagster takes partitions without a time zone as UTC, and shows it nowhere.
        zone = {"kafka_ordered_ops/time_zone": partitions_def.timezone}
        spec = spec.merge_attributes(metadata=zone)
    if serial:
        spec = spec.replace_attributes(
            deps=[*spec.deps, _partition_before(asset_key, partitions_def)]
        )
    spec = spec.replace_attributes(
        deps=[*spec.deps, *(AssetDep.from_coercible(one) for one in deps)]
    )
    given = {
        "automation_condition": automation_condition,
        "description": description,
        "group_name": group_name,
        "owners": owners,
        "tags": tags,
    }
    # What is not given is the translator's.
    spec = spec.replace_attributes(
        **{name: value for name, value in given.items() if value is not None}  # type: ignore[arg-type]
    )

    def decorate(function: Function) -> AssetsDefinition:
        def results(
            context: AssetExecutionContext, kafka: KafkaResource, given: dict[str, Any]
        ) -> Iterator[Any]:
            step = Step(context, asset_key, made, partitions_def, kafka)
            found = step.deliver(lambda windows: function(context, windows, **given), function)
            yield from _results_of(context, asset_key, made, found)

        one_each = BackfillPolicy.multi_run() if serial else BackfillPolicy.single_run()
        policy = backfill_policy or one_each
        asset = multi_asset(
            name=op_safe("__".join(asset_key.path)),
            specs=[spec.replace_attributes(partitions_def=partitions_def)],
            check_specs=check_specs(asset_key, made, partitions_def),
            backfill_policy=policy,
            pool=pool,
            **{"retry_policy": retry_policy, **(options or {})},
        )(step_function(function, kafka_resource, results, AssetExecutionContext, marks=[alone]))
        asset = planned_alone(asset, alone)
        run_max = policy.max_partitions_per_run
        about = WindowAsset(asset_key, made, partitions_def, kafka_resource, run_max, serial)
        return remember(asset, about)

    return decorate


@with_known_names
def build_ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    topics: str | Sequence[str],
    group_id: str,
    output: str | None = None,
    storage_options: StorageOptions | None = None,
    partition_by: str | None = None,
    table: str | None = None,
    table_mode: str | None = None,
    table_keys: str | Sequence[str] = (),
    delete_tombstones: bool = False,
    table_conf: Mapping[str, str] | None = None,
    application: str | os.PathLike[str] | None = None,
    application_args: Sequence[str] = (),
    submit: SparkSubmit | None = None,
    starting_offsets: Bound | datetime | str | None = None,
    max_out_of_orderness: timedelta | str | None = None,
    isolation: Isolation | str = Isolation.READ_COMMITTED,
    exclude: str | Sequence[str] = (),
    on_covered: OnCovered | str = OnCovered.AUTO,
    on_open_claim: OnOpenClaim | str = OnOpenClaim.STEP_AROUND,
    on_data_loss: OnDataLoss | str = OnDataLoss.FAIL,
    on_foreign_commit: OnForeignCommit | str = OnForeignCommit.FAIL,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    ordered: bool = True,
    engine: str = "python",
    redefine: bool = False,
    partitions_def: PartitionsDefinition[str] | None = None,
    backfill_policy: BackfillPolicy | None = None,
    automation_condition: AutomationCondition[Any] | None = None,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
    serial: bool = False,
    deps: Sequence[Dep] = (),
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    retry_policy: RetryPolicy | None = None,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
    cluster: str | None = None,
) -> AssetsDefinition:
    """Make an asset without a function: a Spark application writes its windows, or they are copied unchanged.

    Takes the arguments of `ordered_window_asset`, and:

    Args:
        key: the asset's.
        output: the folder for the windows' files, which every process of the job sees. Or give `table`.
        application: a Spark application that gets its windows with `kafka_ordered_ops.spark.current_window`, run by
            spark-submit. None: the records are copied unchanged, as Parquet.
        application_args: its arguments.
        submit: the options of spark-submit.

    Raises:
        ConfigError: neither `output` nor `table`, or arguments for an application, but no application.
    """
    check_has_place(output, table)
    asset = ordered_window_asset(
        **arguments(locals(), own=["application", "application_args", "submit"])
    )
    return asset(job_without_function(application, application_args, submit, table_conf=table_conf))


def _results_of(
    context: AssetExecutionContext, key: AssetKey, settings: WindowSettings, found: Delivered
) -> Iterator[Any]:
    """Yield the report of a delivered step to Dagster."""
    if None in found.by_partition:
        yield MaterializeResult(
            key,
            metadata={**found.by_partition[None], **found.common},
            data_version=found.data_version,
            check_results=check_results(found, settings),
        )
        return
    for name, metadata in found.by_partition.items():
        # With that of the step after it: Dagster shows the metadata of a result first, and repeats it at each partition.
        context.add_asset_metadata({**metadata, **found.common}, key, partition_key=name)
    yield MaterializeResult(key, data_version=found.data_version)
    yield from partition_results(context, key, found, settings)


def _partition_before(key: AssetKey, partitions_def: PartitionsDefinition[str] | None) -> AssetDep:
    if partitions_def is None:
        raise ConfigError("serial=True requires partitions_def")
    return AssetDep(
        key, partition_mapping=TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    )
