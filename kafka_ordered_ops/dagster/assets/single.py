"""An asset of windows: a decorator, and a builder that needs no function."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    BackfillPolicy,
    IOManagerDefinition,
    MaterializeResult,
    PartitionsDefinition,
    TimeWindowPartitionsDefinition,
    multi_asset,
)

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.window.policy import DEFAULT_POLICY, Policy
from kafka_ordered_ops.core.window.window import Window
from kafka_ordered_ops.dagster.assets.inputs import WindowInputs
from kafka_ordered_ops.dagster.assets.registry import WindowAsset, remember
from kafka_ordered_ops.dagster.assets.translator import KafkaWindowTranslator, own_spec, with_own
from kafka_ordered_ops.dagster.assets.window_op import DEFAULT_OP, WindowOp, check_op
from kafka_ordered_ops.dagster.names import alone_name, inputs_name, mark, op_safe, with_resources
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
from kafka_ordered_ops.delivery.arguments import arguments, with_known_values
from kafka_ordered_ops.spec.destination import Folder
from kafka_ordered_ops.spec.engine import Engine
from kafka_ordered_ops.spec.jobs import Application, Copy
from kafka_ordered_ops.spec.table import Table

#: Where `AssetSpec.with_io_manager_key` keeps the key.
_IO_MANAGER: Final = "dagster/io_manager_key"

#: Parameters whose values are for Dagster alone.
_OF_DAGSTER: Final = (("key", AssetSpec), ("op", WindowOp))


@with_known_values(*_OF_DAGSTER)
def ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str] | AssetSpec,
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
    op: WindowOp = DEFAULT_OP,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
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

    An asset whose spec depends on its own partition before, by a `dagster.TimeWindowPartitionMapping`, is serial: Dagster
    materializes its partitions one after the other, in separate runs. The package does not need this; a function that builds
    on its output for the partition before does.

    Args:
        key: the asset's key; or its `dagster.AssetSpec`, with owners, tags, a description, an automation condition, or
            dependencies besides the topics.
        topics: see `WindowSettings`, also for the arguments that are not named here.
        group_id: the consumer group whose progress the windows are; one asset for each group. Two assets of one group
            in one code location do not load; elsewhere the second one's first plan is refused.
        partitions_def: intervals of time, or None. Without a ``timezone``, Dagster's partitions are in UTC.
        op: the step: its tags, retries, pool, and how a backfill is divided into runs.
        translator: makes the asset's spec, to which the spec in `key` is added.
        kafka_resource: the name of the `KafkaResource`.

    Raises:
        ConfigError: partitions that are not time intervals, or invalid settings.
    """
    return window_asset_of(**arguments(locals()))


@with_known_values(*_OF_DAGSTER)
def build_ordered_window_asset(
    *,
    key: AssetKey | str | Sequence[str] | AssetSpec,
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
    op: WindowOp = DEFAULT_OP,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
) -> AssetsDefinition:
    """Make an asset without a function: a Spark application writes its windows, or they are copied unchanged.

    Takes the arguments of `ordered_window_asset`, and:

    Args:
        key: the asset's key, or its spec.
        output: a folder that every process of the job sees, or a `Table`.
        job: an `Application`, which gets its windows with `kafka_ordered_ops.current_window`; or a `Copy`, the default.

    Raises:
        ConfigError: no `output`, or a job of another type.
    """
    check_has_place(output)
    asset = ordered_window_asset(**arguments(locals(), own=["job"]))
    return asset(job_without_function(job, output))


def window_asset_of(
    *,
    key: AssetKey | str | Sequence[str] | AssetSpec,
    partitions_def: PartitionsDefinition[str] | None = None,
    op: WindowOp = DEFAULT_OP,
    translator: KafkaWindowTranslator | None = None,
    kafka_resource: str = KAFKA,
    cluster: str | None = None,
    **settings_given: Any,
) -> Callable[[Function], AssetsDefinition]:
    """Return the decorator of `ordered_window_asset`.

    Args:
        key: see `ordered_window_asset`, also for the arguments that are not named here.
        cluster: a name that resources of one cluster share; the default is the resource's name.
        settings_given: of `WindowSettings`.
    """
    check_op(op)
    settings = WindowSettings(**settings_given)
    spec = _spec_of(own_spec(key), settings, partitions_def, translator)
    partitions, is_serial = spec.partitions_def, _is_serial(spec)
    resources: dict[str, Any] = {alone_name(settings.group_id, cluster or kafka_resource): mark()}
    marks = list(resources)
    if _IO_MANAGER not in spec.metadata:
        loads = IOManagerDefinition.hardcoded_io_manager(WindowInputs(spec.key, settings))
        resources[inputs_name(spec.key)] = loads
        spec = spec.with_io_manager_key(inputs_name(spec.key))
    default = BackfillPolicy.multi_run() if is_serial else BackfillPolicy.single_run()
    policy, name = op.backfill_policy or default, op_safe("__".join(spec.key.path))

    def decorate(function: Function) -> AssetsDefinition:
        def results(
            context: AssetExecutionContext, kafka: KafkaResource, called: Function
        ) -> Iterator[Any]:
            step = Step(context, spec.key, settings, partitions, kafka)
            delivered = step.deliver(partial(called, context), function_of(called))
            yield from _results_of(context, spec.key, settings, delivered)

        step = step_function(function, kafka_resource, results, AssetExecutionContext, marks=marks)
        asset = multi_asset(
            name=name,
            specs=[spec],
            check_specs=check_specs(spec.key, settings, partitions),
            **op.arguments(policy),
        )(step)
        definition = WindowAsset(
            spec.key,
            settings,
            partitions,
            kafka_resource,
            name,
            step,
            op,
            policy.max_partitions_per_run,
            is_serial,
        )
        return remember(with_resources(asset, resources), [definition])

    return decorate


def _spec_of(
    own: AssetSpec,
    settings: WindowSettings,
    partitions_def: PartitionsDefinition[str] | None,
    translator: KafkaWindowTranslator | None,
) -> AssetSpec:
    """Return the whole spec of an asset, with its partitions.

    Raises:
        ConfigError: partitions that are not time intervals, or are given twice; a serial asset without partitions.
    """
    key = own.key.to_user_string()
    if partitions_def is not None and own.partitions_def not in (None, partitions_def):
        raise ConfigError(
            f"{key} has other partitions in its spec than in partitions_def: give them once"
        )
    partitions = partitions_def or own.partitions_def
    check_partitions(partitions, settings)
    spec = with_own((translator or KafkaWindowTranslator()).asset_spec(own.key, settings), own)
    if isinstance(partitions, TimeWindowPartitionsDefinition):
        # Dagster reads partitions without a time zone as UTC, and never shows the zone.
        zone = {"kafka_ordered_ops/time_zone": partitions.timezone}
        spec = spec.merge_attributes(metadata=zone)
    if partitions is None and _is_serial(spec):
        raise ConfigError(
            f"{key} depends on its partition before, and has no partitions: give partitions_def="
        )
    return spec.replace_attributes(partitions_def=partitions)


def _is_serial(spec: AssetSpec) -> bool:
    return any(dep.asset_key == spec.key for dep in spec.deps)


def _results_of(
    context: AssetExecutionContext, key: AssetKey, settings: WindowSettings, delivered: Delivered
) -> Iterator[Any]:
    """Yield the report of a delivered step to Dagster."""
    if None in delivered.by_partition:
        yield MaterializeResult(
            key,
            metadata={**delivered.by_partition[None], **delivered.common},
            data_version=delivered.data_version,
            check_results=check_results(context, key, delivered, settings),
        )
        return
    for name, metadata in delivered.by_partition.items():
        # The step's metadata comes last: Dagster shows the metadata of a result first, and repeats it for each partition.
        context.add_asset_metadata({**metadata, **delivered.common}, key, partition_key=name)
    yield MaterializeResult(key, data_version=delivered.data_version)
    yield from partition_results(context, key, delivered, settings)
