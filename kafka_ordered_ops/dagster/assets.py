"""Assets of windows: a decorator, and a builder that needs no function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from dagster import (
    AssetDep,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    IOManagerDefinition,
    MaterializeResult,
    PartitionsDefinition,
    RetryPolicy,
    SourceAsset,
    TimeWindowPartitionMapping,
    TimeWindowPartitionsDefinition,
    multi_asset,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.dagster.inputs import WindowInputs
from kafka_ordered_ops.dagster.names import alone_name, inputs_name, op_safe, with_resources
from kafka_ordered_ops.dagster.registry import WindowAsset, remember
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
from kafka_ordered_ops.dagster.step.checks import check_results, check_specs, partition_results
from kafka_ordered_ops.dagster.step.delivery import Delivered, Step
from kafka_ordered_ops.dagster.step.step_functions import (
    KAFKA,
    Function,
    check_has_place,
    function_of,
    job_without_function,
    step_function,
)
from kafka_ordered_ops.dagster.step.times import check_partitions
from kafka_ordered_ops.dagster.translator import KafkaWindowTranslator
from kafka_ordered_ops.delivery.arguments import arguments, with_known_names
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy
from kafka_ordered_ops.spec.table import Table

#: Where `AssetSpec.with_io_manager_key` keeps the key.
_IO_MANAGER: Final = "dagster/io_manager_key"

#: The dependencies of an asset, in the types of Dagster's own assets.
Dep = AssetKey | str | Sequence[str] | AssetSpec | AssetsDefinition | SourceAsset | AssetDep


@with_known_names
def ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str,
    output: str | os.PathLike[str] | Folder | Table | None = None,
    policy: Policy = DEFAULT_POLICY,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
    engine: Engine | str | None = None,
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
    """Make an asset from a function that delivers windows.

    ::

        @ordered_window_asset(key="orders", topics="orders", group_id="orders", output="/lake/orders", partitions_def=hours)
        def orders(window):
            window.write(pl.from_arrow(window).filter(pl.col("key").is_not_null()))

    ``f(window)`` or ``f(context, window)``, and resources after it, is called for each window, by time. A function with a
    parameter ``windows`` instead is called once, with all windows of the step in one pass; those that were planned with other
    schemas are a separate call.

    The step checks whether the partitions are live, and plans the windows of its partitions. It calls the function for
    the windows that are not delivered yet, commits them in one transaction, and then reports to Dagster. A step that
    fails, is killed or is overtaken commits nothing, and the next one takes the same records.

    With partitions by time, a window is a partition's interval and late records: stamped earlier, in an interval that
    was planned before they were written. Without partitions, it is everything before the start of the run that the
    group has not taken yet.

    Args:
        key: the asset's key.
        topics: see `WindowSettings`, also for the arguments that are not named here.
        group_id: the consumer group whose progress the windows are; one asset for each group. Two assets of one group
            in one code location do not load; elsewhere the second one's first plan is refused.
        partitions_def: intervals of time, or None. Without a ``timezone``, Dagster's partitions are in UTC.
        backfill_policy: how a backfill is divided into runs. By default one run delivers all windows in one pass; a
            serial asset has one run for each partition.
        automation_condition: when Dagster starts runs by itself, for example `catch_up_condition`.
        translator: makes the asset's spec.
        kafka_resource: the name of the `KafkaResource`.
        serial: make each partition depend on the one before it, so that Dagster materializes them one after the other,
            in separate runs. The package does not need this; a function that builds on its output for the partition
            before does.
        deps: assets that it depends on besides its topics, as for `dagster.asset`.
        description: the asset's description in Dagster.
        group_name: Dagster's group of assets, not a consumer group.
        owners: people by e-mail address, or teams as ``team:data``.
        tags: the asset's tags.
        retry_policy: attempts of a failed step; errors that no retry can fix are not retried.
        pool: the pool that limits steps running at once. By default there is no limit: attempts of a group fence each
            other.
        options: more arguments of `dagster.multi_asset`.
        cluster: a name for the cluster, if several resources connect to it. The default is the resource's name.

    Raises:
        ConfigError: partitions that are not time intervals, or invalid settings.
    """
    settings = WindowSettings.among(locals())
    asset_key = AssetKey.from_coercible(key)
    alone = alone_name(settings.group_id, cluster or kafka_resource)
    check_partitions(partitions_def, settings)
    spec = (translator or KafkaWindowTranslator()).asset_spec(asset_key, settings)
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        # Dagster reads partitions without a time zone as UTC, and never shows the zone.
        zone = {"kafka_ordered_ops/time_zone": partitions_def.timezone}
        spec = spec.merge_attributes(metadata=zone)
    if serial:
        spec = spec.replace_attributes(
            deps=[*spec.deps, _partition_before(asset_key, partitions_def)]
        )
    spec = spec.replace_attributes(
        deps=[*spec.deps, *(AssetDep.from_coercible(dep) for dep in deps)]
    )
    overrides = {
        "automation_condition": automation_condition,
        "description": description,
        "group_name": group_name,
        "owners": owners,
        "tags": tags,
    }
    # The translator's value applies where an argument is None.
    spec = spec.replace_attributes(
        **{name: value for name, value in overrides.items() if value is not None}  # type: ignore[arg-type]
    )

    inputs: dict[str, IOManagerDefinition] = {}
    if _IO_MANAGER not in spec.metadata:
        loads = WindowInputs(asset_key, settings)
        inputs = {inputs_name(asset_key): IOManagerDefinition.hardcoded_io_manager(loads)}
        spec = spec.with_io_manager_key(next(iter(inputs)))

    def decorate(function: Function) -> AssetsDefinition:
        def results(
            context: AssetExecutionContext, kafka: KafkaResource, called: Function
        ) -> Iterator[Any]:
            step = Step(context, asset_key, settings, partitions_def, kafka)
            delivered = step.deliver(partial(called, context), function_of(called))
            yield from _results_of(context, asset_key, settings, delivered)

        default_policy = BackfillPolicy.multi_run() if serial else BackfillPolicy.single_run()
        policy = backfill_policy or default_policy
        asset = multi_asset(
            name=op_safe("__".join(asset_key.path)),
            specs=[spec.replace_attributes(partitions_def=partitions_def)],
            check_specs=check_specs(asset_key, settings, partitions_def),
            backfill_policy=policy,
            pool=pool,
            **{"retry_policy": retry_policy, **(options or {})},
        )(step_function(function, kafka_resource, results, AssetExecutionContext, marks=[alone]))
        asset = with_resources(asset, alone, inputs)
        run_max = policy.max_partitions_per_run
        definition = WindowAsset(
            asset_key, settings, partitions_def, kafka_resource, run_max, serial
        )
        return remember(asset, definition)

    return decorate


@with_known_names
def build_ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str],
    topics: str | Sequence[str] | None = None,
    window: Window | None = None,
    group_id: str,
    output: str | os.PathLike[str] | Folder | Table | None = None,
    job: Copy | Application | None = None,
    policy: Policy = DEFAULT_POLICY,
    on_not_live: OnNotLive | str = OnNotLive.WARN,
    grace: timedelta | str | None = None,
    open_lag: timedelta | str | None = None,
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
        key: the asset's key.
        output: a folder that every process of the job sees, or a `Table`.
        job: an `Application`, which gets its windows with `kafka_ordered_ops.current_window`; or a `Copy`, the default.

    Raises:
        ConfigError: no `output`, or a job of another type.
    """
    check_has_place(output)
    asset = ordered_window_asset(**arguments(locals(), own=["job"]))
    return asset(job_without_function(job, output))


def _results_of(
    context: AssetExecutionContext, key: AssetKey, settings: WindowSettings, delivered: Delivered
) -> Iterator[Any]:
    """Yield the report of a delivered step to Dagster."""
    if None in delivered.by_partition:
        yield MaterializeResult(
            key,
            metadata={**delivered.by_partition[None], **delivered.common},
            data_version=delivered.data_version,
            check_results=check_results(delivered, settings),
        )
        return
    for name, metadata in delivered.by_partition.items():
        # The step's metadata comes last: Dagster shows the metadata of a result first, and repeats it for each partition.
        context.add_asset_metadata({**metadata, **delivered.common}, key, partition_key=name)
    yield MaterializeResult(key, data_version=delivered.data_version)
    yield from partition_results(context, key, delivered, settings)


def _partition_before(key: AssetKey, partitions_def: PartitionsDefinition[str] | None) -> AssetDep:
    if partitions_def is None:
        raise ConfigError("serial=True requires partitions_def")
    return AssetDep(
        key, partition_mapping=TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)
    )
