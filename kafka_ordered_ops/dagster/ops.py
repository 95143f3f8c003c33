"""Ops of windows, for jobs of ops: the step of an asset of windows, without an asset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, OpDefinition, OpExecutionContext, Output, PartitionsDefinition, op

from kafka_ordered_ops.core.errors import ConfigError
from kafka_ordered_ops.core.types import (
    Isolation,
    OnCovered,
    OnDataLoss,
    OnForeignCommit,
    OnOpenClaim,
)
from kafka_ordered_ops.core.window.bounds import Bound
from kafka_ordered_ops.dagster.names import op_safe
from kafka_ordered_ops.dagster.resource import KafkaResource
from kafka_ordered_ops.dagster.settings import OnNotLive, WindowSettings
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
from kafka_ordered_ops.hosting.arguments import arguments, with_known_names
from kafka_ordered_ops.hosting.summary import window_summary

if TYPE_CHECKING:
    from kafka_ordered_ops.core.group.group_state import WindowRecord
    from kafka_ordered_ops.spark import SparkSubmit


@with_known_names
def ordered_window_op(
    *,
    name: str,
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
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[[Function], OpDefinition]:
    """Make an op from a function that delivers windows, as `ordered_window_asset` makes an asset.

    Its output, for downstream ops, is a list with a dict for each delivered window, by time: ``window_id``, ``since``
    and ``cutoff`` (texts), ``records`` (None if the sink does not report them), ``output`` (the folder of the files,
    or None) and ``returned`` (the function's return value, if it has its own sink).

    Prefer assets: Dagster knows their partitions, and shows the missing ones.

    Args:
        name: the op's; the windows' ids begin with it.
        topics: see `WindowSettings`, also for the arguments that are not named here.
        group_id: the consumer group whose progress the windows are; one op or asset for each group.
        partitions_def: that of the job, intervals of time; None: the job has none, and each run takes everything
            before it began that the group has not taken yet.
        kafka_resource: the name of the `KafkaResource`.
        pool: limits steps that run at once.
        options: more arguments of `dagster.op`.

    Raises:
        ConfigError: partitions that are not time intervals, or invalid settings.
    """
    made = WindowSettings.among(locals())
    check_partitions(partitions_def, made)

    def decorate(function: Function) -> OpDefinition:
        def results(
            context: OpExecutionContext, kafka: KafkaResource, given: dict[str, Any]
        ) -> Iterator[Output[Any]]:
            _check_run(context, partitions_def)
            step = Step(context, AssetKey(name), made, partitions_def, kafka)
            yield _output_of(
                context, step.deliver(lambda windows: function(context, windows, **given), function)
            )

        definition: OpDefinition = op(name=op_safe(name), pool=pool, **(options or {}))(
            step_function(function, kafka_resource, results, OpExecutionContext)
        )
        return definition

    return decorate


@with_known_names
def build_ordered_window_op(
    *,
    name: str,
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
    kafka_resource: str = KAFKA,
    pool: str | None = None,
    options: dict[str, Any] | None = None,
) -> OpDefinition:
    """Make an op without a function: a Spark application writes its windows, or they are copied without Spark.

    Takes the arguments of `ordered_window_op`, and those of `build_ordered_window_asset` about an application.

    Raises:
        ConfigError: arguments for an application, but no application.
    """
    check_has_place(output, table)
    definition = ordered_window_op(
        **arguments(locals(), own=["application", "application_args", "submit"])
    )
    return definition(
        job_without_function(application, application_args, submit, table_conf=table_conf)
    )


def _check_run(
    context: OpExecutionContext, partitions_def: PartitionsDefinition[str] | None
) -> None:
    if context.has_partition_key is not (partitions_def is not None):
        has, wants = ("one", "no") if partitions_def is None else ("no", "a")
        raise ConfigError(
            f"the run of job {context.job_name} has {has} partition, and op {context.op.name} wants {wants} "
            "partition: give the op the partitions_def= of its job"
        )


def _output_of(context: OpExecutionContext, found: Delivered) -> Output[Any]:
    for live in found.live.values():
        if not live.is_live:
            context.log.warning("The partitions have not reached the cutoff: %s", live)
    summary = dict(found.common)
    for one in found.by_partition.values():
        # A run of a job of ops has one partition.
        summary |= one
    return Output([_facts(record) for record in found.records], metadata=summary)


def _facts(record: WindowRecord) -> dict[str, Any]:
    summary = window_summary(record)
    shown = ("window_id", "since", "cutoff", "records", "output")
    return {**{name: summary[name] for name in shown}, "returned": summary["result"]}
